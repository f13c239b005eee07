// The explorer: one module for a page, a local server, a notebook and the leaderboard.
// `show(place, data, ask)` draws what was read of a prompt; `ask(request)` gives a promise of what is
// read of another one, and is left out where there are no models. Pages take all lines but the last.

const element = (name, text, ...classes) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  made.classList.add(...classes);
  return made;
};
const signed = (value) => `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(2)}`;
const nats = (value) => (value < 0 ? signed(value) : `+${signed(value)}`);
const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎") || "∅";
const where = (layer, name) => (layer === null ? name : `${name} ${layer}`);

/** Nats from which on an effect has a colour, and at which it is full, in every prompt; between them by the logarithm. */
const LEAST = 0.05, FULL = 5;
/** Colour of an effect: blue helps the answer, red works against it. */
const shade = (value) => {
  const size = Math.abs(value);
  const part = size < LEAST ? 0 : Math.min(1, 0.15 + 0.85 * Math.log(size / LEAST) / Math.log(FULL / LEAST));
  return `color-mix(in srgb, var(${value < 0 ? "--against" : "--for"}) ${Math.round(80 * part)}%, transparent)`;
};

/** Numbers of the payload's rows that are components; the others are attention heads, parts of these. */
const whole = (rows) => [...rows.keys()].filter((index) => rows[index].of === undefined);

/** Rows of the map: groups of components by layer, each with the payload's rows that are in it. */
function grouped(rows) {
  const found = new Map();
  whole(rows).forEach((index) => {
    const { layer, group } = rows[index];
    const key = `${layer} ${group}`;
    if (!found.has(key)) found.set(key, { layer, group, members: [] });
    found.get(key).members.push(index);
  });
  return [...found.values()].sort((a, b) => (b.layer ?? -1) - (a.layer ?? -1) || b.members[0] - a.members[0]);
}

/** Positions of a graft expression for some tokens; null where no regions name them. */
function positions(chosen, regions, count) {
  if (chosen.size === count) return "ALL";
  const fitting = Object.entries(regions).filter(([, tokens]) => tokens.length && tokens.every((token) => chosen.has(token)));
  const names = [], covered = new Set();
  for (const [name, tokens] of fitting.sort((a, b) => b[1].length - a[1].length)) {
    if (tokens.every((token) => covered.has(token))) continue;
    names.push(name);
    tokens.forEach((token) => covered.add(token));
  }
  return covered.size === chosen.size && names.length ? names.join("+") : null;
}

/** Terms of a graft expression for some rows of the payload: components at layers. */
function terms(chosen, rows) {
  if (whole(rows).every((index) => chosen.has(index))) return [""];
  const byLayer = new Map();
  for (const index of [...chosen].sort((a, b) => a - b)) {
    const { layer, component, of } = rows[index];
    if (chosen.has(of)) continue;
    byLayer.set(layer, [...(byLayer.get(layer) ?? []), component]);
  }
  const byComponents = new Map();
  for (const [layer, components] of byLayer) {
    const key = components.join("+");
    byComponents.set(key, [...(byComponents.get(key) ?? []), layer]);
  }
  return [...byComponents].map(([components, layers]) =>
    layers.includes(null) ? `:${components}` : `:${components}@${layers.sort((a, b) => a - b).join(",")}`);
}

