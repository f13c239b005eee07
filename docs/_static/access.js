// What the theme and pandas leave out, for keyboards and screen readers.
const SCROLLING = "pre, .table-wrapper, .cell_output .text_html, .sig-wrapper";

const reachable = () => {
  for (const box of document.querySelectorAll(SCROLLING)) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};

addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".caption[role=heading]").forEach((caption) => caption.setAttribute("aria-level", "2"));
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  // An empty corner of a DataFrame is no heading.
  for (const head of document.querySelectorAll(".cell_output th")) {
    if (!head.textContent.trim()) head.replaceWith(document.createElement("td"));
  }
  reachable();
  new ResizeObserver(reachable).observe(document.body);
});
