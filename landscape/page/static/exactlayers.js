// Layers over a figure for values computed by a service: the rows of a patch, and the mark of a point.
import { role } from "./look.js";
import { even } from "./plot.js";
import { darkNow } from "./theme.js";
import { WORDS } from "./words.js";

const NOT_FINITE = 2; // the status of a point
const GREY = "#8b939e", META = { role: "exact" };

const accent = () => getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
const ink = () => (darkNow() ? "#14181f" : "#ffffff");

export class Patch {
  /** @param box [low, high] of each drawn axis; @param sizes points along each of them. */
  constructor(box, sizes) {
    this.box = box;
    this.coordinates = [];
    this.rows = new Map(); // the values per row; a single axis has one row, whose points arrive in several lines
    this.lines = sizes.length === 1;
    this.all = sizes.at(-1);
    this.size = sizes[0];
    this.done = this.computed = this.known = 0;
    this.state = ""; // how it ended
  }

  /** Adds a line of the answer. */
  take({ coordinates, index, values, status, computed }) {
    if (coordinates) { this.coordinates = coordinates; return; }
    const places = Array.isArray(index) ? index : status.map((_, k) => k), row = this.row(Array.isArray(index) ? 0 : index);
    for (const [name, numbers] of Object.entries(values)) {
      row.values[name] ??= new Array(this.size).fill(null);
      numbers.forEach((value, k) => { row.values[name][places[k]] = value; });
    }
    status.forEach((state, k) => { row.status[places[k]] = state; });
    this.done += Array.isArray(index) ? index.length : 1;
    this.computed += computed;
    this.known += status.length - computed;
  }

  row(number) {
    if (!this.rows.has(number)) this.rows.set(number, { values: {}, status: new Array(this.size).fill(0) });
    return this.rows.get(number);
  }

  words() { return WORDS.patchProgress(this.done, this.all, WORDS.patchUnits[this.lines ? "points" : "rows"], this.computed, this.known); }

  /** The values of an observable [rows][points], null while missing. */
  table(name) {
    return Array.from({ length: this.lines ? 1 : this.all }, (_, j) => this.rows.get(j)?.values[name] || new Array(this.size).fill(null));
  }
}

/** The traces of a patch. @param shown the figure, its axes, observables, the drawn one, and whether by its logarithm. */
export function patchTraces(patch, shown) {
  const fields = shown.figure.data.filter(trace => role(trace) === "field");
  if (!patch.rows.size || !fields.length || shown.figure.layout.meta?.space) return [];
  return patch.lines ? fields.flatMap(field => curve(patch, field, shown)) : plane(patch, fields[0], shown);
}

/** The mark of a point. */
export function pointTraces(point, shown) {
  const { figure, name } = shown, [x, y] = point.at, fields = figure.data.filter(trace => role(trace) === "field");
  const of = known => point.values.find(one => one.name === known), text = WORDS.exactReading(shown.axes.map(axis => axis.name), point).replaceAll("; ", "<br>");
  const mark = { mode: "markers", hoverinfo: "text", hovertext: [text], showlegend: false, meta: META, marker: { symbol: "diamond", size: 12, color: accent(), line: { color: ink(), width: 2 } } };
  if (figure.layout.meta?.space) {
    const [height] = drawn([of(name)?.value], fields[0] || {}, shown.log);
    return shown.axes.length === 2 && Number.isFinite(height) ? [{ ...mark, type: "scatter3d", x: [x], y: [y], z: [height], marker: { ...mark.marker, size: 6 } }] : [];
  }
  if (shown.axes.length > 1) return [{ ...mark, type: "scatter", x: [x], y: [y] }];
  return fields.filter(field => Number.isFinite(of(nameOf(field, shown))?.value))
    .map(field => ({ ...mark, type: "scatter", x: [x], y: [of(nameOf(field, shown)).value], xaxis: field.xaxis, yaxis: field.yaxis }));
}

/** The observable that a curve shows. */
function nameOf(field, { observables, name }) {
  return observables.find(one => [one.title, one.name].includes(field.name))?.name || name;
}

function curve(patch, field, shown) {
  const name = nameOf(field, shown), [y] = patch.table(name), [errors] = patch.table(`${name}_stderr`);
  const x = patch.coordinates[0], there = x.map((_, k) => k).filter(k => y[k] !== null), title = field.name || name;
  return [{ type: "scatter", mode: "lines+markers", x: there.map(k => x[k]), y: there.map(k => y[k]), xaxis: field.xaxis, yaxis: field.yaxis, meta: META, name: WORDS.patchName, showlegend: false,
    line: { color: accent(), width: 1.5 }, marker: { color: accent(), size: 4 }, text: there.map(k => WORDS.patchValue(title, y[k], errors[k])),
    hovertemplate: `${shown.axes[0].name} %{x:.5g}<br><b>%{text}</b><extra></extra>` }];
}

function plane(patch, field, shown) {
  const [x, rows] = patch.coordinates, { axes, observables, name, log } = shown, title = observables.find(one => one.name === name)?.title || name;
  const values = patch.table(name), errors = patch.table(`${name}_stderr`), z = values.map(row => drawn(row, field, log));
  const text = values.map((row, j) => row.map((value, i) => (value === null ? "" : WORDS.patchValue(title, value, errors[j][i]))));
  const whole = patch.state === "whole", [[left, right], [low, high]] = patch.box, twice = table => (whole ? table : table.flatMap(row => [row, row]));
  // A row that arrives before its neighbours gets the width of a row; between two gaps it would be a hairline.
  const half = 0.49 * (high - low) / (rows.length - 1), y = whole ? rows : rows.flatMap(at => [Math.max(low, at - half), Math.min(high, at + half)]);
  const contours = { ...field.contours, coloring: "heatmap", showlines: whole, showlabels: false };
  const grey = values.map((_, j) => patch.rows.get(j)?.status.map(state => (state === NOT_FINITE ? 1 : null)) || []);
  return [
    // On a plane, this trace is drawn above contours, and below paths and marks.
    { type: "contour", x, y, z: twice(z), text: twice(text), meta: META, colorscale: field.colorscale, zmin: field.zmin, zmax: field.zmax, autocontour: false, contours, showscale: false, showlegend: false, connectgaps: false,
      line: { width: whole ? 0.7 : 0, color: darkNow() ? "rgba(230,233,238,0.55)" : "rgba(28,37,48,0.55)", smoothing: 0 },
      hoverongaps: false, hovertemplate: `${axes[0].name} %{x:.5g}<br>${axes[1].name} %{y:.5g}<br><b>%{text}</b><extra></extra>` },
    ...grey.some(row => row.includes(1)) ? [{ type: "scatter", mode: "markers", meta: META, showlegend: false, hoverinfo: "skip", marker: { symbol: "square", size: 4, color: GREY },
      x: grey.flatMap(row => x.filter((_, i) => row[i] === 1)), y: grey.flatMap((row, j) => row.filter(one => one === 1).map(() => rows[j])) }] : [],
    { type: "scatter", mode: "lines", x: [left, right, right, left, left], y: [low, low, high, high, low], meta: META, hoverinfo: "skip", showlegend: false, line: { color: accent(), width: 1.5, dash: whole ? "solid" : "dot" } },
  ];
}

/** Values in the units of a figure's field: by their logarithm, in the units of its levels; null if missing. */
function drawn(values, field, log) {
  const plain = values.map(value => (value === null || value === undefined || (log && value <= 0) ? NaN : log ? Math.log10(value) : value));
  return Array.from(even(plain, field.meta?.levels), value => (Number.isFinite(value) ? value : null));
}
