// A grid that shows any number of cells by drawing only those in sight and fetching them page by page.
const TALLEST = 15e6; // browsers give up on taller elements; beyond it a pixel of scrolling skips rows

export class Grid {
  // load(start, count) -> {total, items}; draw(item, cell) fills an empty cell; tall(width) is a cell's height;
  // fail(error) is told when a page does not come.
  constructor(scroller, { width, tall, page, load, draw, fail = () => {} }) {
    Object.assign(this, { scroller, width, page, load, draw, fail, heightFor: tall, height: tall(width) });
    this.sizer = document.createElement("div");
    this.sizer.className = "sizer";
    scroller.replaceChildren(this.sizer);
    this.cells = new Map();
    this.at = 0;
    this.total = 0;
    this.chosen = new Set();
    this.keyOf = (item) => item;
    this.onScroll = () => requestAnimationFrame(() => this.paint());
    scroller.addEventListener("scroll", this.onScroll, { passive: true });
    this.watcher = new ResizeObserver(() => this.layout());
    this.watcher.observe(scroller);
  }

  async start() {
    this.pages = new Map();
    this.clear();
    await this.fetch(0);
    this.layout();
  }

  // Load what is in sight again and keep the place: clusters have changed.
  async refresh() {
    const first = Math.floor(this.firstRow() * this.columns() / this.page);
    const old = this.pages;
    this.pages = new Map();
    try {
      await Promise.all([first, first + 1].map((number) => this.fetch(number)));
    } catch (error) {
      this.pages = old;
      throw error;
    }
    this.at = Math.max(0, Math.min(this.at, this.total - 1));
    this.clear();
    this.layout();
  }

  stop() {
    this.watcher.disconnect();
    this.scroller.removeEventListener("scroll", this.onScroll);
  }

  clear() {
    for (const cell of this.cells.values()) cell.remove();
    this.cells.clear();
  }

  columns() {
    return Math.max(1, Math.floor(this.sizer.clientWidth / this.width));
  }

  layout() {
    this.height = Math.round(this.heightFor(this.sizer.clientWidth / this.columns()));
    const rows = Math.ceil(this.total / this.columns());
    this.tall = rows * this.height;
    this.sizer.style.height = `${Math.min(this.tall, TALLEST)}px`;
    this.paint(true);
  }

  scale() {
    const room = Math.max(1, this.sizer.clientHeight - this.scroller.clientHeight);
    return this.tall > TALLEST ? (this.tall - this.scroller.clientHeight) / room : 1;
  }

  firstRow() {
    return Math.floor((this.scroller.scrollTop * this.scale()) / this.height);
  }

  paint(all = false) {
    const columns = this.columns(), first = Math.max(0, this.firstRow() - 1);
    const rows = Math.ceil(this.scroller.clientHeight / this.height) + 2;
    const begin = first * columns, end = Math.min(this.total, (first + rows) * columns);
    for (const [index, cell] of this.cells)
      if (all || index < begin || index >= end) { cell.remove(); this.cells.delete(index); }
    const shift = this.scroller.scrollTop - this.scroller.scrollTop * this.scale();
    const wide = this.sizer.clientWidth / columns;
    for (let index = begin; index < end; index++) {
      let cell = this.cells.get(index);
      const item = this.item(index);
      if (!cell) {
        cell = document.createElement("div");
        cell.className = "cell";
        this.sizer.append(cell);
        this.cells.set(index, cell);
      }
      cell.style.cssText = `left:${(index % columns) * wide}px;width:${wide}px;height:${this.height}px;` +
        `top:${Math.floor(index / columns) * this.height + shift}px`;
      if (item !== undefined && !cell.firstChild) this.draw(item, cell, index);
      cell.classList.toggle("at", Boolean(this.focused) && index === this.at);
      cell.classList.toggle("chosen", item !== undefined && this.chosen.has(this.keyOf(item)));
    }
    for (let number = Math.floor(begin / this.page); number <= Math.floor(Math.max(begin, end - 1) / this.page); number++)
      this.fetch(number).catch(this.fail);
  }

  item(index) {
    const page = this.pages?.get(Math.floor(index / this.page));
    return Array.isArray(page) ? page[index % this.page] : undefined;
  }

  async fetch(number) {
    if (this.pages.has(number)) return this.pages.get(number);
    const pages = this.pages;
    const wait = this.load(number * this.page, this.page).then(({ total, items }) => {
      pages.set(number, items);
      if (pages !== this.pages) return;
      const grown = this.total !== total;
      this.total = total;
      if (grown) this.layout(); else this.paint();
    });
    pages.set(number, wait);
    wait.catch(() => pages.delete(number));
    return wait;
  }

  move(step) {
    this.focused = true;
    this.at = Math.max(0, Math.min(this.total - 1, this.at + step));
    const top = Math.floor(this.at / this.columns()) * this.height, seen = this.scroller.scrollTop * this.scale();
    if (top < seen) this.scroller.scrollTop = top / this.scale();
    else if (top + this.height > seen + this.scroller.clientHeight)
      this.scroller.scrollTop = (top + this.height - this.scroller.clientHeight) / this.scale();
    this.paint();
  }

  toggle(index) {
    const item = this.item(index);
    if (item === undefined) return;
    const key = this.keyOf(item);
    if (!this.chosen.delete(key)) this.chosen.add(key);
    this.paint();
  }

  // Arrow keys, Home and End; true if the key was one of them.
  steer(key) {
    const columns = this.columns();
    const page = columns * Math.max(1, Math.floor(this.scroller.clientHeight / this.height));
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: page, PageUp: -page,
      Home: -this.total, End: this.total }[key];
    if (step === undefined) return false;
    this.move(this.focused || key === "Home" || key === "End" ? step : 0);
    return true;
  }
}
