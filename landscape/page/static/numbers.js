// The tables of a run: its landscape, observables, training and provenance; failures and logs.
import { el, facts, fill } from "./dom.js";
import { WORDS } from "./words.js";

/** The tables side by side. */
export function showNumbers(place, landscape, { info, measures = {} }) {
  const title = name => landscape.observables.find(one => one.name === name)?.title || name;
  fill(place,
    el("div", {}, el("h2", {}, WORDS.facts), facts(landscape.rows.landscape),
      landscape.rows.topology.length ? [el("h2", {}, WORDS.extrema), facts(landscape.rows.topology)] : []),
    el("div", {}, Object.entries(landscape.rows.observables).map(([name, rows]) => [el("h2", {}, title(name)), facts(rows)])),
    info.length ? el("div", {}, el("h2", {}, WORDS.trained), facts(info)) : [],
    Object.keys(measures).length ? el("div", {}, el("h2", {}, WORDS.measures), facts(Object.entries(measures).map(([name, value]) => [name, value === null ? "" : String(value)]))) : []);
}

/** The findings of a landscape's checks; details stay open or closed while the findings are the same. */
export function showChecks(place, checks) {
  const key = JSON.stringify(checks);
  if (place.dataset.shown === key) return;
  place.dataset.shown = key;
  fill(place, !checks ? [] : el("details", { open: checks.opened }, el("summary", {}, checks.summary),
    el("ul", {}, checks.lines.map(line => el("li", { class: line.state },
      el("b", { role: "img", "aria-label": line.said, title: line.said }, line.mark),
      line.text, line.remedy ? el("i", {}, line.remedy) : null)))));
}

export function showProvenance(place, landscape) {
  fill(place, el("details", {}, el("summary", {}, WORDS.provenance), facts(landscape.rows.provenance),
    landscape.job ? [el("h3", {}, WORDS.job), el("pre", { tabindex: "0" }, landscape.job)] : null));
}

/** The failed tasks with their causes; details stay open until another task fails. */
export function showFailures(place, failures) {
  const key = JSON.stringify(failures);
  if (place.dataset.shown === key) return;
  place.dataset.shown = key;
  fill(place, !failures.length ? [] : [el("h2", {}, WORDS.failures(failures.length)),
    el("ul", {}, failures.map(failure => el("li", {}, WORDS.failure(failure),
      failure.traceback ? el("details", {}, el("summary", {}, WORDS.traceback), el("pre", { tabindex: "0" }, failure.traceback)) : null)))]);
}

/** The last lines of a log. */
export function showLog(place, { name, lines }) {
  let log = [...place.children].find(one => one.dataset.log === name);
  if (!log) {
    log = el("details", { "data-log": name }, el("summary", {}, WORDS.log(name)), el("pre", { tabindex: "0" }));
    place.append(log);
  }
  fill(log.querySelector("pre"), lines.join("\n"));
}
