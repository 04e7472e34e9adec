// Questions that views ask: a name, a person.
import { ask, call, closeDialog, get, make, picture } from "./app.js";

// Ask for a name; `done` gets it.
export function askName(cluster, done) {
  const field = make("input", { type: "text", value: cluster.name || "", maxLength: 200 });
  const save = async () => {
    closeDialog();
    await done(field.value);
  };
  field.addEventListener("keydown", (event) => event.key === "Enter" && save());
  ask(`Name ${call(cluster)}`, field, make("div", { class: "row" }, make("button", { class: "main", onclick: save }, "Save"),
    make("button", { onclick: closeDialog }, "Cancel")));
  field.select();
}

// Ask for a person by name or number; the nearest ones are offered first. `done` gets the label.
export function askPerson(title, verb, offered, done) {
  const list = make("div", { class: "choices" });
  const field = make("input", { type: "search", placeholder: "name or number", "aria-label": "name or number", class: "wide" });
  let shown = [], latest = 0, typing;
  const show = (people) => {
    shown = people;
    list.replaceChildren(...people.map((one) => make("button", { class: "choice", "data-label": one.label, onclick: () => take(one) },
      make("span", { class: "mini" }, ...one.faces.slice(0, 4).map((row) => picture(row, 64))),
      make("b", {}, call(one)), make("span", { class: "dim" }, one.size.toLocaleString("en")))));
    if (!people.length) list.append(make("p", { class: "dim" }, "nobody of that name or number"));
  };
  const take = (one) => {
    closeDialog();
    done(one.label);
  };
  const look = async () => {
    const mine = ++latest;
    if (!field.value.trim()) return show(offered);
    const found = await get("api/wall", { search: field.value, count: 8 }).catch(() => ({ clusters: [] }));
    if (mine === latest) show(found.clusters);
  };
  field.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(look, 150);
  });
  field.addEventListener("keydown", async (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    clearTimeout(typing);
    await look();
    if (shown.length && field.value.trim()) take(shown[0]);
  });
  ask(title, field, list, make("div", { class: "row" }, make("span", { class: "dim" }, `Enter ${verb} the first`),
    make("button", { onclick: closeDialog }, "Cancel")));
  show(offered);
  field.focus();
}
