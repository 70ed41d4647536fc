// The timeline: learner, snapshots, generation and workers over the whole run or any part of it.

const ROWS = { learner: [8, 48], snapshots: [66, 26], receiving: [100, 34], running: [144, 42], up: [196, 34] };
const COURSE_HEIGHT = 264;
const LOOKS = { rollouts: "idle-rollouts", publication: "idle-publication", workers: "idle-workers" };

function idleLook(cause) {
  return [LOOKS[cause] || "idle-other", HATCH[cause] || "\\"];
}

class Course {
  constructor(run, scope) {
    this.run = run;
    this.scope = scope;
    const train = columns(run.train), idle = columns(run.idle), versions = columns(run.versions);
    this.train = new Spans(train.t.numbers, train.s.numbers);
    this.steps = train.v.numbers;
    this.idle = new Spans(idle.t.numbers, idle.s.numbers, idle.c.numbers, run.causes.length);
    this.versions = versions;
    const tails = versions.achieved.numbers.map((s) => (Number.isNaN(s) ? 0 : 1000 * s));
    this.sent = new Spans(versions.t.numbers, tails);
    this.running = StepSeries.bins(run.running);
    this.up = StepSeries.count(run.lanes.map((lane) => lane.up));
    this.receiving = StepSeries.count(run.lanes.map((lane) => lane.got));
    this.chart = new Chart(
      document.getElementById("course"), scope, () => COURSE_HEIGHT, (pen) => this.draw(pen), (t, y) => this.told(t, y),
    );
    scope.listeners.push(() => this.say());
    this.say();
  }

  draw(pen) {
    const { chart } = this, pixels = Math.floor(chart.inner), view = this.scope.view;
    axis(pen, chart, COURSE_HEIGHT - 26, 4, true);
    this.drawLearner(pen, pixels, view);
    this.drawSnapshots(pen, pixels, view);
    this.drawArea(pen, "receiving", this.receiving, "sending", HATCH.sending, ["workers", "receiving"], pixels);
    this.drawArea(pen, "running", this.running, "generation", "", ["rollouts", "running"], pixels);
    this.drawArea(pen, "up", this.up, "up", "", ["workers up"], pixels);
    this.drawLives(pen);
    legend("course-legend", [
      ["training", "", "training"],
      ...this.run.causes.map((cause, i) => [...idleLook(cause), this.run.labels[i]]),
      ["sending", HATCH.sending, "snapshot under way"],
      ["generation", "", "rollouts running"],
      ["up", "", "workers up"],
    ]);
  }

  drawLearner(pen, pixels, view) {
    const [top, height] = ROWS.learner, { left } = this.chart, base = top + height;
    const under = this.train.coverage(view, pixels)[0];
    label(pen, "learner", left - 8, top + height / 2);
    pen.fillStyle = colour("training");
    bars(pen, left, base, height, under, 1);
    this.idle.coverage(view, pixels).forEach((part, c) => {
      pen.fillStyle = hatched(pen, ...idleLook(this.run.causes[c]));
      bars(pen, left, base, height, part, 1, under);
      part.forEach((value, p) => (under[p] += value));
    });
    const scale = pixels / (view[1] - view[0]);
    if (this.train.start.length && (pixels * this.train.length[0]) / (view[1] - view[0]) < 3) return;
    this.train.each(...view, (i) => {
      const from = left + (this.train.start[i] - view[0]) * scale, wide = this.train.length[i] * scale;
      pen.fillStyle = colour("paper");
      if (wide > 4) pen.fillRect(from - 0.5, top, 1, height);
      const first = Math.max(from, left), last = Math.min(from + wide, left + pixels);
      if (last - first < 34) return;
      label(pen, String(this.steps[i]), (first + last) / 2, top + height / 2, "on-training", "center");
    });
  }

  drawSnapshots(pen, pixels, view) {
    const [top, height] = ROWS.snapshots, { left } = this.chart;
    label(pen, "snapshots", left - 8, top + height / 2);
    pen.fillStyle = hatched(pen, "sending", HATCH.sending);
    let seen = 0;
    this.sent.each(...view, () => seen++);
    if (seen > pixels / 8) {
      bars(pen, left, top + height, height, this.sent.coverage(view, pixels)[0], 1);
      return;
    }
    const scale = pixels / (view[1] - view[0]), x = (t) => left + Math.min(pixels, Math.max(0, (t - view[0]) * scale));
    this.sent.each(...view, (i) => {
      const t = this.sent.start[i], row = top + (i % 2) * (height / 2), tall = height / 2 - 1;
      pen.fillStyle = hatched(pen, "sending", HATCH.sending);
      pen.fillRect(x(t), row, Math.max(1, x(t + this.sent.length[i]) - x(t)), tall);
      pen.fillStyle = colour("ink");
      for (const mark of [this.versions.bound, this.versions.predicted]) {
        const at = (t + 1000 * mark.numbers[i] - view[0]) * scale;
        if (at >= 0 && at <= pixels) pen.fillRect(left + at - 0.5, row, 1.5, tall);
      }
      const text = `v${this.versions.version.text(i)} ${this.versions.topology.text(i)}`;
      const room = left + pixels - x(t + this.sent.length[i]);
      if (seen < pixels / 120 && room > 90) label(pen, text, x(t + this.sent.length[i]) + 5, row + tall / 2, "ink", "left");
    });
  }

