// Light or dark: by the system, unless the user chooses; the choice is kept in this browser.
import { el, fill } from "./dom.js";
import { WORDS } from "./words.js";

const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let chosen = "system";
try { chosen = localStorage.getItem("landscape-theme") || "system"; } catch { /* storage may be forbidden */ }

export function darkNow() {
  return chosen === "dark" || (chosen !== "light" && system.matches);
}

export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changed() {
  document.documentElement.dataset.theme = darkNow() ? "dark" : "light";
  for (const listener of listeners) listener();
}

export function startTheme(select) {
  select.setAttribute("aria-label", WORDS.theme);
  fill(select, Object.entries(WORDS.themes).map(([value, name]) => el("option", { value, selected: value === chosen }, name)));
  select.addEventListener("change", () => {
    chosen = select.value;
    try { localStorage.setItem("landscape-theme", chosen); } catch { /* then the choice lasts until the page is closed */ }
    changed();
  });
  system.addEventListener("change", changed);
  document.documentElement.dataset.theme = darkNow() ? "dark" : "light";
}
