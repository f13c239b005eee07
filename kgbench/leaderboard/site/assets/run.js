// A run: bars of each prompt, from its table or counted from its facts, then budget curve and localization map.
"use strict";
(() => {
  const holder = document.getElementById("data");
  const data = holder ? JSON.parse(holder.textContent) : {};
  const table = document.getElementById("rows");
  const heads = [...table.tHead.rows[0].cells];
  const keys = heads.map((head) => head.dataset.k);
  const RANKS = [1, 5, 10, 20, 50, 100];
  const ABSENT = 7;
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

  /** A hit rate with the 95 % interval of `kgbench.stats.hit_rate`: Student's, with an imagined hit and an imagined miss. */
  const rate = (hits, n) => {
    if (!n) return null;
    const z = 1.959964;
    const [weight, value] = [z ** 2 / 4, hits / n];
    const count = n + 2 * weight;
    const freedom = count - 1;
    // Cornish and Fisher's expansion of Student's quantile.
    const t = z + (z ** 3 + z) / (4 * freedom) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * freedom ** 2) + (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / (384 * freedom ** 3);
    const middle = (hits + weight) / count;
    const half = t * Math.sqrt((middle * (1 - middle)) / freedom);
    return { value, low: Math.max(0, Math.min(value, middle - half)), high: Math.min(1, Math.max(value, middle + half)), n };
  };

  /** Hit rates within a rank, counted from the steps of the facts' ranks; the text of a column otherwise. */
  const figures = async (choice) => {
    if (keys.includes(choice)) return (part, row) => row.figure(choice);
    const name = /([0-9a-f]{12})\.html$/.exec(location.pathname)[1];
    const run = await kgbench.load("runs", name, `../data/runs/${name}.js`);
    const k = RANKS.indexOf(Number(choice.slice(3)));
    return (part, row) => {
      const steps = kgbench.steps(run.prompts[part.prompt]?.[row.name] ?? "").filter((step) => step !== ABSENT);
      return rate(steps.filter((step) => step <= k).length, steps.length);
    };
  };

  const bars = document.getElementById("bars");
  const places = parts.map(() => add(bars));
  const draw = async (choice, title) => {
    const of = await figures(choice);
    parts.forEach((part, i) => {
      const rows = part.rows.map((row) => ({ name: row.name, kind: kind(row.name), figure: of(part, row) }));
      const label = `${title} on ${part.prompt}`;
      kgbench.bars(places[i], rows, { label, axis: label, unit: choice.startsWith("top") ? 1 : null, caption: "Grey: a model by itself, or everything changed; blue: the named places; orange: all other places." });
    });
  };

  const columns = heads.slice(1).map((head) => [head.dataset.k, head.textContent.trim()]);
  const ranks = RANKS.map((k) => [`top${k}`, `Top-${k} hit rate`]).filter(([key]) => !keys.includes(key));
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