  drawArea(pen, row, series, name, hatch, words, pixels) {
    const [top, height] = ROWS[row], { left } = this.chart, means = series.means(this.scope.view, pixels);
    const most = means.reduce((a, b) => Math.max(a, b), 0) || 1;
    words.forEach((word, i) => label(pen, word, left - 8, top + height / 2 + 14 * (i - (words.length - 1) / 2)));
    pen.fillStyle = hatched(pen, name, hatch);
    bars(pen, left, top + height, height, means, most);
    pen.fillStyle = colour("line");
    pen.fillRect(left, top + height, pixels, 1);
    const text = `${shortNumber(Number(most.toPrecision(3)))}`;
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = colour("paper");
    pen.globalAlpha = 0.75;
    pen.fillRect(left + 1, top - 5, pen.measureText(text).width + 5, 12);
    pen.globalAlpha = 1;
    label(pen, text, left + 3, top + 1, "ink", "left");
    pen.font = "12px system-ui, sans-serif";
  }

  drawLives(pen) {
    const [low, high] = this.scope.view;
    this.run.lives.slice(1).forEach((t, i) => {
      if (t < low || t > high) return;
      const x = this.chart.left + ((t - low) / (high - low)) * this.chart.inner;
      pen.fillStyle = colour("ink");
      pen.fillRect(x, 2, 1.5, COURSE_HEIGHT - 28);
      label(pen, `life ${i + 2}`, x + 4, 60, "ink", "left");
    });
  }

  told(t, y) {
    const parts = [clock(t)];
    const step = after(this.train.start, t) - 1;
    const wait = after(this.idle.start, t) - 1;
    if (step >= 0 && t <= this.train.start[step] + this.train.length[step]) {
      parts.push(`training version ${this.steps[step]} (${duration(this.train.length[step])})`);
    } else if (wait >= 0 && t <= this.idle.start[wait] + this.idle.length[wait]) {
      parts.push(`${this.run.labels[this.idle.kind[wait]]} (${duration(this.idle.length[wait])})`);
    }
    const sent = after(this.sent.start, t) - 1;
    if (sent >= 0 && y > ROWS.snapshots[0] - 4 && y < ROWS.receiving[0]) {
      const v = this.versions;
      parts.push(
        `version ${v.version.text(sent)}, ${v.topology.text(sent)}: ${v.achieved.text(sent)} s achieved, ` +
        `${v.predicted.text(sent)} s predicted, bound ${v.bound.text(sent)} s`,
      );
    }
    parts.push(
      `${many(this.up.at(t))} workers up, ${many(this.receiving.at(t))} receiving, ` +
      `about ${many(this.running.at(t))} rollouts running`,
    );
    return parts.join("\n");
  }

  // What is in view, in words: for those who cannot see the picture, and for exact numbers.
  say() {
    const [low, high] = this.scope.view, inside = (t, s) => Math.max(0, Math.min(high, t + s) - Math.max(low, t));
    let busy = 0, first = null, last = null;
    const idle = this.run.causes.map(() => 0);
    this.train.each(low, high, (i) => {
      busy += inside(this.train.start[i], this.train.length[i]);
      first = first === null ? this.steps[i] : first;
      last = this.steps[i];
    });
    this.idle.each(low, high, (i) => (idle[this.idle.kind[i]] += inside(this.idle.start[i], this.idle.length[i])));
    const wide = high - low, steps = first === null ? "no step" : `versions ${many(first)} to ${many(last)}`;
    const waits = idle.map((ms, c) => `${this.run.labels[c]} ${share(ms / wide)}`);
    document.getElementById("course-words").textContent =
      `In view: ${clock(low)} to ${clock(high)} (${duration(wide)}), ${steps}. Training ${share(busy / wide)}` +
      `${waits.length ? "; " : ""}${waits.join("; ")}. On average ${shortNumber(this.up.mean(low, high))} workers up, ` +
      `${shortNumber(this.receiving.mean(low, high))} receiving, ` +
      `${shortNumber(this.running.mean(low, high))} rollouts running.`;
  }
}
