// Data files are scripts, for a page opened as a file may fetch nothing: each puts what it holds into one of these.
"use strict";
(() => {
  const kgbench = (window.kgbench = window.kgbench || {});
  const store = () => {
    const held = new Map();
    return { put: (name, value) => { held.set(name, value); }, get: (name) => held.get(name), has: (name) => held.has(name) };
  };
  for (const name of ["runs", "facts", "curves", "index"]) kgbench[name] = store();

  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  /** Steps of ranks, two to a character; 7 is a fact that was not asked. */
  kgbench.steps = (text, n) => [...text].flatMap((c) => [DIGITS.indexOf(c) >> 3, DIGITS.indexOf(c) & 7]).slice(0, n);

  /** Run a data file of this site, then return what it put. */
  kgbench.load = (kind, name, path) => new Promise((done, failed) => {
    if (kgbench[kind].has(name)) { done(kgbench[kind].get(name)); return; }
    const script = document.createElement("script");
    script.src = path;
    script.onload = () => (kgbench[kind].has(name) ? done(kgbench[kind].get(name)) : failed(new Error(`${path} holds nothing`)));
    script.onerror = () => failed(new Error(`${path} is not there`));
    document.head.append(script);
  });
})();
