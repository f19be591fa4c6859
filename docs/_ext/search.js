// Ask the built site's own search, in the site's own words: node search.js SITE < phrases as JSON
"use strict";

const { readFileSync } = require("fs");
const path = require("path");
const vm = require("vm");

const site = process.argv[2];
const folder = path.join(site, "_static");
const nothing = { addEventListener: () => {}, getElementById: () => null, readyState: "loading" };
const page = {
  console,
  document: { ...nothing, documentElement: { dataset: {} } },
  localStorage: { setItem: () => {} },
  SPHINX_HIGHLIGHT_ENABLED: false,
};
page.window = page;
vm.createContext(page);

// in the order in which search.html loads them, with what the page's configuration adds
const scripts = readFileSync(path.join(site, "search.html"), "utf-8")
  .matchAll(/<script src="([^"?]+)/g);
for (const [, name] of scripts)
  if (/(documentation_options|doctools|language_data|searchtools|searchindex)\.js$/.test(name))
    vm.runInContext(readFileSync(path.join(site, name), "utf-8"), page, { filename: name });

const ask = (phrase) =>
  vm.runInContext(`Search._performSearch(...Search._parseQuery(${JSON.stringify(phrase)}))`, page)
    .map(([page, , anchor]) => page + anchor)
    .reverse();
const phrases = JSON.parse(readFileSync(0, "utf-8"));
console.log(JSON.stringify(Object.fromEntries(phrases.map((one) => [one, ask(one)]))));
