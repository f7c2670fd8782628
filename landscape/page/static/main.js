// Shows the view that the address names; keys; going back.
import { link, read } from "./address.js";
import { loadPlotly } from "./api.js";
import { el, fill } from "./dom.js";
import { openDialog } from "./jobbox.js";
import { startTheme } from "./theme.js";
import { WORDS } from "./words.js";
import { ComparePage } from "./compare.js";
import { RunPage } from "./run.js";
import { RunsPage } from "./runs.js";

const main = document.getElementById("main"), trail = document.getElementById("trail");
let page = null;

function show() {
  const { view, state } = read();
  page?.close();
  scrollTo(0, 0);
  page = new { runs: RunsPage, run: RunPage, compare: ComparePage }[view](main, state);
  fill(trail, el("a", { href: link("runs") }, WORDS.runs),
    view === "runs" ? null : [el("span", { "aria-hidden": "true" }, " / "), el("span", {}, view === "run" ? state.run || "" : WORDS.comparison)]);
  window.landscapePage = page; // for the console
  page.open();
}

function showKeys() {
  openDialog(WORDS.keys, el("table", { class: "facts" }, el("tbody", {}, WORDS.keyList.map(([key, does]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, does))))));
}

addEventListener("hashchange", show);
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox") return;
  if (event.key === "?") showKeys();
  else if (!page?.key?.(event.key)) return;
  event.preventDefault();
});
loadPlotly(read().view !== "runs");
const keys = document.getElementById("keys");
fill(keys, "?");
keys.setAttribute("aria-label", WORDS.keys);
keys.addEventListener("click", showKeys);
startTheme(document.getElementById("theme"));
show();
