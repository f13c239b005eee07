// A method: its tables can be sorted.
"use strict";
for (const table of document.querySelectorAll("table.figures")) kgbench.table(table);
