// Spans, step functions and points over an axis, boiled down to what a pixel can show; and the pens.

// First index whose value is above x, of a sorted list.
function after(list, x) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Spans that do not overlap, in order: start and length. `kind[i]` says which of `kinds` each is.
class Spans {
  constructor(start, length, kind = null, kinds = 1) {
    Object.assign(this, { start, length, kind, kinds });
  }

  // Calls take(i) for every span that touches [low, high].
  each(low, high, take) {
    for (let i = Math.max(0, after(this.start, low) - 1); i < this.start.length && this.start[i] <= high; i++) {
      if (this.start[i] + this.length[i] > low) take(i);
    }
  }

  // Share of each of `pixels` equal parts of the view that the spans of each kind cover.
  coverage([low, high], pixels) {
    const out = Array.from({ length: this.kinds }, () => new Float32Array(pixels));
    const scale = pixels / (high - low);
    this.each(low, high, (i) => {
      const from = Math.max(0, (this.start[i] - low) * scale);
      const to = Math.min(pixels, (this.start[i] + this.length[i] - low) * scale);
      const row = out[this.kind ? this.kind[i] : 0];
      for (let p = Math.floor(from); p < to; p++) row[p] += Math.min(to, p + 1) - Math.max(from, p);
    });
    return out;
  }
}

// A step function: value[i] holds from time[i] on. Means over any stretch are exact, whatever its length.
class StepSeries {
  constructor(time, value) {
    this.time = time;
    this.value = value;
    this.sum = new Float64Array(time.length);
    for (let i = 1; i < time.length; i++) {
      this.sum[i] = this.sum[i - 1] + value[i - 1] * (time[i] - time[i - 1]);
    }
  }

  integral(t) {
    const i = after(this.time, t) - 1;
    return i < 0 ? 0 : this.sum[i] + this.value[i] * (t - this.time[i]);
  }

  mean(from, to) {
    return to > from ? (this.integral(to) - this.integral(from)) / (to - from) : 0;
  }

  at(t) {
    const i = after(this.time, t) - 1;
    return i < 0 ? 0 : this.value[i];
  }

  means([low, high], pixels) {
    const out = new Float32Array(pixels), step = (high - low) / pixels;
    let before = this.integral(low);
    for (let p = 0; p < pixels; p++) {
      const now = this.integral(low + (p + 1) * step);
      out[p] = (now - before) / step;
      before = now;
    }
    return out;
  }

  // From equal bins of means.
  static bins({ width, scale, y }) {
    const values = new Column(y).numbers, time = new Float64Array(values.length + 1);
    for (let i = 0; i < time.length; i++) time[i] = i * width;
    const value = new Float64Array(values.length + 1);
    values.forEach((v, i) => (value[i] = v * scale));
    return new StepSeries(time, value);
  }

  // How many of the spans are under way at each time.
  static count(lists) {
    const size = lists.reduce((sum, spans) => sum + spans.start.length, 0);
    const begins = new Float64Array(size), ends = new Float64Array(size);
    let n = 0;
    for (const spans of lists) {
      for (let i = 0; i < spans.start.length; i++, n++) {
        begins[n] = spans.start[i];
        ends[n] = spans.start[i] + spans.length[i];
      }
    }
    begins.sort();
    ends.sort();
    const time = new Float64Array(2 * size + 1), value = new Float64Array(2 * size + 1);
    for (let a = 0, b = 0, k = 1; k <= 2 * size; k++) {
      const up = a < size && begins[a] < ends[b];
      time[k] = up ? begins[a++] : ends[b++];
      value[k] = a - b;
    }
    return new StepSeries(time, value);
  }
}

