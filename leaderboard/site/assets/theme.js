// Before anything is painted: the theme that was chosen last, and that scripts run.
"use strict";
(() => {
  const root = document.documentElement;
  const kept = {
    get: () => { try { return localStorage.getItem("kgbench-theme"); } catch { return null; } },
    set: (name) => { try { localStorage.setItem("kgbench-theme", name); } catch { /* it is then not remembered */ } },
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const other = () => (now() === "dark" ? "light" : "dark");
  root.classList.add("js");
  if (["dark", "light"].includes(kept.get())) root.dataset.theme = kept.get();

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => { button.textContent = other() === "dark" ? "Dark" : "Light"; button.setAttribute("aria-label", `Switch to the ${other()} theme`); };
    name();
    system.addEventListener("change", name);
    button.addEventListener("click", () => { root.dataset.theme = other(); kept.set(root.dataset.theme); name(); });
  });
})();
