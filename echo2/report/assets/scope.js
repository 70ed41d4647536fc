// The part of an axis that is in view, shared by the charts drawn over it, and the hands that move it.

class Scope {
  constructor(low, high, least) {
    this.full = [low, Math.max(high, low + least)];
    this.least = least;
    this.view = this.full.slice();
    this.listeners = [];
  }

  set(low, high) {
    const [first, last] = this.full;
    const width = Math.min(Math.max(high - low, this.least), last - first);
    const middle = (low + high) / 2;
    const from = Math.min(Math.max(middle - width / 2, first), last - width);
    this.view = [from, from + width];
    this.listeners.forEach((tell) => tell());
  }

  zoom(factor, at) {
    const [low, high] = this.view;
    this.set(at - (at - low) / factor, at + (high - at) / factor);
  }

  pan(part) {
    const move = part * (this.view[1] - this.view[0]);
    this.set(this.view[0] + move, this.view[1] + move);
  }

  act(name, at = (this.view[0] + this.view[1]) / 2) {
    if (name === "in") this.zoom(1.6, at);
    else if (name === "out") this.zoom(1 / 1.6, at);
    else if (name === "left") this.pan(-0.25);
    else if (name === "right") this.pan(0.25);
    else if (name === "all") this.set(...this.full);
  }
}

const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all", 0: "all" };
const tip = element("div", "tip");
tip.setAttribute("aria-hidden", "true");

// A canvas over a scope: sharp on every screen, moved by mouse, touch and keys. `told(x, y)` is what the tip says.
class Chart {
  constructor(canvas, scope, height, draw, told) {
    Object.assign(this, { canvas, scope, height, draw, told, left: 118, right: 30, waiting: false });
    scope.listeners.push(() => this.redraw());
    new ResizeObserver(() => this.redraw()).observe(canvas.parentElement);
    this.listen();
    document.querySelectorAll(`.bar[data-for="${canvas.id}"] button`).forEach((button) => {
      button.addEventListener("click", () => scope.act(button.dataset.zoom));
    });
  }

  get inner() {
    return Math.max(40, this.width - this.left - this.right);
  }

  at(x) {
    const [low, high] = this.scope.view;
    return low + ((x - this.left) / this.inner) * (high - low);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.waiting = false;
    const dense = window.devicePixelRatio || 1, height = this.height();
    this.width = this.canvas.parentElement.clientWidth;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(this.width * dense);
    this.canvas.height = Math.round(height * dense);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    this.draw(pen, this);
  }

  listen() {
    const { canvas, scope } = this;
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = event.clientX;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => (from = null));
    canvas.addEventListener("pointercancel", () => (from = null));
    canvas.addEventListener("pointermove", (event) => {
      if (from !== null && event.clientX !== from) {
        scope.pan((from - event.clientX) / this.inner);
        from = event.clientX;
      }
      this.tell(event);
    });
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    canvas.addEventListener("dblclick", (event) => scope.zoom(3, this.at(event.offsetX)));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      scope.act(KEYS[event.key]);
    });
  }

  // The wheel zooms where the reader has shown that it is meant for the chart; else it moves the page.
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.scope.pan((event.deltaX || event.deltaY) / 800);
    } else {
      this.scope.zoom(Math.exp(-event.deltaY / 400), this.at(event.offsetX));
    }
  }

  tell(event) {
    const inside = event.offsetX >= this.left && event.offsetX <= this.left + this.inner;
    const text = inside && this.told ? this.told(this.at(event.offsetX), event.offsetY) : "";
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
  }
}
