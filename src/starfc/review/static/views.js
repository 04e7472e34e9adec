// The four views: the wall of people, one cluster, the questions, the history.
import { act, ask, call, change, closeDialog, get, go, make, picture, say, sheet, state } from "./app.js";
import { askName, askPerson } from "./dialogs.js";
import { Grid } from "./grid.js";

const remembered = { sort: "size", search: "", min_size: "", max_size: "", max_confidence: "", named: "", place: 0 };

function drawCard(cluster, faces = 6) {
  const share = Math.round(cluster.confidence * 100);
  const tone = share < 50 ? "low" : share < 80 ? "mid" : "";
  const fill = make("i", { class: tone });
  fill.style.width = `${share}%`;
  const facts = cluster.cohesion === null ? "" : `, cohesion ${cluster.cohesion}`;
  const rows = cluster.faces.slice(0, faces);
  return [
    state.summary.has_images ? make("div", { class: "mini" }, ...rows.map((row) => picture(row))) : sheet(rows),
    make("div", { class: "line" }, make("b", {}, call(cluster)),
      make("span", {}, tone ? make("em", { class: tone }, `${share} % sure`) : null, ` ${cluster.size.toLocaleString("en")}`)),
    make("div", { class: "meter", title: `confidence ${share} %${facts}` }, fill),
  ];
}

export class Wall {
  constructor(main) {
    this.main = main;
    this.keys = {
      Enter: () => this.open(this.grid.at), x: () => this.pick(this.grid.at), " ": () => this.pick(this.grid.at),
      m: () => this.merge(), n: () => this.name(), "/": () => this.search.focus(), Escape: () => this.drop(),
    };
  }

  async start() {
    const choose = (name, options) => make("select", { value: remembered[name], "aria-label": name, onchange: (event) => {
      remembered[name] = event.target.value;
      this.again();
    } }, ...options.map(([value, text]) => make("option", { value, selected: value === remembered[name] }, text)));
    const enter = (name, properties) => make("input", { value: remembered[name], "aria-label": name, ...properties, oninput: (event) => {
      remembered[name] = event.target.value;
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.again(), 200);
    } });
    this.search = enter("search", { type: "search", placeholder: "name or number  ( / )", class: "grow" });
    this.count = make("span", { class: "dim" });
    this.nobody = make("div", { class: "empty", hidden: true }, "Nobody here. ",
      make("button", { onclick: () => this.showAll() }, "Show everybody"));
    this.outside = make("button", { hidden: true, onclick: () => go("cluster", -2), title: "not faces, or in no cluster" });
    this.button = make("button", { class: "main", hidden: true, onclick: () => this.merge() });
    const bar = make("div", { class: "bar" },
      make("label", {}, "sort", choose("sort", [["size", "size"], ["doubt", "doubt"], ["cohesion", "least cohesive"], ["name", "name"], ["label", "number"]])),
      this.search,
      make("label", {}, "faces ≥", enter("min_size", { type: "number", min: 1 }), "≤", enter("max_size", { type: "number", min: 1 })),
      make("label", {}, "confidence", choose("max_confidence", [["", "any"], ["0.9", "< 0.9"], ["0.7", "< 0.7"], ["0.5", "< 0.5"]])),
      make("label", {}, "named", choose("named", [["", "all"], ["yes", "named"], ["no", "unnamed"]])), this.count, this.outside, this.button);
    const scroller = make("div", { class: "scroll", id: "wall", tabIndex: -1 });
    this.main.replaceChildren(bar, this.nobody, scroller);
    const narrow = scroller.clientWidth < 500;
    this.grid = new Grid(scroller, {
      fail: (error) => say(error.message, true),
      width: narrow ? 150 : 190, tall: (wide) => ((wide - 32) * 2) / 3 + 66, page: 60,
      load: async (start, count) => {
        const { place, ...filter } = remembered;
        const found = await get("api/wall", { ...filter, start, count });
        this.count.textContent = `${found.total.toLocaleString("en")} shown`;
        this.nobody.hidden = found.total > 0;
        this.outside.hidden = !state.summary.n_not_faces;
        this.outside.textContent = `${state.summary.n_not_faces.toLocaleString("en")} left out`;
        return { total: found.total, items: found.clusters };
      },
      draw: (cluster, cell, index) => cell.append(make("div", { class: "card", "data-label": cluster.label, onclick: (event) => {
        this.grid.at = index;
        if (event.shiftKey || event.target.matches(".pick")) this.pick(index);
        else this.open(index);
      } }, make("button", { class: "pick", tabIndex: -1, title: "select (x)" }, "✓"), ...drawCard(cluster))),
    });
    this.grid.keyOf = (cluster) => cluster.label;
    await this.grid.start();
    this.grid.scroller.scrollTop = remembered.place;
    scroller.focus({ preventScroll: true });
  }

  stop() {
    remembered.place = this.grid.scroller.scrollTop;
    this.grid.stop();
  }

  showAll() {
    Object.assign(remembered, { search: "", min_size: "", max_size: "", max_confidence: "", named: "", place: 0 });
    this.stop();
    return this.start().catch((error) => say(error.message, true));
  }

  again() {
    this.grid.scroller.scrollTop = 0;
    this.grid.at = 0;
    this.grid.start().catch((error) => say(error.message, true));
  }

  refresh() {
    this.drop();
    return this.grid.refresh();
  }

  open(index) {
    const cluster = this.grid.item(index);
    if (cluster) go("cluster", cluster.label);
  }

  pick(index) {
    this.grid.focused = true;
    this.grid.toggle(index);
    const count = this.grid.chosen.size;
    this.button.hidden = count < 2;
    this.button.textContent = `Merge ${count} (m)`;
  }

  drop() {
    this.grid.chosen.clear();
    this.button.hidden = true;
    this.grid.paint();
  }

  merge() {
    if (this.grid.chosen.size < 2) return say("select two people or more first (x)", true);
    return change("merge", { labels: [...this.grid.chosen] });
  }

  name() {
    const cluster = this.grid.item(this.grid.at);
    if (cluster) askName(cluster, (name) => change("name", { label: cluster.label, name }));
  }
}

