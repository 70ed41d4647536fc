// The two charts over versions: staleness of each batch, and dissemination of each snapshot. They move together.

const PLOT = { top: 10, height: 210 };

// Points of two columns, sorted by x (a resumed run repeats versions).
function points(x, ...ys) {
  const order = Array.from(x.keys()).sort((a, b) => x[a] - x[b]);
  return [Float64Array.from(order, (i) => x[i]), ...ys.map((y) => Float64Array.from(order, (i) => y[i]))];
}

class Plot {
  constructor(id, scope) {
    this.id = id;
    this.scope = scope;
    this.chart = new Chart(
      document.getElementById(id), scope, () => PLOT.top + PLOT.height + 44, (pen) => this.draw(pen), (x) => this.told(x),
    );
    scope.listeners.push(() => this.say());
  }

  y(value) {
    const [low, high] = this.range, { top, height } = PLOT;
    const part = this.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return top + height * (1 - Math.max(0, Math.min(1, part)));
  }

  frame(pen, unit) {
    const { chart } = this, [low, high] = this.range;
    axis(pen, chart, PLOT.top + PLOT.height, PLOT.top, false);
    label(pen, "version", chart.left + chart.inner / 2, PLOT.top + PLOT.height + 34, "soft", "center");
    pen.strokeStyle = colour("line");
    pen.lineWidth = 1;
    for (const tick of this.ticks(low, high)) {
      pen.beginPath();
      pen.moveTo(chart.left, this.y(tick));
      pen.lineTo(chart.left + chart.inner, this.y(tick));
      pen.stroke();
      label(pen, shortNumber(Number(tick.toPrecision(6))), chart.left - 8, this.y(tick), "soft");
    }
    pen.save();
    pen.translate(14, PLOT.top + PLOT.height / 2);
    pen.rotate(-Math.PI / 2);
    label(pen, unit, 0, 0, "soft", "center");
    pen.restore();
  }

  ticks(low, high) {
    const out = [];
    if (this.log) {
      for (let size = 10 ** Math.floor(Math.log10(low)); size <= high; size *= 10) {
        for (const k of [1, 2, 5]) if (k * size >= low && k * size <= high) out.push(k * size);
      }
      return out;
    }
    const step = this.whole ? Math.max(1, niceStep(high - low, 6)) : niceStep(high - low, 6);
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) out.push(tick);
    return out;
  }

  line(pen, found, which, name, dash, width = 1.8) {
    const { left } = this.chart;
    pen.strokeStyle = colour(name);
    pen.setLineDash(dash);
    pen.lineWidth = width;
    pen.beginPath();
    let begun = false;
    found[which].forEach((value, p) => {
      if (Number.isNaN(value)) return;
      if (begun) pen.lineTo(left + p + 0.5, this.y(value));
      else pen.moveTo(left + p + 0.5, this.y(value));
      begun = true;
    });
    pen.stroke();
    pen.setLineDash([]);
  }

  inView(x) {
    const [low, high] = this.scope.view;
    return [after(x, low - 1e-9), after(x, high)];
  }
}

class AgePlot extends Plot {
  constructor(run, scope) {
    super("ages", scope);
    const { version, low, mean, high } = columns(run.ages);
    [this.x, this.low, this.mean, this.high] = points(version.numbers, low.numbers, mean.numbers, high.numbers);
    this.S = run.S;
    this.whole = true;
    this.range = [0, 0.5 + Math.max(1, run.S || 0, ...perPixel(this.x, this.high, scope.full, 1).top)];
    legend("ages-legend", [
      ["band", "", "freshest to stalest group"], ["training", "line", "mean"], ["bound", "line", `bound S = ${run.S ?? "unknown"}`],
    ]);
    this.say();
  }

  draw(pen) {
    const { left, inner } = this.chart, pixels = Math.floor(inner), view = this.scope.view;
    this.frame(pen, "staleness (versions)");
    const low = perPixel(this.x, this.low, view, pixels), high = perPixel(this.x, this.high, view, pixels);
    const wide = Math.max(1, Math.min(14, (0.7 * pixels) / (view[1] - view[0])));
    pen.fillStyle = colour("band");
    for (let p = 0; p < pixels; p++) {
      if (!low.count[p]) continue;
      const top = this.y(high.top[p]) - 2, bottom = this.y(low.bottom[p]) + 2;
      pen.fillRect(left + p + 0.5 - wide / 2, top, wide, bottom - top);
    }
    this.line(pen, perPixel(this.x, this.mean, view, pixels), "mean", "training", []);
    if (this.S === null) return;
    pen.fillStyle = colour("bound");
    pen.fillRect(left, this.y(this.S) - 1, inner, 2);
    label(pen, `S = ${this.S}`, left + inner - 4, this.y(this.S) - 9, "ink");
  }

