// Pictures, drawn from the rows of tables. Colours are the style sheet's, so that a theme changes them too.
"use strict";
(() => {
  const kgbench = (window.kgbench = window.kgbench || {});
  const MOST = 40;
  const INK = "var(--ink)", SOFT = "var(--soft)", LINE = "var(--line)", GREY = "var(--grey)", BLUE = "var(--blue)", OWN = "var(--own)", ORANGE = "var(--orange)";
  const SERIES = ["var(--blue)", "var(--orange)", "var(--green)", "var(--red)", "var(--purple)", "var(--sky)"];
  const number = (x) => {
    const digits = Math.abs(x) >= 99.95 ? 0 : Math.abs(x) >= 9.995 ? 1 : 2;
    const plain = x.toFixed(digits).replace("-", "−");
    return /^−?0\.0*$/.test(plain) ? "0" : plain.replace(/^(−?)0\./, "$1.");
  };
  const tick = (x) => String(Number(x.toPrecision(6))).replace("-", "−").replace(/^(−?)0\./, "$1.");
  /** Figures that stand in a table are written as there. */
  const value = (f) => f.text?.split(" ")[0] ?? number(f.value);
  const interval = (f) => f.text ?? (f.low === f.high ? number(f.value) : `${number(f.value)} [${number(f.low)}, ${number(f.high)}]`);

  /** Draw into a figure, and again whenever its width changes. */
  const draw = (figure, label, make, caption = "") => {
    let width = 0;
    const once = () => {
      const now = Math.floor(figure.clientWidth);
      if (now === width || now === 0) return;
      width = now;
      const plot = make(now);
      const svg = plot.tagName === "svg" ? plot : [...plot.querySelectorAll("svg")].at(-1);
      for (const part of svg.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", label);
      figure.replaceChildren(plot);
      if (caption) {
        const below = document.createElement("figcaption");
        below.textContent = caption;
        figure.append(below);
      }
    };
    figure.watch?.disconnect();
    figure.watch = new ResizeObserver(once);
    figure.watch.observe(figure);
    once();
  };

  const base = (width, height) => ({ width, height, style: { background: "transparent", color: INK, fontSize: "12px", fontFamily: "inherit", overflow: "visible" } });

  /** A name that is too long keeps its beginning and its end, since either may be what tells it from others. */
  const clipped = (name, most) => (name.length > most ? `${name.slice(0, Math.ceil(most / 2) - 1)}…${name.slice(-Math.floor(most / 2))}` : name);
  const named = (r) => (r.badge && r.kind !== "yours" ? `${r.name} (${r.badge})` : r.name);
  const PALE = 0.35;
  /** Self-reported figures are pale. */
  const opacity = (r) => (r.kind === "method" && r.badge === "self-reported" ? PALE : 1);

  /**
   * Bars with intervals, one under another. Rows: {name, figure, kind, badge, without}, where `without` says why there is no figure.
   * Marks: pairs of a name and a value that has a line across all bars.
   */
  kgbench.bars = (figure, rows, { label, axis, caption, unit = null, marks = [] }) => {
    const all = rows.filter((r) => r.figure || r.without);
    const shown = all.slice(0, MOST);
    const some = shown.filter((r) => r.figure);
    const lines = marks.length ? `Dashed lines: ${marks.map(([name, value]) => `${name} ${number(value)}`).join("; ")}.` : "";
    const first = all.length > MOST ? `The first ${MOST} of ${all.length} in the table’s order.` : "";
    const text = [first, lines, caption].filter(Boolean).join(" ");
    const said = shown.map((r) => `${named(r)} ${r.figure ? interval(r.figure) : r.without}`);
    draw(figure, `${label}: ${said.join("; ")}${lines ? `. ${lines}` : ""}`, (width) => {
      const narrow = width < 480;
      const longest = Math.max(...shown.map((r) => r.name.length), 4);
      // Where long names would take the room of the bars, each stands above its own.
      const above = narrow && longest > 16;
      const most = above ? Math.floor((width - 16) / 6.6) : 52;
      const left = above ? 8 : 16 + 6.6 * Math.min(longest, most);
      const low = Math.min(0, ...some.map((r) => r.figure.low), ...marks.map(([, x]) => x));
      const high = Math.max(unit ?? 0, ...some.map((r) => r.figure.high), ...marks.map(([, x]) => x));
      const titled = marks.length > 0 && !narrow;
      const [row, top, down] = [above ? 38 : 22, titled ? 26 : 8, above ? 9 : 0];
      return Plot.plot({
        ...base(width, 36 + top + row * shown.length), marginLeft: left, marginRight: narrow ? 36 : 48, marginTop: top, marginBottom: 36,
        x: { domain: [low, high], label: axis, grid: true, nice: true, ticks: 5, tickFormat: tick, labelArrow: "none" },
        y: { domain: shown.map((r) => r.name), label: null, tickSize: 0, tickFormat: (name) => (above ? "" : clipped(name, most)) },
        marks: [
          Plot.barX(some, { x: (r) => r.figure.value, y: "name", fill: (r) => fill(r.kind), fillOpacity: opacity, stroke: (r) => edge(r.kind), inset: 2, insetTop: 3 + 2 * down, insetBottom: 3 }),
          Plot.ruleY(some.filter((r) => r.figure.low < r.figure.high), { y: "name", dy: down, x1: (r) => r.figure.low, x2: (r) => r.figure.high, stroke: INK, strokeWidth: 1.2, marker: "tick" }),
          Plot.text(some, { x: (r) => Math.max(r.figure.high, 0), y: "name", dy: down, text: (r) => value(r.figure), dx: 6, textAnchor: "start", fill: INK }),
          Plot.text(shown.filter((r) => !r.figure), { x: 0, y: "name", dy: down, text: "without", dx: 6, textAnchor: "start", fill: OWN }),
          above ? Plot.text(shown, { y: "name", text: (r) => clipped(r.name, most), frameAnchor: "left", dy: -8, textAnchor: "start", fill: INK, stroke: "var(--paper)", strokeWidth: 3 }) : null,
          Plot.ruleX(marks, { x: ([, x]) => x, stroke: INK, strokeDasharray: "5 3" }),
          titled ? marks.map((mark) => Plot.text([mark], { x: ([, x]) => x, text: ([name, x]) => `${name} ${number(x)}`, frameAnchor: "top", dy: -12, textAnchor: mark[1] > (low + high) / 2 ? "end" : "start", fill: INK })) : null,
          Plot.ruleX([0], { stroke: SOFT }),
          Plot.tip(some, Plot.pointerY({ x: (r) => r.figure.value, y: "name", title: (r) => `${named(r)}\n${interval(r.figure)}`, fill: "var(--paper)", stroke: LINE })),
        ],
      });
    }, text);
  };
  const fill = (kind) => ({ reference: GREY, complement: ORANGE, yours: OWN, unranked: "none" })[kind] || BLUE;
  const edge = (kind) => ({ complement: "var(--orange-edge)", yours: OWN, reference: "var(--soft)", unranked: INK })[kind] || BLUE;

  /** Two figures against each other, with both intervals. Rows: {name, x, y, kind, badge}; the reader's own lie on top. */
  kgbench.scatter = (figure, rows, { label, axes, caption, line }) => {
    const all = rows.filter((r) => r.x && r.y);
    const shown = all.slice(0, MOST).sort((a, b) => (a.kind === "yours") - (b.kind === "yours"));
    const text = all.length > MOST ? `The first ${MOST} of ${all.length} in the table’s order. ${caption}` : caption;
    draw(figure, `${label}: ${shown.map((r) => `${named(r)} ${value(r.x)}, ${value(r.y)}`).join("; ")}`, (width) => {
      const height = Math.round(Math.min(520, Math.max(340, width * 0.62)));
      const ends = (of) => [Math.min(-0.05, ...shown.map((r) => of(r).low)), Math.max(1.05, ...shown.map((r) => of(r).high))];
      const plot = Plot.plot({
        ...base(width, height), marginLeft: 44, marginRight: 16, marginTop: 24, marginBottom: 40,
        x: { domain: ends((r) => r.x), label: `${axes[0]} →`, grid: true, tickFormat: tick, ticks: 5, labelArrow: "none" },
        y: { domain: ends((r) => r.y), label: `↑ ${axes[1]}`, grid: true, tickFormat: tick, ticks: 5, labelArrow: "none" },
        symbol: { range: ["circle", "square", "diamond", "star"], domain: ["method", "reference", "yours", "unranked"] },
        marks: [
          Plot.link(line ? [0] : [], { x1: 0, y1: 1, x2: 1, y2: 0, stroke: SOFT, strokeDasharray: "4 4" }),
          Plot.ruleY(shown, { y: (r) => r.y.value, x1: (r) => r.x.low, x2: (r) => r.x.high, stroke: SOFT, strokeOpacity: 0.5 }),
          Plot.ruleX(shown, { x: (r) => r.x.value, y1: (r) => r.y.low, y2: (r) => r.y.high, stroke: SOFT, strokeOpacity: 0.5 }),
          Plot.dot(shown, { x: (r) => r.x.value, y: (r) => r.y.value, symbol: "kind", fill: (r) => fill(r.kind), fillOpacity: opacity, stroke: (r) => (opacity(r) < 1 || r.kind === "unranked" ? edge(r.kind) : "var(--paper)"), r: (r) => (r.kind === "yours" ? 7 : 5.5) }),
          Plot.tip(shown, Plot.pointer({ x: (r) => r.x.value, y: (r) => r.y.value, title: (r) => `${named(r)}\n${axes[0]} ${interval(r.x)}\n${axes[1]} ${interval(r.y)}`, fill: "var(--paper)", stroke: LINE })),
        ],
      });
      name_points(plot, shown, width, height);
      return plot;
    }, text);
  };

  /** Those that no other is both cheaper and better than, the cheapest first. */
  const pareto_front = (rows) => {
    const found = [];
    for (const r of [...rows].sort((a, b) => a.x.value - b.x.value || b.y.value - a.y.value)) {
      if (!found.length || r.y.value > found.at(-1).y.value) found.push(r);
    }
    return found;
  };

  /** Quality against cost on a logarithmic axis, with the front of those that no other beats in both. Rows as of `scatter`. */
  kgbench.pareto = (figure, rows, { label, axes, caption }) => {
    const shown = rows.filter((r) => r.x?.value > 0 && r.y).sort((a, b) => (a.kind === "yours") - (b.kind === "yours"));
    const front = pareto_front(shown.filter((r) => r.kind !== "unranked"));
    const text = `On the front, where no other is both cheaper and better: ${front.map((r) => r.name).join(", ")}. ${caption}`;
    draw(figure, `${label}: ${shown.map((r) => `${named(r)} ${value(r.x)}, ${value(r.y)}`).join("; ")}. ${text}`, (width) => {
      const height = Math.round(Math.min(520, Math.max(340, width * 0.62)));
      const costs = shown.map((r) => r.x.value);
      const plot = Plot.plot({
        ...base(width, height), marginLeft: 44, marginRight: 16, marginTop: 24, marginBottom: 40,
        x: { type: "log", domain: [Math.min(...costs) / 1.4, Math.max(...costs) * 1.4], label: `${axes[0]} →`, grid: true, ticks: 5, tickFormat: tick, labelArrow: "none" },
        y: { domain: [Math.min(0, ...shown.map((r) => r.y.low)), Math.max(...shown.map((r) => r.y.high))], nice: true, label: `↑ ${axes[1]}`, grid: true, tickFormat: tick, ticks: 5, labelArrow: "none" },
        symbol: { range: ["circle", "square", "diamond", "star"], domain: ["method", "reference", "yours", "unranked"] },
        marks: [
          Plot.line(front, { x: (r) => r.x.value, y: (r) => r.y.value, curve: "step-after", stroke: ORANGE, strokeWidth: 1.8 }),
          Plot.ruleX(shown, { x: (r) => r.x.value, y1: (r) => r.y.low, y2: (r) => r.y.high, stroke: SOFT, strokeOpacity: 0.5 }),
          Plot.dot(shown, { x: (r) => r.x.value, y: (r) => r.y.value, symbol: "kind", fill: (r) => fill(r.kind), fillOpacity: opacity, stroke: (r) => (opacity(r) < 1 || r.kind === "unranked" ? edge(r.kind) : "var(--paper)"), r: (r) => (r.kind === "yours" ? 7 : 5.5) }),
          Plot.tip(shown, Plot.pointer({ x: (r) => r.x.value, y: (r) => r.y.value, title: (r) => `${named(r)}\n${axes[0]} ${value(r.x)}\n${axes[1]} ${interval(r.y)}`, fill: "var(--paper)", stroke: LINE })),
        ],
      });
      name_points(plot, shown, width, height);
      return plot;
    }, text);
  };

  /** Names next to points, where there is room; the others are shown by the pointer and by the table. */
  const name_points = (plot, shown, width, height) => {
    const [x, y] = [plot.scale("x"), plot.scale("y")];
    const points = shown.map((r) => [x.apply(r.x.value), y.apply(r.y.value)]);
    const taken = points.map(([px, py]) => [px - 6, py - 6, 12, 12]);
    const apart = (a, b) => a[0] >= b[0] + b[2] || b[0] >= a[0] + a[2] || a[1] >= b[1] + b[3] || b[1] >= a[1] + a[3];
    const inside = ([left, top, w, h]) => left > 46 && left + w < width && top > 2 && top + h < height - 38;
    const layer = document.createElementNS("http://www.w3.org/2000/svg", "g");
    layer.setAttribute("class", "names");
    shown.forEach((r, i) => {
      const [[px, py], w] = [points[i], 6.9 * r.name.length];
      const [left, right] = [px - 10 - w, px + 10];
      const around = [-1, 1].flatMap((side) => [0, 15, -15, 30, -30, 45, -45].map((dy) => [side < 0 ? left : right, py + dy - 7, w, 14]));
      const place = around.find((box) => inside(box) && taken.every((other) => apart(box, other)));
      if (!place) return;
      taken.push(place);
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      if (Math.abs(place[1] + 7 - py) > 8) {
        const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
        for (const [key, value] of Object.entries({ x1: px, y1: py, x2: place[0] === left ? left + w : right, y2: place[1] + 7 })) line.setAttribute(key, value);
        layer.append(line);
      }
      text.setAttribute("x", place[0]);
      text.setAttribute("y", place[1] + 11);
      text.textContent = r.name;
      layer.append(text);
    });
    plot.insertBefore(layer, plot.lastChild);
  };

  const ZERO = 0.03;
  /** Recovery over the logarithm of the budget. Curves: [name, [[budget, value, low, high], …], kind]; the first six stand out. */
  kgbench.lines = (figure, curves, { label, axis, caption }) => {
    const points = curves.flatMap(([name, found, kind], i) => found.map(([budget, value, low, high]) => ({ name, kind, i, x: budget || ZERO, zero: budget === 0, value, low, high })));
    const chosen = curves.filter(([, , kind]) => kind !== "reference").slice(0, SERIES.length);
    const strong = chosen.map(([name]) => name);
    // Purple is too near to the colour of the reader's own runs.
    const free = SERIES.filter((colour) => colour !== "var(--purple)" || chosen.every(([, , kind]) => kind !== "yours"));
    const colours = chosen.map(([, , kind]) => (kind === "yours" ? OWN : free.shift()));
    const weak = points.filter((p) => !p.zero && !strong.includes(p.name));
    const front = points.filter((p) => strong.includes(p.name)).sort((a, b) => (a.kind === "yours") - (b.kind === "yours"));
    draw(figure, label, (width) => Plot.plot({
      ...base(width, Math.round(Math.min(420, Math.max(300, width * 0.5)))), marginLeft: 44, marginTop: 24, marginBottom: 40,
      x: { type: "log", domain: [ZERO / 1.3, 130], ticks: [ZERO, 0.1, 1, 10, 100], tickFormat: (x) => (x === ZERO ? "0" : tick(x)), label: "best-ranked sites, per cent of weights × tokens", labelAnchor: "center", labelArrow: "none" },
      y: { label: `↑ ${axis}`, grid: true, ticks: 5, tickFormat: tick, labelArrow: "none" },
      color: { domain: strong, range: colours, legend: false },
      symbol: { domain: strong, range: ["circle", "square", "triangle", "diamond", "star", "wye"], legend: strong.length > 0 },
      marks: [
        Plot.ruleY([0, 1], { stroke: SOFT, strokeDasharray: "4 4" }),
        Plot.line(weak.filter((p) => p.kind !== "reference"), { x: "x", y: "value", z: "name", stroke: GREY, strokeOpacity: 0.7 }),
        Plot.line(weak.filter((p) => p.kind === "reference"), { x: "x", y: "value", z: "name", stroke: GREY, strokeWidth: 2, strokeDasharray: "2 3" }),
        Plot.line(front.filter((p) => !p.zero), { x: "x", y: "value", stroke: "name", strokeWidth: 1.8 }),
        Plot.ruleX(front, { x: "x", y1: "low", y2: "high", stroke: "name", strokeOpacity: 0.5 }),
        Plot.dot(front, { x: "x", y: "value", stroke: "name", symbol: "name", fill: "var(--paper)", r: 3.5 }),
        Plot.tip(points, Plot.pointer({ x: "x", y: "value", title: (p) => `${p.name}\n${p.zero ? 0 : p.x} % of weights × tokens\n${interval(p)}`, fill: "var(--paper)", stroke: LINE })),
      ],
    }), caption);
  };

  /** A localization map: a panel per region, layers upwards, components in the order of computation. */
  kgbench.map = (figure, { scores, planted }, { label, caption }) => {
    const cells = [];
    for (const [region, parts] of Object.entries(scores)) for (const [component, layers] of Object.entries(parts)) for (const [layer, score] of Object.entries(layers)) {
      cells.push({ region, component, layer, score, planted: planted.includes(`${region} ${component} ${layer}`) });
    }
    const [regions, components] = [Object.keys(scores), [...new Set(cells.map((c) => c.component))]];
    const rows = [...new Set(cells.map((c) => c.layer))].sort((a, b) => (b === "embed") - (a === "embed") || a - b);
    const ends = [Math.min(...cells.map((c) => c.score)), Math.max(...cells.map((c) => c.score))];
    const both = ends[0] < 0 && ends[1] > 0;
    const most = Math.max(-ends[0], ends[1]);
    const color = both ? { scheme: "RdBu", reverse: true, domain: [-most, most], type: "linear" } : { scheme: "cividis", domain: ends[0] < ends[1] ? ends : [ends[0] - 0.5, ends[0] + 0.5], type: "linear" };
    const best = [...cells].sort((a, b) => b.score - a.score).slice(0, 5);
    draw(figure, `${label}. Highest: ${best.map((c) => `${c.region} ${c.component} ${c.layer === "embed" ? "" : `layer ${c.layer}`}`).join(", ")}`, (width) => {
      const per = Math.max(1, Math.min(regions.length, Math.floor((width - 40) / (12 * components.length + 12))));
      const place = (c) => regions.indexOf(c.region);
      const lines = Math.ceil(regions.length / per);
      return Plot.plot({
        ...base(width, 96 + lines * (18 * rows.length + 40)), marginLeft: 48, marginTop: 36, marginBottom: 48, marginRight: 8,
        fx: { axis: null, padding: 0.06 }, fy: { axis: null, padding: 0.16 },
        x: { domain: components, label: null, tickRotate: -90, tickSize: 0 },
        y: { domain: [...rows].reverse(), label: "layer", tickSize: 0, labelArrow: "none" },
        color: { ...color, legend: true, label: "score", tickFormat: (x) => String(Number(x.toPrecision(3))) },
        marks: [
          Plot.cell(cells, { fx: (c) => place(c) % per, fy: (c) => Math.floor(place(c) / per), x: "component", y: "layer", fill: "score", inset: 0.5 }),
          Plot.dot(cells.filter((c) => c.planted), { fx: (c) => place(c) % per, fy: (c) => Math.floor(place(c) / per), x: "component", y: "layer", fill: "white", stroke: "black", r: 2.5 }),
          Plot.text(regions, { fx: (r) => regions.indexOf(r) % per, fy: (r) => Math.floor(regions.indexOf(r) / per), text: (r) => r, frameAnchor: "top", dy: -10, fontWeight: 600, fill: INK }),
          Plot.tip(cells, Plot.pointer({ fx: (c) => place(c) % per, fy: (c) => Math.floor(place(c) / per), x: "component", y: "layer", title: (c) => `${c.region}, ${c.component}${c.layer === "embed" ? "" : `, layer ${c.layer}`}\nscore ${Number(c.score.toPrecision(3))}${c.planted ? "\nplanted" : ""}`, fill: "var(--paper)", stroke: LINE })),
        ],
      });
    }, caption);
  };

  /** What a row is, for its colour and shape. */
  kgbench.kind = (row) => (row.badge === "yours" ? "yours" : row.baseline ? "reference" : row.unranked ? "unranked" : "method");
})();
