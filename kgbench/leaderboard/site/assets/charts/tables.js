// Tables: what their rows say, sorting by their heads, and what a figure is of, on demand.
"use strict";
(() => {
  const kgbench = (window.kgbench = window.kgbench || {});
  const text = (cell) => cell.textContent.trim();

  /** A figure from a cell: exact where the cell holds it, else from its text. Nothing where it is undefined or was not run. */
  const figure = (cell) => {
    const exact = cell.dataset.v;
    const found = exact ? exact.split(" ") : text(cell).replaceAll("−", "-").match(/-?[\d.]+/g);
    if (!found || cell.dataset.f) return null;
    const [value, low = value, high = value, n] = found.map(Number);
    return Number.isFinite(value) ? { value, low, high, n, text: text(cell) } : null;
  };

  /** A row by the keys of its columns. */
  kgbench.row = (element, keys) => {
    const cells = [...element.cells];
    const at = (key) => cells[keys.indexOf(key)];
    const head = element.querySelector("th");
    const link = head.querySelector("a");
    return {
      element,
      name: link ? text(link) : text(head.firstChild),
      href: link ? link.getAttribute("href") : "",
      rank: at("rank") ? Number.parseInt(text(at("rank")).replace("(", ""), 10) || null : null,
      unranked: at("rank") && "out" in element.dataset,
      badge: element.dataset.badge ?? "",
      baseline: "base" in element.dataset,
      figure: (key) => (at(key) ? figure(at(key)) : null),
      text: (key) => (at(key) ? text(at(key)) : ""),
    };
  };

  const order = (key, rows) => {
    if (key === "name") return (a) => a.text(key).toLowerCase();
    if (key === "rank") return (a) => a.rank;
    if (key === "cells") return (a) => Number.parseInt(a.text(key), 10);
    return (a) => a.figure(key)?.value ?? null;
  };

  /** Sort rows: the reader's own stay on top, those without a value come last whichever way, equal ones stay as they were. */
  const sorted = (rows, key, down) => {
    const of = order(key, rows);
    const keyed = rows.map((r) => [of(r), r]);
    const own = (r) => r.badge === "yours";
    const compare = ([a, r], [b, s]) => {
      if (own(r) !== own(s)) return own(s) - own(r);
      if (a === null || b === null) return (a === null) - (b === null);
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    };
    return keyed.sort(compare).map(([, r]) => r);
  };

  /** A table that can be sorted; `changed(key, down)` is called when a reader asked for an order. */
  kgbench.table = (element, changed = () => {}) => {
    const heads = [...element.tHead.rows[0].cells];
    const keys = heads.map((head) => head.dataset.k || "");
    const body = element.tBodies[0];
    const rows = [...body.rows].map((r) => kgbench.row(r, keys));
    const table = { element, keys, rows, head: (key) => heads[keys.indexOf(key)], sort: null };
    table.sort = (key, down) => {
      if (!keys.includes(key)) return;
      for (const head of heads) if (head.dataset.k) head.setAttribute("aria-sort", "none");
      table.head(key).setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...sorted(rows, key, down).map((r) => r.element));
      table.rows = sorted(rows, key, down);
    };
    for (const head of heads) if (head.dataset.k) button(head, () => {
      const now = head.getAttribute("aria-sort");
      const down = now === "none" ? head.dataset.better === "higher" : now === "ascending";
      table.sort(head.dataset.k, down);
      changed(head.dataset.k, down);
    });
    kgbench.dress(element);
    return table;
  };

  /** What is done to every table, sorted or not. */
  kgbench.dress = (element) => {
    kgbench.soften([...element.querySelectorAll("td")].slice(0, AT_ONCE));
    say(element);
  };

  /** How many rows are shown, of all. */
  kgbench.rows = (shown, all) => `${shown === all ? "" : `${shown} of `}${all} row${all === 1 ? "" : "s"}`;

  const AT_ONCE = 2000;
  /** Intervals are less loud than values; pages would be a fifth larger if they said so in every cell. */
  kgbench.soften = (cells) => {
    for (const cell of cells) {
      const at = cell.children.length ? -1 : cell.textContent.indexOf("[");
      if (at < 0) continue;
      const made = document.createElement("i");
      made.append(cell.firstChild.splitText(at));
      cell.append(made);
    }
  };

  /** The head's title becomes a button. */
  const button = (head, act) => {
    const made = document.createElement("button");
    made.type = "button";
    const inner = head.querySelector("span") || head.firstChild;
    made.textContent = text(inner);
    inner.replaceWith(made);
    head.setAttribute("aria-sort", "none");
    made.addEventListener("click", act);
  };

  /** What a cell means, said when the pointer is there: the table would be twice as large if every cell said it. */
  const say = (element) => {
    const what = element.dataset.spread === "range" ? "from" : "95 % interval";
    const reasons = element.closest("section, details, main").querySelectorAll(".reasons li");
    element.addEventListener("pointerover", ({ target }) => {
      const cell = target.closest("td");
      if (!cell || cell.title) return;
      const found = figure(cell);
      if (cell.dataset.f) cell.title = reasons[cell.dataset.f - 1]?.textContent ?? "";
      else if (found?.n) cell.title = `${found.value}${found.low < found.high ? `, ${what} ${found.low} to ${found.high}` : ""}, n = ${found.n}`;
    });
  };
})();
