// A list that can be searched and sorted, and of which two runs can be chosen to compare.
"use strict";
(() => {
  const form = document.querySelector("form.controls");
  const found = kgbench.table(document.querySelector("table.found"));
  const status = document.querySelector(".status");
  const link = document.getElementById("compare");
  const texts = new Map(found.rows.map((row) => [row, row.element.textContent.toLowerCase()]));

  const show = () => {
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of texts) {
      row.element.hidden = !words.every((word) => text.includes(word));
      shown += !row.element.hidden;
    }
    status.textContent = kgbench.rows(shown, texts.size);
  };

  /** The newest is first in the list, and second in a comparison. */
  const choose = () => {
    const names = [...document.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value);
    link.hidden = names.length !== 2;
    link.href = `compare/${names.reverse().join("-")}.html`;
  };

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  if (link) found.element.addEventListener("change", choose);
  show();
  if (link) choose();
})();
