// Two runs, fact by fact: for each prompt and configuration that both ran, the facts that one hits and the other misses.
"use strict";
(() => {
  const form = document.querySelector("form.controls");
  const fields = form.elements;
  const status = document.querySelector(".status");
  const result = document.getElementById("result");
  const STEPS = ["1", "2–5", "6–10", "11–20", "21–50", "51–100", "over 100"];
  const ABSENT = 7;
  const SHOWN = 200;
  const RANKS = [1, 5, 10, 20, 50, 100];
  let index = [];
  let first = [];

  const make = (tag, text, parts = {}) => Object.assign(document.createElement(tag), { textContent: text, ...parts });
  const named = (name) => index.find(([id]) => id === name);

  const options = (select, fits, kept) => {
    const groups = new Map();
    for (const run of index.filter(fits)) {
      const label = `${run[2]}, ${run[3]}`;
      if (!groups.has(label)) groups.set(label, Object.assign(document.createElement("optgroup"), { label }));
      groups.get(label).append(new Option(`${run[1]} (${run[5]}): ${run[3]} on ${run[2]}, ${run[6].join(" and ")}, ${run[0].slice(0, 6)}`, run[0]));
    }
    select.replaceChildren(...groups.values());
    select.value = kept;
    if (!select.value && select.options.length) select.selectedIndex = 0;
  };

  const read = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    const find = (id) => index.find(([name]) => id && (name === id || id.startsWith(name) || name.startsWith(id)))?.[0];
    options(fields.a, () => true, find(asked.get("a")) ?? first[0]);
    partners(find(asked.get("b")) ?? first[1]);
    if (asked.get("k")) fields.k.value = asked.get("k");
  };

  /** Only runs of the same facts can be compared. */
  const partners = (kept) => {
    const a = named(fields.a.value);
    options(fields.b, (run) => a && run[4] === a[4] && run[0] !== a[0], kept);
  };

  const keep = () => history.replaceState(null, "", `#a=${fields.a.value}&b=${fields.b.value}&k=${fields.k.value}`);

  const load = async (name) => {
    const run = await kgbench.load("runs", name, `data/runs/${name}.js`);
    return { ...run, ids: await kgbench.load("facts", run.facts, `data/facts/${run.facts}.js`) };
  };

  /** Difference of two hit rates on the same facts, with Bonett and Price's 95 % interval for paired proportions. */
  const difference = (onlyA, onlyB, n) => {
    const [p, q] = [(onlyA + 1) / (n + 2), (onlyB + 1) / (n + 2)];
    const half = 1.96 * Math.sqrt((p + q - (p - q) ** 2) / (n + 2));
    const write = (x) => x.toFixed(2).replace(/^-?0\.00$/, "0").replace("-", "−").replace(/^(−?)0\./, "$1.");
    return [write((onlyA - onlyB) / n), ` [${write(Math.max(-1, p - q - half))}, ${write(Math.min(1, p - q + half))}]`];
  };

  /** Facts of both, with the bucket of each run's rank. */
  const pairs = (a, b, prompt, graft) => {
    const one = kgbench.steps(a.prompts[prompt][graft], a.ids.length);
    const two = kgbench.steps(b.prompts[prompt][graft], b.ids.length);
    const other = new Map(b.ids.map((id, i) => [id, two[i]]));
    return a.ids.map((id, i) => [id, one[i], other.get(id) ?? ABSENT]).filter(([, x, y]) => x !== ABSENT && y !== ABSENT);
  };

  const show = async () => {
    const [nameA, nameB] = [fields.a.value, fields.b.value];
    if (!nameA || !nameB) { status.textContent = nameA ? "There is no other run of the same facts." : "There are no runs."; result.replaceChildren(); return; }
    const [a, b] = [await load(nameA), await load(nameB)];
    if (nameA !== fields.a.value || nameB !== fields.b.value) return;
    const k = RANKS.indexOf(Number(fields.k.value));
    const told = ([, method, pair, suite, , source, prompts]) => `${method} (${source}), ${suite} on ${pair}, prompts ${prompts.join(" and ")}`;
    const shared = Object.keys(a.prompts).filter((p) => p in b.prompts).map((prompt) => [prompt, Object.keys(a.prompts[prompt]).filter((g) => g in b.prompts[prompt])]);
    const rows = shared.flatMap(([prompt, grafts]) => grafts.map((graft) => count(pairs(a, b, prompt, graft), prompt, graft, k)));
    const [x, y] = [named(nameA), named(nameB)];
    status.textContent = rows.length ? `A is ${told(x)}. B is ${told(y)}. ${rows.reduce((sum, r) => sum + r.flips.length, 0)} flips in ${rows.length} rows.` : "The two runs have no prompt and configuration in common.";
    result.replaceChildren(...shared.filter(([, grafts]) => grafts.length).map(([prompt]) => part(prompt, rows.filter((r) => r.prompt === prompt))));
  };

  const count = (found, prompt, graft, k) => {
    const flips = found.filter(([, x, y]) => x <= k !== y <= k);
    const onlyA = flips.filter(([, x]) => x <= k).length;
    return { prompt, graft, n: found.length, a: found.filter(([, x]) => x <= k).length, b: found.filter(([, , y]) => y <= k).length, onlyA, onlyB: flips.length - onlyA, flips };
  };

  const part = (prompt, rows) => {
    const section = make("section", "");
    const table = make("table", "", { className: "figures" });
    table.append(make("caption", `${prompt}: facts by which of the two runs hits them`));
    const head = table.createTHead().insertRow();
    for (const title of ["Configuration", "Facts", "A hits", "B hits", "Only A", "Only B", "A − B"]) head.append(make("th", title, { scope: "col" }));
    head.cells[0].className = "name";
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      line.append(make("th", row.graft, { scope: "row" }));
      for (const value of [row.n, row.a, row.b, row.onlyA, row.onlyB]) line.append(make("td", value));
      const [value, interval] = row.n ? difference(row.onlyA, row.onlyB, row.n) : ["–", ""];
      const cell = make("td", value);
      cell.append(make("i", interval));
      line.append(cell);
    }
    const scroll = make("div", "", { className: "scroll", tabIndex: 0 });
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", prompt);
    scroll.append(table);
    section.append(make("h2", prompt), scroll, ...rows.filter((r) => r.flips.length).map(flipped));
    return section;
  };

  const flipped = (row) => {
    const details = make("details", "");
    details.append(make("summary", `${row.graft}: ${row.flips.length} facts flipped`));
    const table = make("table", "", { className: "figures" });
    table.append(make("caption", `Facts that flipped under ${row.graft} on ${row.prompt}, with the rank of the right answer`, { className: "off" }));
    const head = table.createTHead().insertRow();
    for (const title of ["Fact", "Rank in A", "Rank in B"]) head.append(make("th", title, { scope: "col" }));
    const body = table.createTBody();
    for (const [id, x, y] of row.flips.slice(0, SHOWN)) {
      const line = body.insertRow();
      line.append(make("th", id, { scope: "row" }), make("td", STEPS[x]), make("td", STEPS[y]));
    }
    details.append(table);
    if (row.flips.length > SHOWN) details.append(make("p", `and ${row.flips.length - SHOWN} more; kgbench compare A B lists all`));
    return details;
  };

  form.addEventListener("input", (event) => { if (event.target === fields.a) partners(fields.b.value); keep(); show(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => { if (location.hash.includes("=")) { read(); show(); } });
  kgbench.load("index", "", "data/runs.js").then((found) => { ({ runs: index, first } = found); read(); show(); });
})();