  told(x) {
    const [i] = this.inView(this.x), at = Math.min(this.x.length - 1, Math.max(i, after(this.x, x + 0.5) - 1));
    if (at < 0) return "";
    return `step at version ${this.x[at]}\nstaleness ${this.low[at]} to ${this.high[at]}, mean ${shortNumber(this.mean[at])}`;
  }

  say() {
    const [from, to] = this.inView(this.x);
    let sum = 0, most = 0;
    for (let i = from; i < to; i++) {
      sum += this.mean[i];
      most = Math.max(most, this.high[i]);
    }
    document.getElementById("ages-words").textContent = to > from
      ? `In view: ${many(to - from)} steps, versions ${many(this.x[from])} to ${many(this.x[to - 1])}; mean staleness ` +
        `${(sum / (to - from)).toFixed(2)}, highest ${most} of S = ${this.S ?? "unknown"}.`
      : "In view: no step.";
  }
}

class SpreadPlot extends Plot {
  constructor(run, scope) {
    super("spread", scope);
    const v = columns(run.versions);
    [this.x, this.achieved, this.predicted, this.bound] =
      points(v.version.numbers, v.achieved.numbers, v.predicted.numbers, v.bound.numbers);
    legend("spread-legend", [
      ["training", "ring", `achieved, last worker, ${run.world} (a bar: several versions in a pixel)`],
      ["idle-rollouts", "dashes", "predicted, last worker"],
      ["ink", "dots", "bound of the links"],
    ]);
    this.say();
  }

  scale() {
    const [from, to] = this.inView(this.x), seen = [];
    for (const list of [this.achieved, this.predicted, this.bound]) {
      for (let i = from; i < to; i++) if (list[i] > 0) seen.push(list[i]);
    }
    const low = seen.reduce((a, b) => Math.min(a, b), Infinity), high = seen.reduce((a, b) => Math.max(a, b), 0);
    this.log = high > 12 * low;
    this.range = !seen.length ? [0, 1] : this.log ? [low / 1.3, high * 1.3] : [0, 1.12 * high];
  }

  draw(pen) {
    const { left, inner } = this.chart, pixels = Math.floor(inner), view = this.scope.view;
    this.scale();
    this.frame(pen, "seconds");
    const found = perPixel(this.x, this.achieved, view, pixels);
    pen.strokeStyle = colour("training");
    pen.lineWidth = 1.6;
    const radius = this.x.length && pixels / (view[1] - view[0]) > 8 ? 4 : 2;
    for (let p = 0; p < pixels; p++) {
      if (!found.count[p]) continue;
      pen.beginPath();
      if (found.count[p] > 1) {
        pen.moveTo(left + p + 0.5, this.y(found.top[p]) - 1);
        pen.lineTo(left + p + 0.5, this.y(found.bottom[p]) + 1);
      } else {
        pen.arc(left + p + 0.5, this.y(found.mean[p]), radius, 0, 7);
      }
      pen.stroke();
    }
    this.line(pen, perPixel(this.x, this.predicted, view, pixels), "mean", "idle-rollouts", [7, 4]);
    this.line(pen, perPixel(this.x, this.bound, view, pixels), "mean", "ink", [2, 3], 1.6);
  }

  told(x) {
    let at = after(this.x, x) - 1;
    if (at + 1 < this.x.length && (at < 0 || this.x[at + 1] - x < x - this.x[at])) at++;
    if (at < 0) return "";
    const ratio = this.achieved[at] / this.bound[at];
    return `version ${this.x[at]}\nachieved ${shortNumber(this.achieved[at]) || "unknown"} s, predicted ` +
      `${shortNumber(this.predicted[at]) || "not"} s, bound ${shortNumber(this.bound[at])} s` +
      (Number.isFinite(ratio) ? `\nachieved / bound ${ratio.toFixed(2)}` : "");
  }

  say() {
    const [from, to] = this.inView(this.x);
    const arrived = Array.from(this.achieved.subarray(from, to)).filter((s) => s > 0).sort((a, b) => a - b);
    const middle = arrived[Math.floor(arrived.length / 2)];
    document.getElementById("spread-words").textContent = arrived.length
      ? `In view: ${many(to - from)} published versions; achieved, last worker: median ${shortNumber(middle)} s, ` +
        `longest ${shortNumber(arrived.at(-1))} s.`
      : "In view: no version that arrived.";
  }
}