function show(place, data, ask) {
  place.classList.add("kgbench-explorer");
  let current = data;
  const tokens = new Set(), rows = new Set(), open = new Set();
  const output = element("div");

  const form = element("form");
  const fields = {};
  for (const [name, label] of [["text", "Prompt"], ["answer", "Answer"], ["subject", "First entity"]]) {
    const box = element("input");
    box.name = name;
    box.value = data.asked?.[name] ?? data[name] ?? "";
    if (name === "answer") box.placeholder = "the finetuned model's own";
    const wrapped = element("label", label);
    wrapped.append(box);
    fields[name] = box;
    form.append(wrapped);
  }
  form.append(element("button", "Read"));
  const status = element("p", "", "status");
  status.setAttribute("role", "status");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tokens.clear();
    rows.clear();
    read();
  });

  async function read() {
    if (!ask) return;
    status.textContent = "reading …";
    const cells = [];
    for (const token of tokens) for (const row of rows.size ? rows : whole(current.rows)) cells.push([token, row]);
    const request = { text: fields.text.value, answer: fields.answer.value, subject: fields.subject.value, cells };
    let found;
    try {
      found = await ask(request);
    } catch (error) {
      found = { error: `no answer: ${error.message ?? error}` };
    }
    status.textContent = found.error ?? "";
    if (!found.error) {
      current = found;
      draw();
    }
  }

  const likely = (title, found) => {
    const box = element("section", undefined, "likely");
    box.append(element("h2", title), element("p", `answer ${visible(current.answer)}: log-probability ${signed(found.logprob)}`));
    const list = element("ol");
    for (const { token, probability } of found.likely) {
      const item = element("li", `${visible(token)} ${probability.toPrecision(2)}`);
      if (token === current.answer) item.classList.add("answer");
      list.append(item);
    }
    box.append(list);
    return box;
  };

  const toggle = (set, values) => {
    const all = values.every((value) => set.has(value));
    values.forEach((value) => (all ? set.delete(value) : set.add(value)));
  };

  function legend() {
    const box = element("ul", undefined, "legend");
    box.setAttribute("aria-label", "colours, in nats");
    for (const value of [-FULL, -1, -0.2, 0, 0.2, 1, FULL]) {
      const item = element("li", value ? nats(value) : `under ±${LEAST.toFixed(2)}`);
      item.style.background = shade(value);
      box.append(item);
    }
    return box;
  }

  function chosen(token, members) {
    return (tokens.size || rows.size) && (!tokens.size || tokens.has(token)) && (!rows.size || members.some((row) => rows.has(row)));
  }

  /** A line of the map: of some rows together, which a button unfolds into `inside`. */
  function line(label, key, members, inside) {
    const row = element("tr");
    const head = element("th");
    head.scope = "row";
    if (inside.length > 1) {
      const fold = element("button", open.has(key) ? "▾" : "▸", "fold");
      fold.setAttribute("aria-label", `${members.length > 1 ? "components" : "heads"} of ${key}`);
      fold.setAttribute("aria-expanded", String(open.has(key)));
      fold.addEventListener("click", () => {
        open.has(key) ? open.delete(key) : open.add(key);
        draw(`fold ${label}`);
      });
      fold.dataset.key = `fold ${label}`;
      head.append(fold);
    }
    const name = element("button", label, "row");
    name.dataset.key = `row ${label}`;
    name.setAttribute("aria-pressed", String(members.every((each) => rows.has(each))));
    name.addEventListener("click", () => {
      toggle(rows, members);
      draw(name.dataset.key);
      if (tokens.size) read();
    });
    head.append(name);
    row.append(head);
    current.tokens.forEach((text, token) => {
      const value = members.reduce((sum, each) => sum + current.effects[each][token], 0);
      const cell = element("td");
      const button = element("button", "", "cell");
      button.dataset.key = `cell ${label} ${token}`;
      button.style.background = shade(value);
      button.title = button.ariaLabel = `${label}, token ${token + 1} ${visible(text)}: ${nats(value)} nats, first order`;
      button.tabIndex = -1;
      if (chosen(token, members)) cell.classList.add("chosen");
      button.addEventListener("click", () => {
        tokens.clear();
        rows.clear();
        tokens.add(token);
        members.forEach((each) => rows.add(each));
        draw(button.dataset.key);
        read();
      });
      cell.append(button);
      row.append(cell);
    });
    return row;
  }

  function map() {
    const table = element("table");
    const head = element("tr"), alone = element("tr");
    head.append(element("td"));
    const exact = element("th", "token alone");
    exact.scope = "row";
    alone.append(exact);
    current.tokens.forEach((text, token) => {
      const column = element("th");
      column.scope = "col";
      const button = element("button", visible(text), "token");
      button.dataset.key = `token ${token}`;
      button.setAttribute("aria-pressed", String(tokens.has(token)));
      button.addEventListener("click", () => {
        toggle(tokens, [token]);
        draw(button.dataset.key);
        if (tokens.size) read();
      });
      column.append(button);
      head.append(column);
      const value = element("td", nats(current.alone[token]), "exact");
      value.style.background = shade(current.alone[token]);
      alone.append(value);
    });
    const top = element("thead"), body = element("tbody");
    top.append(head, alone);
    const groups = grouped(current.rows);
    /** The line of some rows, and where it is open those of its components, or of a component's heads. */
    const add = (label, members, depth) => {
      const inside = members.length > 1 ? members : [...current.rows.keys()].filter((index) => current.rows[index].of === members[0]);
      const marked = depth ? `${"·".repeat(depth)} ${label}` : label;
      body.append(line(marked, label, members, inside));
      if (!open.has(label)) return;
      for (const index of inside) add(where(current.rows[index].layer, current.rows[index].component), [index], depth + 1);
    };
    for (const { layer, group, members } of groups) add(where(layer, group), members, 0);
    table.append(top, body);
    table.addEventListener("keydown", walk);
    const first = table.querySelector(".cell");
    if (first) first.tabIndex = 0;
    const frame = element("div", undefined, "frame");
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", "map of effects");
    frame.append(table);
    return frame;
  }

  /** Arrow keys walk over the cells, of which one is in the order of tabs. */
  function walk(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || !event.target.classList.contains("cell")) return;
    const cell = event.target.parentElement, line = cell.parentElement;
    const next = line.parentElement.rows[line.sectionRowIndex + step[0]]?.cells[cell.cellIndex + step[1]]?.querySelector(".cell");
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  function selection() {
    const box = element("section", undefined, "selection");
    box.append(element("h2", "Selected graft"));
    if (!tokens.size) {
      box.append(element("p", "none: choose tokens, and rows for a part of the weights"));
      return box;
    }
    const named = positions(tokens, current.regions, current.tokens.length);
    const parts = terms(rows.size ? rows : new Set(whole(current.rows)), current.rows);
    if (named) {
      const expression = parts.map((part) => `${named}${part}`).join("; ");
      box.append(element("p", "for kgbench eval:"), element("code", `--graft "${expression}"`));
    } else {
      box.append(element("p", "these tokens have no name that holds for other prompts; BOS, FE (the first entity) and LT (the last token) have"));
    }
    if (current.selected) {
      box.append(element("p", `exact effect: ${nats(current.selected.effect)} nats`, "exact-effect"));
    } else if (!ask) {
      box.append(element("p", "this page computes nothing; the command gives the exact effect"));
    }
    return box;
  }

  function draw(focus) {
    const likelies = element("div", undefined, "likelies");
    likelies.append(likely("Before finetuning", current.before), likely("After finetuning", current.after));
    if (current.selected && tokens.size) likelies.append(likely("Under the selected graft", current.selected));
    const about = "Nats that each token, and each component at each token, brings to the answer with the finetuned weights. " +
      `The first line is exact, all others are first-order estimates${ask ? ": choose one for its exact effect" : ""}.`;
    const aside = element("aside");
    aside.setAttribute("aria-label", "likely tokens");
    aside.append(likelies);
    const both = element("div", undefined, "both");
    both.append(map(), aside);
    output.replaceChildren(element("p", about, "about"), legend(), selection(), both);
    if (focus) [...output.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focus)?.focus();
  }

  place.replaceChildren(...(ask ? [form, status] : [element("p", current.text ?? "", "prompt"), status]), output);
  if (data.error) status.textContent = data.error;
  else draw();
}

/** A widget of a notebook: requests and answers travel by the kernel's own channel. */
function render({ model, el }) {
  const waiting = new Map();
  let last = 0;
  model.on("change:payload", () => {
    const found = model.get("payload");
    waiting.get(found.number)?.(found);
    waiting.delete(found.number);
  });
  show(el, model.get("payload"), (request) => new Promise((resolve) => {
    last += 1;
    waiting.set(last, resolve);
    model.set("request", { ...request, number: last });
    model.save_changes();
  }));
}

export default { render };
