// A run: bars of each prompt, then budget curve and localization map.
"use strict";
(() => {
  const holder = document.getElementById("data");
  const data = holder ? JSON.parse(holder.textContent) : {};
  const table = document.getElementById("rows");
  const heads = [...table.tHead.rows[0].cells];
  const keys = heads.map((head) => head.dataset.k);
  const kind = (name) => (["PRE", "SFT", "ALL", "NONE"].includes(name) ? "reference" : name.includes("^C") ? "complement" : "method");
  const parts = [...table.tBodies].map((body) => ({ prompt: body.dataset.prompt, rows: [...body.rows].slice(1).map((r) => kgbench.row(r, keys)) }));
  kgbench.dress(table);

  const add = (place, title) => {
    const figure = document.createElement("figure");
    figure.className = "chart";
    if (title) place.append(Object.assign(document.createElement("h2"), { textContent: title }));
    place.append(figure);
    return figure;
  };

  /** A column of the table, or hit rates within a rank. */
  const figure = (choice, part, row) => {
    if (keys.includes(choice)) return row.figure(choice);
    const [value, low, high, n] = data.ranks[choice][part.prompt]?.[row.name] ?? [];
    return value === undefined ? null : { value, low, high, n };
  };

  const bars = document.getElementById("bars");
  const places = parts.map(() => add(bars));
  const draw = (choice, title) => {
    parts.forEach((part, i) => {
      const rows = part.rows.map((row) => ({ name: row.name, kind: kind(row.name), figure: figure(choice, part, row) }));
      const label = `${title} on ${part.prompt}`;
      kgbench.bars(places[i], rows, { label, axis: label, unit: choice.startsWith("top") ? 1 : null, caption: "Grey: a model by itself, or everything changed; blue: the named places; orange: all other places." });
    });
  };

  const columns = heads.slice(1).map((head) => [head.dataset.k, head.textContent.trim()]);
  const ranks = Object.keys(data.ranks ?? {}).map((key) => [key, `Top-${key.slice(3)} hit rate`]);
  const select = Object.assign(document.createElement("select"), { name: "p" });
  select.append(...[...columns, ...ranks].map(([value, text]) => new Option(text, value)));
  const label = Object.assign(document.createElement("label"), { textContent: "Bars show " });
  label.append(select);
  const form = Object.assign(document.createElement("form"), { className: "controls" });
  form.append(label);
  bars.before(form);
  const asked = () => { select.value = new URLSearchParams(location.hash.slice(1)).get("p") ?? keys[1]; if (!select.value) select.value = keys[1]; };
  const show = () => draw(select.value, select.selectedOptions[0].text);
  select.addEventListener("input", () => { history.replaceState(null, "", `#p=${select.value}`); show(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => { if (location.hash.includes("=")) { asked(); show(); } });
  asked();
  show();

  const more = document.getElementById("more");
  const curves = parts.filter((part) => (data.curves || []).includes(part.prompt)).map(({ prompt, rows }) => {
    const found = rows.map((row) => [/^top ([\d.]+)%$/.exec(row.name)?.[1], row.figure("sufficiency")]).filter(([budget, f]) => budget && f);
    return [prompt, found.map(([budget, f]) => [Number(budget), f.value, f.low, f.high]), "method"];
  });
  if (curves.length) kgbench.lines(add(more, "Recovery at growing budgets"), curves, { label: "Budget curve of each prompt", axis: "recovery", caption: "Only the best-ranked sites within the budget carry the finetuned weights; a budget of 0 stands apart." });
  if (data.map) kgbench.map(add(more, "Localization map"), data.map, { label: "Score of every site, by region, component and layer", caption: `Mean of both halves’ scores.${data.planted ? ` Dots mark the sites that were planted: ${data.planted}.` : ""}` });
})();