export class Cluster {
  constructor(main, label) {
    this.main = main;
    this.label = Number(label);
    this.outliers = false;
    this.keys = {
      x: () => this.pick(this.grid.at), " ": () => this.pick(this.grid.at), o: () => this.turn(), s: () => this.split(),
      p: () => this.move(null), d: () => this.reject(), a: () => this.all(), n: () => this.field?.select(),
      m: () => this.near[0] && this.merge(this.near[0].label), g: () => this.give(), Escape: () => this.leave(), Backspace: () => go("wall"),
    };
  }

  async start() {
    const body = make("div", { class: "split" });
    this.head = make("div", { class: "title" });
    this.bar = make("div", { class: "bar" });
    const scroller = make("div", { class: "scroll", id: "faces", tabIndex: -1 });
    this.side = make("aside", { class: "side" });
    body.append(make("div", { class: "left" }, this.head, this.bar, scroller), this.side);
    this.main.replaceChildren(body);
    const narrow = scroller.clientWidth < 500;
    this.grid = new Grid(scroller, {
      fail: (error) => say(error.message, true),
      width: narrow ? 84 : 116, tall: (wide) => wide, page: 120,
      load: async (start, count) => {
        const found = await get(`api/cluster/${this.label}`, { start, count, outliers: this.outliers ? 1 : 0 });
        if (!found.size) throw new Error("nobody is left out");
        if (start === 0) this.show(found);
        return { total: found.size, items: found.page };
      },
      draw: (face, cell, index) => cell.append(make("div", { class: "tile", "data-row": face.row,
        title: `face ${face.row}, closeness ${face.closeness}, confidence ${face.confidence}`,
        onclick: (event) => this.pick(index, event.shiftKey) }, picture(face.row, 160), make("span", {}, face.closeness.toFixed(2)))),
    });
    this.grid.keyOf = (face) => face.row;
    await this.grid.start();
    scroller.focus({ preventScroll: true });
  }

  stop() {
    this.grid?.stop();
  }

  show(found) {
    this.found = found;
    this.near = found.near;
    const real = found.label >= 0, name = found.name || "";
    const facts = [`${found.size} face${found.size === 1 ? "" : "s"}`];
    if (real && found.cohesion !== null) facts.push(`cohesion ${found.cohesion.toFixed(2)}`);
    if (real) facts.push(`confidence ${found.confidence.toFixed(2)}`);
    // Who is typing a name must not have the field taken away.
    if (!this.field || this.field !== document.activeElement) {
      this.field = real ? make("input", { value: name, placeholder: call(found), "aria-label": "name", maxLength: 200,
        onchange: () => this.field.value.trim() !== this.field.before && change("name", { label: this.label, name: this.field.value }) }) : null;
      this.facts = make("span", { class: "dim" });
      this.head.replaceChildren(make("button", { onclick: () => go("wall"), title: "back (Esc)" }, "←"),
        this.field ?? make("b", {}, "Left out: not faces, or in no cluster"), this.facts);
    }
    if (this.field) this.field.before = name;
    this.facts.textContent = facts.join(" · ");
    this.drawBar();
    this.side.replaceChildren(make("h2", {}, "Nearest people"), ...found.near.map((other) => this.drawNear(other)));
    if (!found.near.length) this.side.append(make("p", {}, "none"));
  }

