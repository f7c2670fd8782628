// Marks of missing points, remade while tiles arrive, by the rules of the server's drawing.
import { role } from "./look.js";

const OK = 1;

/** Rectangles [top, bottom, left, right] in indices that cover the squares of one reason: runs of a row, joined over equal rows. */
function rectangles(states, width, height, code) {
  const rank = state => (state === OK ? -1 : state), done = [];
  let open = new Map();
  for (let j = 0; j < height; j++) {
    const runs = new Map();
    let start = -1;
    for (let i = 0; i < width; i++) {
      let here = false;
      if (i < width - 1 && j < height - 1) {
        const at = j * width + i;
        const worst = Math.max(rank(states[at]), rank(states[at + 1]), rank(states[at + width]), rank(states[at + width + 1]));
        here = worst === code;
      }
      if (here && start < 0) start = i;
      if (!here && start >= 0) { runs.set(`${start} ${i}`, [start, i]); start = -1; }
    }
    const next = new Map();
    for (const [key, { top, run }] of open) if (!runs.has(key)) done.push([top, j, ...run]);
    for (const [key, run] of runs) next.set(key, open.get(key) || { top: j, run });
    open = next;
  }
  return done;
}

/** Updates the marks of a figure to the states [height * width] of its points. */
export function mark(figure, states, width, height, x, y) {
  for (const trace of figure.data) {
    if (role(trace) !== "missing" || trace.meta.code === undefined) continue;
    const { code } = trace.meta, count = states.reduce((sum, state) => sum + (state === code), 0);
    trace.name = trace.name.replace(/: .*$/, `: ${count} point${count === 1 ? "" : "s"}`);
    if (trace.type === "scatter3d") symbols(trace, states, width, height, x, y);
    else hatch(trace, rectangles(states, width, height, code), x, y);
  }
}

function hatch(trace, cells, x, y) {
  const xs = [], ys = [];
  for (const [top, bottom, left, right] of cells) {
    xs.push(x[left], x[right], x[right], x[left], x[left], null);
    ys.push(y[top], y[top], y[bottom], y[bottom], y[top], null);
  }
  trace.x = xs;
  trace.y = ys;
}

function symbols(trace, states, width, height, x, y) {
  const { code } = trace.meta, floor = trace.meta.floor ?? trace.z?.[0];
  if (floor === undefined) return;
  const xs = [], ys = [];
  for (let j = 0; j < height; j++) for (let i = 0; i < width; i++) if (states[j * width + i] === code) { xs.push(x[i]); ys.push(y[j]); }
  const every = Math.ceil(xs.length / 4000) || 1, keep = (_, k) => k % every === 0;
  trace.x = xs.filter(keep);
  trace.y = ys.filter(keep);
  trace.z = trace.x.map(() => floor);
}
