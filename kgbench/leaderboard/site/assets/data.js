// Data files are scripts, for a page opened as a file may fetch nothing: each puts what it holds into one of these.
"use strict";
(() => {
  const kgbench = (window.kgbench = window.kgbench || {});
  kgbench.curves = new Map();

  /** Run a data file of this site, then return what it put. */
  kgbench.load = (held, name, path) => new Promise((done, failed) => {
    if (held.has(name)) { done(held.get(name)); return; }
    const script = document.createElement("script");
    script.src = path;
    script.onload = () => (held.has(name) ? done(held.get(name)) : failed(new Error(`${path} holds nothing`)));
    script.onerror = () => failed(new Error(`${path} is not there`));
    document.head.append(script);
  });
})();
