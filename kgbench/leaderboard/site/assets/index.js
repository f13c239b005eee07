// The first page: one picture per board, from the table below it.
"use strict";
for (const figure of document.querySelectorAll("figure[data-board]")) {
  const table = kgbench.table(figure.parentElement.querySelector("table"));
  const first = table.keys.find((key) => key && "first" in table.head(key).dataset);
  if (first) table.sort(first, true);
  kgbench.boardPicture(figure, table, { all: table.rows });
}
