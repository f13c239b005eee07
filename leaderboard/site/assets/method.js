// A method: its map, and its tables, which can be sorted.
"use strict";
{
  const holder = document.getElementById("data");
  if (holder) {
    const { map, planted } = JSON.parse(holder.textContent);
    const dots = planted ? ` Dots mark the sites that were planted: ${planted}.` : "";
    kgbench.map(document.getElementById("map"), map, { label: "Score of every site, by region, component and layer", caption: `How responsible the method holds each site.${dots}` });
  }
}
for (const table of document.querySelectorAll("table.figures")) kgbench.table(table);
