// The progress of a landscape as a badge, a bar and a few words.
import { el } from "./dom.js";
import { WORDS } from "./words.js";

export function badge(state) {
  return el("span", { class: `badge ${state}` }, WORDS.states[state] || state);
}

export function progress(landscape) {
  if (!landscape || landscape.done >= landscape.points || !landscape.points) return null;
  return el("progress", { max: landscape.points, value: landscape.done, "aria-label": WORDS.progress(landscape.done, landscape.points) });
}

/** The sentences beside the badge: points, rate, time left, workers, what to do. */
export function stateLines(landscape) {
  if (!landscape) return null;
  const parts = [];
  if (landscape.done < landscape.points) parts.push(WORDS.progress(landscape.done, landscape.points, landscape.path_points, landscape.unit));
  if (landscape.state === "running") {
    if (landscape.rate) parts.push(WORDS.rate(landscape.rate, landscape.unit));
    if (landscape.eta_seconds) parts.push(WORDS.eta(WORDS.seconds(landscape.eta_seconds)));
    if (landscape.workers) parts.push(WORDS.workers(landscape.workers));
  }
  if (landscape.state === "interrupted") parts.push(WORDS.interrupted);
  if (landscape.state === "damaged") parts.push(WORDS.damaged(landscape.unreadable));
  if (landscape.failed) parts.push(WORDS.partial(landscape.failed));
  const workers = landscape.state === "running" ? landscape.by_worker || [] : [];
  return [el("span", { class: "quiet" }, parts.join(" · ")),
    workers.length ? el("details", { class: "workers" }, el("summary", {}, WORDS.workers(workers.length)), el("ul", {}, workers.map(worker => el("li", {}, WORDS.worker(worker))))) : null];
}
