// The page's frame: talking to the server, undo and redo, dialogs, keys. What is in the middle is in views.js.
import { Wall, Cluster, Questions, History } from "./views.js";

export const state = { summary: null, view: null };
const GONE = "The server has stopped. Nothing is lost: run the same starfc review command again and open the address it prints.";
const OLD = "This tab is of an earlier starfc review. Nothing is lost: open the address that the running one printed.";
const dialog = document.getElementById("dialog");

// An element with properties and children; text is always text, never markup.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const picture = (row, size = 96) =>
  make("img", { src: `face/${row}?size=${size}`, alt: `face ${row}`, loading: "lazy", decoding: "async", draggable: false });

// Several avatars as one picture, which browsers draw far sooner.
export const sheet = (rows) =>
  make("img", { class: "sheet", src: `faces/${rows.join(",")}`, alt: `faces ${rows.join(", ")}`, decoding: "async", draggable: false });

export const call = (cluster) => cluster.name || (cluster.label < 0 ? "left out" : `person ${cluster.label}`);

// Ask the server; whatever goes wrong becomes an error that says what to do.
async function send(path, options) {
  const answer = await fetch(path, options).catch(() => { throw new Error(GONE); });
  if (answer.status === 403) throw new Error(OLD);
  const content = await answer.json().catch(() => ({ error: "the server failed; its terminal says more" }));
  if (!answer.ok) throw new Error(content.error);
  if (lasting) hush();
  return content;
}

export function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return send(`${path}?${new URLSearchParams(given)}`);
}

// Make a correction. If no answer comes the same request is sent again: its id keeps it from counting twice.
export async function act(kind, details = {}, { quiet = false } = {}) {
  const body = JSON.stringify({ ...details, kind, request: crypto.randomUUID() });
  const post = () => send("api/do", { method: "POST", headers: { "content-type": "application/json" }, body });
  try {
    const content = await post().catch((error) => {
      if (error.message !== GONE) throw error;
      return new Promise((done) => setTimeout(done, 800)).then(post);
    });
    showSummary(content.summary);
    if (!quiet) say(content.title);
    return content;
  } catch (error) {
    say(error.message, true);
    return null;
  }
}

// A correction after which whatever is in sight may be different.
export async function change(kind, details = {}) {
  const done = await act(kind, details);
  if (done) await state.view.refresh(done);
  return done;
}

let hide, lasting = false;
export function say(text, bad = false) {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.className = bad ? "on bad" : "on";
  clearTimeout(hide);
  lasting = text === GONE || text === OLD; // stays until the server answers again
  if (!lasting) hide = setTimeout(hush, bad ? 6000 : 2500);
}

function hush() {
  lasting = false;
  document.getElementById("toast").className = "";
}

export function ask(title, ...content) {
  dialog.replaceChildren(make("h2", {}, title), ...content);
  if (!dialog.open) dialog.showModal();
}
export const closeDialog = () => dialog.open && dialog.close();

export function showSummary(summary) {
  state.summary = summary;
  const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
  const parts = [count(summary.n_faces, "face", "faces"), count(summary.n_clusters, "person", "people")];
  if (summary.n_named) parts.push(`${summary.n_named} named`);
  if (summary.n_not_faces) parts.push(`${summary.n_not_faces.toLocaleString("en")} left out`);
  document.getElementById("summary").textContent = parts.join(" · ");
  document.getElementById("undo").disabled = !summary.can_undo;
  document.getElementById("redo").disabled = !summary.can_redo;
}

const VIEWS = { wall: Wall, cluster: Cluster, questions: Questions, history: History };

// The address after # is the view, so that reloading and the back button work: #wall, #cluster/12, #questions, #history.
export function go(view, argument) {
  location.hash = argument === undefined ? view : `${view}/${argument}`;
}

async function route() {
  const [name, argument] = location.hash.slice(1).split("/");
  const kind = VIEWS[name] ? name : "wall";
  state.view?.stop?.();
  closeDialog();
  for (const button of document.querySelectorAll("nav button"))
    button.toggleAttribute("aria-current", button.dataset.view === (kind === "cluster" ? "wall" : kind));
  state.view = new VIEWS[kind](document.getElementById("main"), argument);
  try {
    await state.view.start();
  } catch (error) {
    say(error.message, true);
    if (kind !== "wall" && !lasting) go("wall");
  }
}

