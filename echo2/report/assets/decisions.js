// Search over all decisions. A word is looked up once in every list of texts, not once in every row.

const SLICE = 60000;

class Decisions {
  constructor(data) {
    this.kinds = data.kinds.map((kind) => ({
      name: kind.kind,
      t: new Column(kind.t),
      reason: new Column(kind.reason),
      bound: new Column(kind.bound),
      fields: kind.fields.map(([name, column]) => [name, new Column(column)]),
    }));
    const order = new Column(data.order), places = new Map(this.kinds.map((kind, k) => [kind.name, k]));
    this.length = order.length;
    this.kind = new Uint16Array(this.length);
    this.local = new Uint32Array(this.length);
    const kindOf = (order.texts || []).map((name) => places.get(name)), seen = this.kinds.map(() => 0);
    for (let i = 0; i < this.length; i++) {
      const k = kindOf[order.index[i]];
      this.kind[i] = k;
      this.local[i] = seen[k]++;
    }
  }

  of(i) {
    return [this.kinds[this.kind[i]], this.local[i]];
  }

  time(i) {
    const [kind, j] = this.of(i);
    return kind.t.numbers[j];
  }

  what(i) {
    const [kind, j] = this.of(i);
    return kind.fields.map(([name, column]) => [name, column.text(j)]).filter(([, text]) => text !== "")
      .map((pair) => pair.join(" ")).join(", ");
  }

  reason(i) {
    const [kind, j] = this.of(i);
    return kind.reason.text(j);
  }

  bound(i) {
    const [kind, j] = this.of(i);
    return kind.bound.text(j);
  }

  // For each kind: null where every row has the word, else the columns that may have it, as tests of a row.
  tests(word) {
    return this.kinds.map((kind) => {
      const heads = [kind.name, ...kind.fields.map(([name]) => name)];
      if (heads.some((head) => head.toLowerCase().includes(word))) return null;
      const all = [kind.reason, kind.bound, ...kind.fields.map(([, column]) => column)];
      return all.map((column) => columnTest(column, word)).filter(Boolean);
    });
  }

  // All rows of the chosen kinds in which every word occurs; gives the page a turn between slices.
  async find(words, kinds, stopped) {
    const tests = words.map((word) => this.tests(word)), hits = new Uint32Array(this.length);
    let count = 0;
    for (let from = 0; from < this.length; from += SLICE) {
      const to = Math.min(this.length, from + SLICE);
      for (let i = from; i < to; i++) {
        const k = this.kind[i], j = this.local[i];
        if (!kinds[k]) continue;
        if (tests.every((test) => test[k] === null || test[k].some((has) => has(j)))) hits[count++] = i;
      }
      if (to < this.length) await new Promise((resume) => setTimeout(resume, 0));
      if (stopped()) return null;
    }
    return hits.slice(0, count);
  }
}

function columnTest(column, word) {
  if (column.numbers) {
    return /[0-9]/.test(word) ? (j) => column.text(j).includes(word) : null;
  }
  const has = column.texts.map((text) => text.toLowerCase().includes(word));
  return has.some(Boolean) ? (j) => has[column.index[j]] : null;
}

class DecisionView {
  constructor(decisions, jump) {
    this.decisions = decisions;
    this.turn = 0;
    const d = decisions, whole = document.getElementById("decision-whole");
    this.list = new List(document.getElementById("decision-list"), "decisions", [
      { title: "time", width: "7rem", number: true, cell: (i) => clock(d.time(i)), key: (i) => d.time(i), press: (i) => jump(d.time(i)) },
      { title: "decision", width: "9rem", cell: (i) => d.of(i)[0].name, key: (i) => d.of(i)[0].name },
      { title: "what", width: "minmax(14rem, 3fr)", cell: (i) => d.what(i), key: (i) => d.what(i) },
      { title: "reason", width: "minmax(14rem, 4fr)", cell: (i) => d.reason(i), key: (i) => d.reason(i) },
      { title: "bound", width: "6rem", number: true, cell: (i) => d.bound(i), key: (i) => d.of(i)[0].bound.value(d.of(i)[1]) },
    ], (i) => {
      whole.textContent = `${clock(d.time(i), 1)} ${d.of(i)[0].name}: ${d.what(i)}. Reason: ${d.reason(i)}.` +
        (d.bound(i) ? ` Bound: ${d.bound(i)}.` : "");
    });
    this.input = document.getElementById("find");
    this.boxes = Array.from(document.querySelectorAll(".kinds input"));
    this.input.addEventListener("input", () => this.search());
    this.boxes.forEach((box) => box.addEventListener("change", () => this.search()));
    document.querySelectorAll(".kinds button").forEach((button) => {
      button.addEventListener("click", () => this.pick(button.dataset.kinds));
    });
  }

  pick(which) {
    const sizes = new Map(this.decisions.kinds.map((kind) => [kind.name, kind.t.length]));
    const rare = Math.max(200, this.decisions.length / 50);
    for (const box of this.boxes) {
      box.checked = which === "all" || (which === "rare" && sizes.get(box.dataset.kind) <= rare);
    }
    this.search();
  }

  async search() {
    const turn = ++this.turn, words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set(this.boxes.filter((box) => box.checked).map((box) => box.dataset.kind));
    const kinds = this.decisions.kinds.map((kind) => wanted.has(kind.name));
    const hits = await this.decisions.find(words, kinds, () => turn !== this.turn);
    if (hits === null) return;
    this.list.body.scrollTop = 0;
    this.list.show(hits);
    document.getElementById("found").textContent = `${many(hits.length)} of ${many(this.decisions.length)} found`;
  }
}
