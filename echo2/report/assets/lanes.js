// A lane for every worker: when it was up, how busy, and the snapshots on their way to it. Draws what is in view.

const LANE = 18;

class Lanes {
  constructor(run, scope) {
    Object.assign(this, { run, scope, lanes: run.lanes });
    this.scroll = document.getElementById("lanes-scroll");
    this.room = document.getElementById("lanes-room");
    this.room.style.height = `${this.lanes.length * LANE + 4}px`;
    this.scroll.style.height = `${Math.min(22 * LANE + 4, this.lanes.length * LANE + 4)}px`;
    this.chart = new Chart(
      document.getElementById("lanes"), scope, () => this.scroll.clientHeight, (pen) => this.draw(pen), (t, y) => this.told(t, y),
    );
    this.scroll.addEventListener("scroll", () => this.chart.redraw());
    const busy = this.lanes.filter((lane) => lane.up.start.length).length;
    document.getElementById("lanes-words").textContent =
      `${many(busy)} workers were up, those longest up first. A lane is grey while its worker is up; the height of the ` +
      "green is the share of its slots that generate, the striped foot a snapshot on its way; a cross marks a worker " +
      "lost and not stopped. All of it is in the table of workers.";
  }

  // The lanes are under the timeline to the pixel, whatever the border and the scroll bar take.
  align() {
    const bar = this.scroll.offsetWidth - 2 - this.scroll.clientWidth;
    Object.assign(this.chart, { left: 117, right: 29 - bar });
  }

  draw(pen) {
    this.align();
    const { chart } = this, pixels = Math.floor(chart.inner), view = this.scope.view, top = this.scroll.scrollTop;
    const striped = hatched(pen, "sending", HATCH.sending);
    const last = Math.min(this.lanes.length, Math.ceil((top + this.scroll.clientHeight) / LANE));
    for (let i = Math.floor(top / LANE); i < last; i++) {
      const y = i * LANE - top + 2, lane = this.lanes[i], base = y + LANE - 3;
      label(pen, fitted(pen, lane.id, chart.left - 12), chart.left - 8, y + LANE / 2);
      pen.fillStyle = colour("lane");
      bars(pen, chart.left, base, LANE - 5, lane.up.coverage(view, pixels)[0].map((part) => (part > 0 ? 1 : 0)), 1);
      pen.fillStyle = colour("generation");
      bars(pen, chart.left, base, LANE - 5, lane.busy.means(view, pixels), 1);
      pen.fillStyle = striped;
      bars(pen, chart.left, base, 5, lane.got.coverage(view, pixels)[0].map((part) => (part > 0.15 ? 1 : part)), 1);
      this.drawLosses(pen, lane, y + LANE / 2, pixels, view);
    }
  }

  drawLosses(pen, lane, y, pixels, [low, high]) {
    pen.strokeStyle = colour("idle-publication");
    pen.lineWidth = 2;
    let before = -9;
    lane.up.each(low - 1, high, (i) => {
      const cause = lane.causes.text(i), end = lane.up.start[i] + lane.up.length[i];
      const x = this.chart.left + ((end - low) / (high - low)) * pixels;
      if (!cause || cause === "stopped" || x > this.chart.left + pixels || x < before + 4) return;
      before = x;
      pen.beginPath();
      for (const slope of [-1, 1]) {
        pen.moveTo(x - 3.5, y - 3.5 * slope);
        pen.lineTo(x + 3.5, y + 3.5 * slope);
      }
      pen.stroke();
    });
  }

  told(t, y) {
    const lane = this.lanes[Math.floor((y + this.scroll.scrollTop - 2) / LANE)];
    if (!lane) return "";
    const parts = [`${lane.id} at ${clock(t)}`];
    const i = after(lane.up.start, t) - 1;
    const end = i < 0 ? 0 : lane.up.start[i] + lane.up.length[i];
    if (i >= 0 && t <= end) {
      parts.push(`up, ${share(lane.busy.at(t))} of its slots generate`);
    } else {
      parts.push(i >= 0 ? `not up; last ended ${clock(end)}: ${lane.causes.text(i) || "end of the log"}` : "not up yet");
    }
    const j = after(lane.got.start, t) - 1;
    if (j >= 0 && t <= lane.got.start[j] + lane.got.length[j]) {
      parts.push(`receives version ${lane.sent.v.text(j)} (${duration(lane.got.length[j])}): ${lane.sent.text.text(j)}`);
    }
    return parts.join("\n");
  }
}

// The lanes as the page's data has them, unpacked.
function unpackLanes({ id, up, got, busy }) {
  return id.map((name, i) => {
    const times = columns(up[i]), sent = columns(got[i]);
    return {
      id: name,
      up: new Spans(times.t.numbers, times.s.numbers),
      causes: times.text,
      got: new Spans(sent.t.numbers, sent.s.numbers),
      sent,
      busy: StepSeries.bins(busy[i]),
    };
  });
}
