// The state of the page as the fragment of its address: a link shows another user the same picture.

/** The view and its parameters in the address; lists only for names in `LISTS`. */
const LISTS = new Set(["item", "tick"]);
const MOST = 16_000; // characters: longer fragments are not ours, and the server takes no longer questions

export function read(fragment = location.hash) {
  const text = fragment.slice(1, MOST);
  const [path, search = ""] = text.split(/\?(.*)/s);
  const view = { "/run": "run", "/compare": "compare" }[path] || "runs";
  const state = {};
  for (const [name, value] of new URLSearchParams(search)) {
    if (LISTS.has(name)) (state[name] ??= []).push(value);
    else state[name] = value;
  }
  return { view, state };
}

/** "?" and the query of an address; lists repeat their name, empty values are left out. */
export function search(parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== undefined && one !== null && one !== "" && one !== false) query.append(name, one === true ? "1" : one);
  const text = query.toString();
  return text ? `?${text}` : "";
}

export function link(view, state = {}) {
  return `#/${view}${search(state)}`;
}

/** Keeps the address in step with the state, without a new entry in the history. */
export function keep(view, state) {
  const wanted = link(view, state);
  if (wanted !== location.hash) history.replaceState(null, "", wanted);
}

export function go(view, state = {}) {
  location.hash = link(view, state);
}

/** A number of the state, clamped to its limits; the default if it is no number. */
export function numeric(text, low, high, otherwise) {
  if (text === undefined || text === null || text === "") return otherwise;
  const value = Number(text);
  return Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : otherwise;
}

export function oneOf(text, allowed, otherwise) {
  return allowed.includes(text) ? text : otherwise;
}