  drawBar() {
    const count = this.grid?.chosen.size ?? 0;
    const button = (text, act, properties = {}) => make("button", { onclick: act, ...properties }, text);
    const some = { disabled: !count };
    this.bar.replaceChildren(
      button(this.outliers ? "Outliers first ✓" : "Outliers first", () => this.turn(), { title: "o" }),
      button("Split …", () => this.split(), { title: "s", disabled: this.found.label < 0 || this.found.size < 2 }),
      button(`New person${count ? ` (${count})` : ""}`, () => this.move(null), { title: "p", ...some }),
      button(count ? `Move (${count}) to …` : "Merge with …", () => this.give(), { title: "g", disabled: this.found.label < 0 && !count }),
      button("Not a face", () => this.reject(), { title: "d", ...some, hidden: this.found.label < 0 }),
      button(`Each a person (${count || "all"})`, () => change("apart", { faces: count ? [...this.grid.chosen] : null }),
        { hidden: this.found.label >= 0, title: "every one of these faces is somebody of their own" }),
      make("span", { class: "dim" }, count ? `${count} selected` : "click or x to select"));
    for (const other of this.side?.querySelectorAll("button.here") ?? []) other.disabled = !count;
  }

  drawNear(other) {
    const count = this.grid?.chosen.size ?? 0;
    return make("div", { class: "near", "data-label": other.label },
      make("div", { class: "mini", onclick: () => go("cluster", other.label) }, ...other.faces.map((row) => picture(row, 64))),
      make("div", { class: "line" }, make("b", {}, call(other)), make("span", {}, `${other.size} · cosine ${other.link.toFixed(2)}`)),
      make("div", { class: "row" }, make("button", { onclick: () => this.merge(other.label) }, "Merge"),
        make("button", { class: "here", disabled: !count, onclick: () => this.move(other.label) }, "Move selected here")));
  }

  async refresh(done) {
    this.grid.chosen.clear();
    try {
      await this.grid.refresh();
    } catch {
      const left = (done?.changed ?? []).find((label) => label >= 0 && label !== this.label);
      if (left === undefined) go("wall");
      else go("cluster", left);
    }
  }

  pick(index, range = false) {
    const from = this.grid.at;
    this.grid.at = index;
    this.grid.focused = true;
    if (range)
      for (let place = Math.min(from, index); place <= Math.max(from, index); place++) {
        const item = this.grid.item(place);
        if (item) this.grid.chosen.add(item.row);
      }
    else this.grid.toggle(index);
    this.grid.paint();
    this.drawBar();
  }

  all() {
    for (const index of this.grid.cells.keys()) {
      const item = this.grid.item(index);
      if (item) this.grid.chosen.add(item.row);
    }
    this.grid.paint();
    this.drawBar();
  }

  turn() {
    this.outliers = !this.outliers;
    this.grid.scroller.scrollTop = 0;
    return this.grid.start();
  }

  chosen() {
    if (!this.grid.chosen.size) say("select faces first (x)", true);
    return [...this.grid.chosen];
  }

  move(label) {
    const faces = this.chosen();
    return faces.length ? change("move", { faces, label }) : null;
  }

  reject() {
    const faces = this.chosen();
    return faces.length ? change("not_face", { faces }) : null;
  }

  merge(label) {
    return change("merge", { labels: [this.label, label] });
  }

  // The selected faces, or all of them, belong to someone who need not be near.
  give() {
    const count = this.grid.chosen.size;
    if (count) askPerson(`Move ${count} face${count === 1 ? "" : "s"} to`, "moves to", this.near, (label) => this.move(label));
    else if (this.label >= 0) askPerson(`Merge ${call(this.found)} with`, "merges with", this.near, (label) => this.merge(label));
  }

  leave() {
    if (!this.grid.chosen.size) return go("wall");
    this.grid.chosen.clear();
    this.grid.paint();
    this.drawBar();
  }