// Of points sorted by x: lowest, mean and highest y in every pixel (NaN where there is none).
function perPixel(x, y, [low, high], pixels) {
  const bottom = new Float64Array(pixels).fill(NaN), top = new Float64Array(pixels).fill(NaN);
  const sum = new Float64Array(pixels), count = new Uint32Array(pixels);
  const scale = pixels / (high - low);
  for (let i = after(x, low - 1e-9); i < x.length && x[i] <= high; i++) {
    if (Number.isNaN(y[i])) continue;
    const p = Math.min(pixels - 1, Math.max(0, Math.floor((x[i] - low) * scale)));
    if (!(bottom[p] <= y[i])) bottom[p] = y[i];
    if (!(top[p] >= y[i])) top[p] = y[i];
    sum[p] += y[i];
    count[p]++;
  }
  return { bottom, top, mean: sum.map((s, p) => s / count[p]), count };
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const HATCH = { rollouts: "/", publication: "x", workers: ".", sending: "\\" };

// A fill in a colour with a hatch of the paper's colour, so that it can be told apart in grey.
function hatched(pen, name, hatch) {
  const paper = colour("paper"), fill = colour(name);
  if (!hatch) return fill;
  const size = 8, tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const ink = tile.getContext("2d");
  ink.fillStyle = fill;
  ink.fillRect(0, 0, size, size);
  ink.strokeStyle = ink.fillStyle = paper;
  ink.lineWidth = 1.1;
  ink.beginPath();
  for (const shift of [-size, 0, size]) {
    if (hatch === "/" || hatch === "x") { ink.moveTo(shift, size); ink.lineTo(shift + size, 0); }
    if (hatch === "\\" || hatch === "x") { ink.moveTo(shift, 0); ink.lineTo(shift + size, size); }
  }
  ink.stroke();
  if (hatch === ".") ink.fillRect(3, 3, 2.4, 2.4);
  return pen.createPattern(tile, "repeat");
}

// Bars one pixel wide on a base line; neighbours of one height are one rectangle. `under`: what they stand on.
function bars(pen, left, base, height, values, most, under = null) {
  for (let p = 0; p < values.length; ) {
    const value = values[p], below = under ? under[p] : 0;
    let q = p + 1;
    while (q < values.length && values[q] === value && (!under || under[q] === below)) q++;
    const tall = (height * Math.min(value, most)) / most;
    if (tall > 0) pen.fillRect(left + p, base - (height * below) / most - tall, q - p, tall);
    p = q;
  }
}

const STEPS_S = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
  7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 1728000, 4320000,
];

function niceStep(span, parts) {
  const rough = span / parts, size = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((k) => k * size).find((step) => step >= rough);
}

// Ticks along the bottom; returns nothing. `time`: the axis is in milliseconds.
function axis(pen, chart, y, top, time) {
  const [low, high] = chart.scope.view, parts = Math.max(2, chart.inner / 110);
  const step = time
    ? 1000 * (STEPS_S.find((s) => 1000 * s >= (high - low) / parts) || STEPS_S.at(-1))
    : Math.max(1, niceStep(high - low, parts));
  pen.strokeStyle = colour("line");
  pen.fillStyle = colour("soft");
  pen.textAlign = "center";
  pen.textBaseline = "top";
  pen.lineWidth = 1;
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) {
    const x = chart.left + ((tick - low) / (high - low)) * chart.inner;
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, y + 4);
    pen.stroke();
    const text = time ? clock(tick, step) : many(tick + 0);
    pen.fillText(text, Math.min(x, chart.width - pen.measureText(text).width / 2), y + 6);
  }
}

function label(pen, text, x, y, name = "ink", align = "right") {
  pen.fillStyle = colour(name);
  pen.textAlign = align;
  pen.textBaseline = "middle";
  pen.fillText(text, x, y);
}

// A name that fits into `room` pixels; its middle goes first, for names differ at their ends.
function fitted(pen, text, room) {
  for (let keep = text.length; keep > 4; keep--) {
    const half = keep >> 1;
    const short = keep === text.length ? text : `${text.slice(0, keep - half)}\u2026${text.slice(-half)}`;
    if (pen.measureText(short).width <= room) return short;
  }
  return text.slice(0, 4);
}

// What a legend shows of a series: a fill with its hatch, a ring, or a line with its dashes.
function swatched(pen, name, look) {
  const dashes = { ring: [], dashes: [10, 6], dots: [3, 4], line: [] }[look];
  pen.fillStyle = dashes ? "transparent" : hatched(pen, name, look);
  pen.fillRect(0, 0, 36, 22);
  if (!dashes) return;
  pen.strokeStyle = colour(name);
  pen.lineWidth = 3.4;
  pen.setLineDash(dashes);
  pen.beginPath();
  if (look === "ring") pen.arc(18, 11, 7, 0, 7);
  else { pen.moveTo(0, 11); pen.lineTo(36, 11); }
  pen.stroke();
}

function legend(id, entries) {
  const place = document.getElementById(id);
  place.replaceChildren(
    ...entries.map(([name, hatch, text]) => {
      const item = element("span", "key");
      const swatch = document.createElement("canvas");
      swatch.setAttribute("aria-hidden", "true");
      swatch.width = 36;
      swatch.height = 22;
      const pen = swatch.getContext("2d");
      swatched(pen, name, hatch);
      item.append(swatch, element("span", "", text));
      return item;
    }),
  );
}
