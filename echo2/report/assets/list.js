// A table of any length: only the rows in view are in the document. Sorted by its heads, moved by keys.

const ROW = 28;
const TALLEST = 8000000; // browsers draw nothing beyond some 16 million pixels

class List {
  // columns: {title, hint, width, cell(row) -> text, key(row) -> number or text, number, press(row)}
  constructor(place, name, columns, opened) {
    Object.assign(this, { columns, opened, order: new Uint32Array(0), active: 0, sorted: null });
    place.setAttribute("role", "grid");
    place.setAttribute("aria-label", name);
    place.style.setProperty("--columns", columns.map((c) => c.width).join(" "));
    this.place = place;
    this.head = element("div", "list-row list-head");
    this.head.setAttribute("role", "row");
    columns.forEach((column, i) => this.head.append(this.headCell(column, i)));
    this.body = element("div", "list-body");
    this.body.tabIndex = 0;
    this.body.setAttribute("role", "rowgroup");
    this.body.setAttribute("aria-label", `rows of ${name}`);
    this.room = element("div", "list-room");
    this.body.append(this.room);
    place.append(this.head, this.body);
    this.body.addEventListener("scroll", () => this.paint());
    this.body.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(this.body);
  }

  headCell(column, i) {
    const cell = element("span", column.number ? "n" : "");
    cell.setAttribute("role", "columnheader");
    const button = element("button", "sort", column.title);
    button.type = "button";
    if (column.hint) button.title = column.hint;
    button.addEventListener("click", () => {
      const up = !(this.sorted && this.sorted.column === i && this.sorted.up);
      for (const other of this.head.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      this.sorted = { column: i, up };
      this.show(this.order);
    });
    cell.append(button);
    return cell;
  }

  show(order) {
    this.order = this.sorted ? this.sort(order) : order;
    this.place.setAttribute("aria-rowcount", order.length + 1);
    this.room.style.height = `${Math.min(order.length * ROW, TALLEST)}px`;
    this.active = Math.min(this.active, Math.max(0, order.length - 1));
    this.paint();
  }

  sort(order) {
    const { column, up } = this.sorted, { key } = this.columns[column];
    const keys = new Map();
    for (const row of order) keys.set(row, key(row));
    const compare = (a, b) => {
      const x = keys.get(a), y = keys.get(b);
      if (typeof x === "string" || typeof y === "string") return String(x).localeCompare(String(y));
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return x - y;
    };
    return Uint32Array.from(order).sort((a, b) => (up ? compare(a, b) : compare(b, a)) || a - b);
  }

  get fits() {
    return Math.max(1, Math.floor(this.body.clientHeight / ROW));
  }

  // Which row is at the top of the view; where the room is shorter than the rows, in proportion.
  get first() {
    const all = this.order.length * ROW, { scrollTop, clientHeight } = this.body;
    if (all <= TALLEST) return Math.floor(scrollTop / ROW);
    return Math.floor((scrollTop / (TALLEST - clientHeight)) * (this.order.length - this.fits));
  }

  reveal(i) {
    const all = this.order.length * ROW, { clientHeight } = this.body;
    if (i >= this.first && i < this.first + this.fits) return;
    const to = i < this.first ? i : i - this.fits + 1;
    this.body.scrollTop = all <= TALLEST
      ? to * ROW + (i < this.first ? 0 : ROW - 1)
      : Math.ceil((to / (this.order.length - this.fits)) * (TALLEST - clientHeight));
  }

  paint() {
    const first = this.first, last = Math.min(this.order.length, first + this.fits + 2), rows = [];
    const shift = this.order.length * ROW <= TALLEST ? first * ROW : this.body.scrollTop;
    for (let i = first; i < last; i++) {
      const row = this.row(i);
      row.style.top = `${shift + (i - first) * ROW}px`;
      rows.push(row);
    }
    this.room.replaceChildren(...rows);
  }

  row(i) {
    const made = element("div", i === this.active ? "list-row active" : "list-row"), data = this.order[i];
    made.setAttribute("role", "row");
    made.setAttribute("aria-rowindex", i + 2);
    made.setAttribute("aria-selected", i === this.active);
    for (const column of this.columns) {
      const cell = element("span", column.number ? "n" : "");
      cell.setAttribute("role", "gridcell");
      if (column.press) {
        const button = element("button", "link", column.cell(data));
        button.type = "button";
        button.tabIndex = -1;
        button.addEventListener("click", () => column.press(data));
        cell.append(button);
      } else {
        cell.textContent = column.cell(data);
      }
      made.append(cell);
    }
    made.addEventListener("click", () => this.choose(i));
    return made;
  }

  choose(i) {
    if (!this.order.length) return;
    this.active = Math.max(0, Math.min(this.order.length - 1, i));
    this.reveal(this.active);
    this.paint();
    if (this.opened) this.opened(this.order[this.active]);
  }

  key(event) {
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: this.fits, PageUp: -this.fits, Home: -1e12, End: 1e12 }[event.key];
    if (event.key === "Enter") {
      const column = this.columns.find((c) => c.press);
      if (column && this.order.length) column.press(this.order[this.active]);
    } else if (move === undefined) {
      return;
    } else {
      this.choose(this.active + move);
    }
    event.preventDefault();
  }
}
