// Which pictures a table of methods can give, and drawing one.
"use strict";
(() => {
  /** The column that is 0 where sufficiency and necessity add up to 1. */
  const LINE = "separation";
  /** The column of costs, and what they are drawn against. */
  const COST = "forwards";
  const quality = (table, keys) => (keys.includes("average_precision") ? "average_precision" : having(table, "ranked"));
  const titled = (table, key) => table.head(key).querySelector("button, span").textContent.trim();
  const columns = (table) => table.keys.filter((key) => key && !["rank", "name", "cells"].includes(key) && table.rows.some((r) => r.figure(key)));
  const having = (table, mark) => table.keys.find((key) => key && mark in table.head(key).dataset);
  const firstOf = (table) => having(table, "first") ?? having(table, "ranked");
  /** What the thin lines of a picture are, where there are some. */
  const thin = (table, figures) => {
    if (!figures.some((f) => f && f.low < f.high)) return "There are no intervals.";
    return table.element.dataset.spread === "range" ? "Thin lines run from the smallest to the largest value, and are no intervals." : "Thin lines are 95 % intervals.";
  };
  /** Who says so, for all bars or points that are no baselines. */
  const sources = (rows) => {
    const given = new Set(rows.map((r) => r.badge));
    const words = [];
    if (given.has("self-reported")) words.push("Pale: self-reported, run by the submitter alone.");
    if (given.has("maintainers")) words.push("Full: run by the project, or verified.");
    else if (given.has("verified")) words.push("Full: verified, a sample was run again.");
    return words.join(" ");
  };
  /** The reader's own methods stand in every picture, also where a mean needs more cells. */
  const without = (r) => (kgbench.kind(r) === "yours" ? (/\d/.test(r.text("cells")) ? `no mean: ${r.text("cells")} cells` : "no such figure") : "");
  const sentences = (...parts) => parts.filter(Boolean).join(" ");

  /** Pairs of a value and a title, the usual one first. */
  kgbench.pictures = (table, curves = false) => {
    const keys = columns(table);
    const first = firstOf(table);
    const found = [];
    if (curves) found.push(["curves", "Budget curves"]);
    const weight = (key) => (key === first) * 2 + ("better" in table.head(key).dataset);
    const bars = [...keys].sort((a, b) => weight(b) - weight(a)).map((key) => [key, `Bars: ${titled(table, key)}`]);
    const scatter = keys.includes("sufficiency") && keys.includes("necessity") ? [["scatter", "Sufficiency and necessity"]] : [];
    const cost = keys.includes(COST) && quality(table, keys) ? [["pareto", "Quality against cost"]] : [];
    const pathways = first === LINE || (!first && keys.includes(LINE));
    return pathways ? [...found, ...scatter, ...bars] : [...found, ...bars.slice(0, 1), ...cost, ...scatter, ...bars.slice(1)];
  };

  /** Draw one of them; the usual one where none is named. */
  kgbench.boardPicture = (figure, table, { key, all, picture }) => {
    const name = picture || kgbench.pictures(table)[0]?.[0];
    figure.hidden = !name || !all.length;
    if (figure.hidden) return;
    const title = table.element.caption.textContent.trim();
    if (name === "curves") curves(figure, { key, all, title });
    else if (name === "scatter") scatter(figure, table, all, title);
    else if (name === "pareto") pareto(figure, table, all, title);
    else bars(figure, table, name, all, title);
  };

  const scatter = (figure, table, all, title) => {
    const rows = all.map((r) => ({ name: r.name, kind: kgbench.kind(r), badge: r.badge, x: r.figure("sufficiency"), y: r.figure("necessity") }));
    const line = table.keys.includes(LINE);
    const about = line ? "On the dashed line it makes no difference which places are treated. " : "";
    const lacking = all.filter((r) => without(r) && !(r.figure("sufficiency") && r.figure("necessity"))).map((r) => `${r.name}: ${without(r)}.`).join(" ");
    const caption = sentences(lacking, `Up and to the right is better. ${about}Squares are baselines.`, sources(rows), thin(table, rows.map((r) => r.x)));
    kgbench.scatter(figure, rows, { line, label: `Sufficiency and necessity, ${title}`, axes: [titled(table, "sufficiency"), titled(table, "necessity")], caption });
  };

  const pareto = (figure, table, all, title) => {
    const key = quality(table, columns(table));
    const rows = all.map((r) => ({ name: r.name, kind: kgbench.kind(r), badge: r.badge, x: r.figure(COST), y: r.figure(key) }));
    const caption = sentences("The line joins them. Up and to the left is better. Squares are baselines; stars have no rank and are on no front.", sources(rows), thin(table, rows.map((r) => r.y)));
    kgbench.pareto(figure, rows, { label: `Quality against cost, ${title}`, axes: [titled(table, COST), titled(table, key)], caption });
  };

  const bars = (figure, table, key, all, title) => {
    const rows = all.map((r) => ({ name: r.name, kind: kgbench.kind(r), badge: r.badge, figure: r.figure(key), without: without(r) }));
    const shown = rows.filter((r) => r.figure);
    const grey = shown.some((r) => r.kind === "reference") ? "Grey bars are baselines." : "";
    const marks = JSON.parse(table.head(key).dataset.marks ?? "[]");
    const caption = sentences(sources(shown.filter((r) => r.kind !== "reference")), grey, thin(table, shown.map((r) => r.figure)));
    kgbench.bars(figure, rows, { label: `${titled(table, key)}, ${title}`, axis: titled(table, key), caption, marks });
  };

  const curves = (figure, { key, all, title }) => {
    const by = new Map(JSON.parse(document.getElementById("curves").textContent)[key]);
    const shown = all.filter((r) => by.has(r.name)).map((r) => [r.name, by.get(r.name), kgbench.kind(r)]);
    const caption = "The first six methods of the table stand out, the others are grey and the baselines dotted; filter or sort the table to see others. Upright lines are 95 % intervals. A budget of 0 stands apart on the left.";
    kgbench.lines(figure, shown, { label: `Budget curves, ${title}`, axis: "recovery", caption });
  };
})();
