// Brings the page to life: charts first, the decisions when the reader can already look around.

function charts(run, redraw) {
  run.lanes = unpackLanes(run.workers);
  const time = new Scope(0, run.end, 10);
  const course = new Course(run, time), lanes = new Lanes(run, time);
  const last = Math.max(columns(run.train).v.numbers.at(-1) || 1, 1);
  const versions = new Scope(-0.5, last + 0.5, 4);
  redraw.push(course.chart, lanes.chart, new AgePlot(run, versions).chart, new SpreadPlot(run, versions).chart);
  const jump = (t) => {
    const wide = Math.min(time.full[1], Math.max(20 * (run.end / Math.max(1, last)), 1000));
    time.set(t - wide / 2, t + wide / 2);
    document.getElementById("course").scrollIntoView({ block: "center" });
    document.getElementById("course").focus({ preventScroll: true });
  };
  versionList(run, jump);
  return jump;
}

// A print is light whatever the screen is.
function followTheme(redraw) {
  const paint = () => redraw.forEach((chart) => chart.paint());
  const printing = (now) => {
    document.documentElement.classList.toggle("print", now);
    paint();
  };
  window.addEventListener("beforeprint", () => printing(true));
  window.addEventListener("afterprint", () => printing(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
}

async function start() {
  const redraw = [];
  document.body.append(tip);
  tip.hidden = true;
  document.querySelectorAll("table.sortable").forEach(sortable);
  filterWorkers();
  const run = await unpack("run-data");
  if (run === null) return;
  const jump = charts(run, redraw);
  followTheme(redraw);
  await new Promise((resume) => requestAnimationFrame(() => setTimeout(resume, 0)));
  document.documentElement.dataset.openMs = performance.now().toFixed(0);
  await new DecisionView(new Decisions(await unpack("decision-data")), jump).search();
}

start().then(
  () => (document.documentElement.dataset.readyMs = performance.now().toFixed(0)),
  (error) => {
    const note = element("p", "warning", `The interactive part of this page could not start: ${error}`);
    document.querySelector("main").prepend(note);
    throw error;
  },
);
