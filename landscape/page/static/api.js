// Requests to the server. Every failure becomes an Error; its message is a sentence to show in place of the answer.
import { search } from "./address.js";
import { WORDS } from "./words.js";

export function address(route, parameters = {}) {
  return `api/${route}${search(parameters)}`;
}

export async function ask(route, parameters = {}, signal) {
  let answer;
  try {
    answer = await fetch(address(route, parameters), { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(WORDS.unreachable);
  }
  let body = null;
  try { body = await answer.json(); } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (answer.ok && body !== null) { remember(body); return body; }
  const failure = new Error(body?.error || (answer.status === 401 ? WORDS.signedOut : WORDS.badAnswer(answer.status)));
  failure.status = answer.status;
  throw failure;
}

/** The lines of an answer as they arrive, each a JSON value. */
export async function* askLines(route, parameters, signal) {
  const failed = error => { throw error.name === "AbortError" ? error : new Error(WORDS.unreachable); };
  const answer = await fetch(address(route, parameters), { signal, credentials: "same-origin" }).catch(failed);
  if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error || WORDS.badAnswer(answer.status));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch(failed);
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

const names = new Map();
/** The name of a run by its id, if an answer has contained it. */
export function nameOf(id) {
  return names.get(id) || id;
}

function remember(body) {
  for (const run of body.runs || []) names.set(run.id, run.name);
  if (body.id && body.name) names.set(body.id, body.name);
  for (const column of body.columns || []) if (column.item && column.run) names.set(column.item.split("|")[0], column.run);
}

let looks = null;
/** Templates, colour scales, kinds and settings of figures; requested once. */
export function getLooks() {
  looks ??= ask("looks").catch(error => { looks = null; throw error; });
  return looks;
}

const PLOTLY = "static/plotly.js";

/** Starts loading plotly; if a figure is awaited, with high priority. */
export function loadPlotly(soon) {
  document.head.append(Object.assign(document.createElement("link"), { rel: soon ? "preload" : "prefetch", as: "script", href: PLOTLY }));
}

let plotly = null;
/** Plotly, which takes a moment to start at the first call. */
export function getPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: PLOTLY });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => { plotly = null; reject(new Error(WORDS.noPlotly)); });
    document.head.append(script);
  });
  return plotly;
}

const KINDS = { f4: Float32Array, f8: Float64Array, u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array };

/** The numbers of an array in plotly's form ({dtype, bdata, shape} or nested lists), flat. */
export function numbers(array) {
  if (!array || !array.bdata) return { values: Float64Array.from((array || []).flat(Infinity), value => value ?? NaN), shape: shapeOf(array) };
  const values = new KINDS[array.dtype](bytesOf(array.bdata).buffer);
  return { values, shape: array.shape ? String(array.shape).split(",").map(Number) : [values.length] };
}

/** The bytes of a text in base64. */
export function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let k = 0; k < letters.length; k++) bytes[k] = letters.charCodeAt(k);
  return bytes;
}

function shapeOf(array) {
  const shape = [];
  for (let part = array; Array.isArray(part); part = part[0]) shape.push(part.length);
  return shape;
}
