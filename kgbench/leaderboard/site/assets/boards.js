// Which pictures a table of methods can give, and drawing one.
"use strict";
(() => {
  /** The column that is 0 where sufficiency and necessity add up to 1. */
  const LINE = "separation";
  const titled = (table, key) => table.head(key).querySelector("button, span").textContent.trim();
  const columns = (table) => table.keys.filter((key) => key && !["rank", "name", "badge", "cells"].includes(key) && table.rows.some((r) => r.figure(key)));
  const ranked = (table) => table.keys.find((key) => key && "ranked" in table.head(key).dataset);

  /** Pairs of a value and a title, the usual one first. */
  kgbench.pictures = (table, curves = false) => {
    const keys = columns(table);
    const first = ranked(table);
    const found = [];
    if (curves) found.push(["curves", "Budget curves"]);
    const weight = (key) => (key === first) * 2 + ("better" in table.head(key).dataset);
    const bars = [...keys].sort((a, b) => weight(b) - weight(a)).map((key) => [key, `Bars: ${titled(table, key)}`]);
    const scatter = keys.includes("sufficiency") && keys.includes("necessity") ? [["scatter", "Sufficiency and necessity"]] : [];
    return first === LINE ? [...found, ...scatter, ...bars] : [...found, ...bars.slice(0, 1), ...scatter, ...bars.slice(1)];
  };

  /** Draw one of them; the usual one where none is named. */
  kgbench.boardPicture = (figure, table, { board, key, all, picture }) => {
    const name = picture || kgbench.pictures(table)[0]?.[0];
    figure.hidden = !name || !all.length;
    if (figure.hidden) return;
    const title = table.element.caption.textContent.trim();
    if (name === "curves") curves(figure, { board, key, all, title });
    else if (name === "scatter") scatter(figure, table, all, title);
    else bars(figure, table, name, all, title);
  };

  const scatter = (figure, table, all, title) => {
    const rows = all.map((r) => ({ name: r.name, kind: kgbench.kind(r), x: r.figure("sufficiency"), y: r.figure("necessity") }));
    const line = table.keys.includes(LINE);
    const told = line ? "On the dashed line it makes no difference which places are treated. " : "";
    const caption = `Up and to the right is better. ${told}Squares are baselines; thin lines are 95 % intervals.`;
    kgbench.scatter(figure, rows, { line, label: `Sufficiency and necessity, ${title}`, axes: [titled(table, "sufficiency"), titled(table, "necessity")], caption });
  };

  const bars = (figure, table, key, all, title) => {
    const rows = all.map((r) => ({ name: r.name, kind: kgbench.kind(r), figure: r.figure(key) }));
    const grey = rows.some((r) => r.figure && r.kind === "reference") ? "Grey bars are baselines. " : "";
    const thin = rows.some((r) => r.figure && r.figure.low < r.figure.high) ? "Thin lines are 95 % intervals." : "There are no intervals.";
    const caption = grey + thin;
    kgbench.bars(figure, rows, { label: `${titled(table, key)}, ${title}`, axis: titled(table, key), caption });
  };

  const curves = (figure, { board, key, all, title }) => {
    const name = `${board}-${key}`;
    kgbench.load("curves", name, `data/curves/${name}.js`).then((found) => {
      const by = new Map(found);
      const shown = all.filter((r) => by.has(r.name)).map((r) => [r.name, by.get(r.name), kgbench.kind(r)]);
      const caption = "The first six methods of the table stand out, the others are grey and the baselines dotted; filter or sort the table to see others. A budget of 0 stands apart on the left.";
      kgbench.lines(figure, shown, { label: `Budget curves, ${title}`, axis: "recovery", caption });
    });
  };
})();