function askStrictness() {
  const { tau1, level, floor, n_clusters } = state.summary;
  // The browser rounds a slider to whole steps from its minimum, so that one must be a step itself.
  const slider = make("input", { type: "range", min: (Math.ceil(floor * 200) / 200).toFixed(3), max: "0.99", step: "0.005" });
  slider.value = level.toFixed(3);
  const shown = make("b", {}), people = make("p", { class: "dim" });
  let known = null;
  const tell = () => {
    const at = Number(slider.value);
    shown.textContent = at.toFixed(3) + (Math.abs(at - tau1) < 0.003 ? " (as clustered)" : "");
    if (!known) return;
    const place = known.levels.reduce((best, one, index) => (Math.abs(one - at) < Math.abs(known.levels[best] - at) ? index : best), 0);
    people.textContent = `about ${known.counts[place].toLocaleString("en")} people there, ${n_clusters.toLocaleString("en")} now`;
  };
  slider.addEventListener("input", tell);
  get("api/levels").then((found) => { known = found; tell(); }).catch(() => {});
  const apply = make("button", { class: "main", onclick: async () => {
    apply.disabled = true;
    apply.textContent = "Working …";
    const at = Number(slider.value);
    await change("strictness", { tau1: Math.abs(at - tau1) < 0.003 ? tau1 : Math.max(floor, at) });
    closeDialog();
  } }, "Apply");
  ask("Strictness", make("p", {}, "Stricter: fewer strangers together, more people in several pieces. Looser: the other way " +
    "round. Your corrections stay, and this can be undone like everything else."),
    make("div", { class: "row" }, "loose", slider, "strict", shown), people,
    make("div", { class: "row" }, apply, make("button", { onclick: closeDialog }, "Cancel")));
}

function askExport() {
  const link = (name, text) => make("a", { href: `export/${name}`, download: name }, text);
  ask("Export", make("p", {}, "As corrected so far:"),
    make("ul", {}, make("li", {}, link("labels.csv", "labels.csv")), make("li", {}, link("labels.npy", "labels.npy")),
      make("li", {}, link("constraints.json", "constraints.json"), " for starfc cluster --constraints")),
    make("p", {}, "Folders per person, FiftyOne and .parquet: starfc export."),
    make("div", { class: "row" }, make("button", { class: "main", onclick: closeDialog }, "Close")));
}

const KEYS = [
  ["1 2 3", "people, same person?, history"], ["u, r", "undo, redo"], ["t, e, ?", "strictness, export, this list"],
  ["arrows, PgUp, PgDn", "move"], ["Enter", "open the cluster"], ["x or Space", "select, or not"], ["Esc", "drop the selection, go back; in a field: leave it as it was"],
  ["m", "wall: merge the selected; cluster: merge with the nearest"], ["n", "name"], ["/", "search"],
  ["o", "cluster: outliers first"], ["s", "cluster: split"], ["p", "cluster: selected faces are a new person"],
  ["g", "cluster: move the selected, or all, to someone by name"], ["d", "cluster: selected are not faces"], ["a", "cluster: select all faces in sight"], ["y, n, s", "question: yes, no, skip"],
];

function askHelp() {
  const rows = KEYS.map(([key, meaning]) => make("tr", {}, make("td", {}, make("kbd", {}, key)), make("td", {}, meaning)));
  ask("Keys", make("table", {}, ...rows), make("div", { class: "row" }, make("button", { class: "main", onclick: closeDialog }, "Close")));
}

// Another tab may have made or undone something since, so the server is asked what there is.
async function takeStep(kind) {
  try {
    showSummary(await get("api/summary"));
  } catch (error) {
    return say(error.message, true);
  }
  return state.summary[`can_${kind}`] ? change(kind) : say(`there is nothing to ${kind}`);
}

// One after another, however fast the key repeats: what is said last is then what happened last.
let lastStep = Promise.resolve();
function step(kind) {
  const next = () => takeStep(kind);
  lastStep = lastStep.then(next, next);
}
const FRAME_KEYS = {
  1: () => go("wall"), 2: () => go("questions"), 3: () => go("history"), u: () => step("undo"), r: () => step("redo"),
  t: askStrictness, e: askExport, "?": askHelp,
};

// Esc leaves a field as it was before, and a search empty; Enter leaves it as it is. Neither acts on the page.
function leaveField(event) {
  const field = event.target;
  if (event.key === "Escape") {
    event.preventDefault();
    if (field.before !== undefined) field.value = field.before;
    if (field.type === "search" && field.value) {
      field.value = "";
      field.dispatchEvent(new Event("input"));
    }
  } else if (event.key !== "Enter" || field.type === "checkbox") return;
  field.blur();
  state.view?.grid?.scroller.focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (event.target.matches("input, select, textarea")) return leaveField(event);
  if (event.target.matches("button, a") && (event.key === "Enter" || event.key === " ")) return;
  const act = state.view?.keys?.[event.key] ?? FRAME_KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  } else if (state.view?.grid?.steer(event.key)) event.preventDefault();
});

document.getElementById("undo").onclick = () => step("undo");
document.getElementById("redo").onclick = () => step("redo");
document.getElementById("strictness").onclick = askStrictness;
document.getElementById("export").onclick = askExport;
document.getElementById("help").onclick = askHelp;
for (const button of document.querySelectorAll("nav button")) button.onclick = () => go(button.dataset.view);
addEventListener("hashchange", route);
get("api/summary").then(showSummary).then(route).catch((error) => say(error.message, true));
