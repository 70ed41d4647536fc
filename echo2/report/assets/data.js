// Data that is in the page: base64 of gzip of JSON, in columns (written by payload.py).

class Column {
  constructor(packed) {
    if (packed.d) {
      this.numbers = Float64Array.from(packed.d);
      for (let i = 1; i < this.numbers.length; i++) this.numbers[i] += this.numbers[i - 1];
    } else if (packed.f) {
      this.numbers = Float64Array.from(packed.f, (value) => (value === null ? NaN : value));
    } else {
      this.texts = packed.s;
      this.index = Uint32Array.from(packed.i);
    }
    this.length = (this.numbers || this.index).length;
  }

  value(i) {
    return this.numbers ? this.numbers[i] : this.texts[this.index[i]];
  }

  text(i) {
    return this.numbers ? shortNumber(this.numbers[i]) : this.texts[this.index[i]];
  }
}

function columns(packed) {
  return Object.fromEntries(Object.entries(packed).map(([name, column]) => [name, new Column(column)]));
}

async function unpack(id) {
  const holder = document.getElementById(id);
  if (!holder) return null;
  const binary = atob(holder.textContent);
  holder.remove();
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function shortNumber(value) {
  if (Number.isNaN(value)) return "";
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(4)));
}

function many(count) {
  return Math.round(count).toLocaleString("en-GB");
}

function share(value) {
  return `${(100 * value).toFixed(1)} %`;
}

// Milliseconds as 1:02:03.4; `step` is the distance that must still be told apart.
function clock(ms, step = 100) {
  const places = step >= 1000 ? 0 : step >= 100 ? 1 : 3;
  const unit = 10 ** (3 - places);
  const all = Math.round(Math.max(0, ms) / unit) * unit;
  const hours = Math.floor(all / 3600000), minutes = Math.floor((all % 3600000) / 60000);
  const seconds = ((all % 60000) / 1000).toFixed(places).padStart(places ? places + 3 : 2, "0");
  return `${hours}:${String(minutes).padStart(2, "0")}:${seconds}`;
}

function duration(ms) {
  for (const [unit, size] of [["days", 86400000], ["h", 3600000], ["min", 60000]]) {
    if (ms >= 2 * size) return `${(ms / size).toFixed(1)} ${unit}`;
  }
  return ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : `${ms.toFixed(0)} ms`;
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