  async split(parts = 2) {
    if (this.found.label < 0 || this.found.size < 2) return;
    let found;
    try {
      found = (await get(`api/split/${this.label}`, { parts })).parts;
    } catch (error) {
      return say(error.message, true);
    }
    const most = Math.min(12, this.found.size);
    const less = make("button", { disabled: parts <= 2, onclick: () => this.split(parts - 1) }, "− looser");
    const more = make("button", { disabled: parts >= most, onclick: () => this.split(parts + 1) }, "+ stricter");
    const apply = make("button", { class: "main", onclick: async () => {
      closeDialog();
      await change("split", { label: this.label, parts });
    } }, `Split into ${found.length}`);
    ask(`Split ${call(this.found)}`, ...found.map((part) => make("div", { class: "part" },
      make("div", { class: "line" }, make("b", {}, `${part.size} face${part.size === 1 ? "" : "s"}`)),
      make("div", { class: "mini" }, ...part.faces.map((row) => picture(row, 64))))),
      make("div", { class: "row" }, less, more, apply, make("button", { onclick: closeDialog }, "Cancel")));
    apply.focus();
  }
}

export class Questions {
  constructor(main) {
    this.main = main;
    this.answered = 0;
    this.keys = { y: () => this.answer(true), n: () => this.answer(false), s: () => this.skip() };
  }

  async start() {
    this.stage = make("div", { class: "ask", id: "questions" });
    this.main.replaceChildren(this.stage);
    await this.next();
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.waiting);
  }

  refresh() {
    return this.next();
  }

  async next() {
    const found = await get("api/questions", { count: 2 }).catch((error) => ({ failed: error.message }));
    if (this.stopped) return;
    if (found.failed) {
      this.question = null;
      this.stage.replaceChildren(make("div", { class: "empty" }, found.failed));
      return;
    }
    if (!found.ready) {
      this.stage.replaceChildren(make("div", { class: "empty" }, "Looking for doubtful pairs …"));
      this.waiting = setTimeout(() => this.next().catch((error) => say(error.message, true)), 500);
      return;
    }
    this.question = found.questions[0];
    if (!this.question) {
      this.stage.replaceChildren(make("div", { class: "empty" }, "No more questions."));
      return;
    }
    const { joined, link, probability, sides } = this.question;
    const half = (side, place) => make("div", { class: "half" },
      make("div", { class: "line" }, make("b", {}, joined ? ["one part", "another part"][place] : call(side)),
        make("span", {}, `${side.size} face${side.size === 1 ? "" : "s"}`)),
      make("div", { class: "faces" }, ...side.faces.map((row) => picture(row, 160))));
    const button = (kind, text, key, act) => make("button", { class: kind, onclick: act }, text, " ", make("kbd", {}, key));
    this.stage.replaceChildren(make("h1", {}, "Same person?"),
      make("p", {}, joined ? `Both are in ${call(sides[0])} now; “no” splits it.` : "Two people now; “yes” merges them.",
        ` Guess: ${Math.round(probability * 100)} % the same. Mean cosine ${link.toFixed(2)}.`),
      make("div", { class: "pair" }, half(sides[0], 0), half(sides[1], 1)),
      make("div", { class: "keys" }, button("yes", "Yes", "y", () => this.answer(true)),
        button("no", "No", "n", () => this.answer(false)), button("", "Skip", "s", () => this.skip())),
      make("p", {}, this.answered ? `${this.answered} answered since you came; u takes the last back` : "what would change most comes first"));
    this.busy = false;
    for (const row of found.questions[1]?.sides.flatMap((side) => side.faces) ?? []) new Image().src = `face/${row}?size=160`;
  }

  async answer(same) {
    if (this.busy || !this.question) return;
    this.busy = true; // one answer per question, however fast the key repeats
    const done = await act("answer", { pair: this.question.pair, same });
    if (done) this.answered += 1;
    await this.next();
  }

  async skip() {
    if (this.busy || !this.question) return;
    this.busy = true;
    await act("skip", { pair: this.question.pair }, { quiet: true });
    await this.next();
  }
}

export class History {
  constructor(main) {
    this.main = main;
  }

  async start() {
    this.list = make("div", { class: "list", id: "history" });
    this.main.replaceChildren(this.list);
    await this.refresh();
  }

  async refresh() {
    const { actions } = await get("api/history", { count: 200 });
    this.list.replaceChildren(...actions.map((action) => make("div", { class: action.undone ? "undone" : "" },
      make("time", {}, new Date(action.at).toLocaleString("sv")), make("span", {}, action.title))));
    if (!actions.length) this.list.append(make("div", { class: "empty" }, "Nothing was changed yet."));
    const { n_not_faces } = state.summary;
    if (n_not_faces) this.list.prepend(make("button", { onclick: () => go("cluster", -2) }, `Show the ${n_not_faces.toLocaleString("en")} left out`));
  }
}
