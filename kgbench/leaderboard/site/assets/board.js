// A board: which table and picture are shown, and of which methods. All of it stands in the address, so that every view has a link.
"use strict";
(() => {
  const form = document.querySelector("form.controls");
  const figure = document.querySelector("figure.chart");
  const status = document.querySelector(".status");
  const sections = [...document.querySelectorAll("section.table")];
  const made = new Map();
  const fields = form.elements;
  const MANY = 100;
  const more = Object.assign(document.createElement("button"), { type: "button", className: "more" });
  let order = "";
  let all = false;

  const section = () => sections.find((s) => s.id === `t-${fields.t.value}`) || sections[0];
  const table = () => {
    const element = section().querySelector("table");
    if (!made.has(element)) made.set(element, kgbench.table(element, (key, down) => { order = (down ? "-" : "") + key; keep(); show(); }));
    return made.get(element);
  };

  const read = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    const first = form.querySelector("option").value;
    fields.t.value = asked.get("t") ?? first;
    if (!fields.t.value) fields.t.value = first;
    pictures();
    fields.p.value = asked.get("p") ?? fields.p.options[0]?.value;
    if (!fields.p.value && fields.p.options.length) fields.p.selectedIndex = 0;
    fields.q.value = asked.get("q") ?? "";
    fields.b.value = asked.get("b") ?? "";
    fields.base.checked = asked.get("base") !== "0";
    all = asked.get("all") === "1";
    order = asked.get("s") ?? "";
    const [down, key] = [order.startsWith("-"), order.replace(/^-/, "")];
    if (key) table().sort(key, down);
  };

  const keep = () => {
    const parts = new URLSearchParams();
    const set = (name, value, usual) => { if (value && value !== usual) parts.set(name, value); };
    set("t", fields.t.value, form.querySelector("option").value);
    set("p", fields.p.value, fields.p.options[0]?.value);
    set("q", fields.q.value, "");
    set("b", fields.b.value, "");
    set("base", fields.base.checked ? "" : "0", "");
    set("s", order, "");
    set("all", all ? "1" : "", "");
    history.replaceState(null, "", `#${parts}`);
  };

  /** The pictures that the table can give; one that was chosen stays where it can, else the usual one comes first. */
  const pictures = () => {
    const now = fields.p.selectedIndex > 0 ? fields.p.value : null;
    const found = kgbench.pictures(table(), fields.t.selectedOptions[0] && "curves" in fields.t.selectedOptions[0].dataset);
    fields.p.replaceChildren(...found.map(([value, text]) => new Option(text, value)));
    if (found.some(([value]) => value === now)) fields.p.value = now;
    fields.p.parentElement.hidden = !found.length;
  };

  const wanted = (row) => {
    const q = fields.q.value.trim().toLowerCase();
    return (!q || row.name.toLowerCase().includes(q)) && (!fields.b.value || row.badge === fields.b.value) && (fields.base.checked || !row.baseline);
  };

  const show = () => {
    const [here, current] = [section(), table()];
    for (const s of sections) s.hidden = s !== here;
    const rows = current.rows.filter(wanted);
    const shown = new Set(all ? rows : rows.slice(0, MANY));
    for (const row of current.rows) row.element.hidden = !shown.has(row);
    current.element.classList.add("ready");
    for (const row of shown) kgbench.soften(row.element.querySelectorAll("td"));
    more.hidden = shown.size === rows.length;
    more.textContent = `Show all ${rows.length} rows, not only the first ${MANY}`;
    current.element.parentElement.after(more);
    status.textContent = kgbench.rows(rows.length, current.rows.length);
    kgbench.boardPicture(figure, current, { key: fields.t.value, all: rows, picture: fields.p.value });
  };

  form.addEventListener("input", (event) => {
    if (event.target === fields.t) { order = ""; pictures(); }
    keep();
    show();
  });
  more.addEventListener("click", () => { all = true; keep(); show(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => { if (location.hash.includes("=") || !location.hash) { read(); show(); } });
  read();
  show();
})();
