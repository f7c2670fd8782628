// Cross-sections through a point of two axes: its row and its column of the grid, each with its band.
import { getLooks, getPlotly } from "./api.js";
import { el, fill } from "./dom.js";
import { darkNow } from "./theme.js";
import { WORDS } from "./words.js";

const INTERPOLATED = ", interpolated"; // the server's note on points of a refined landscape that were not evaluated
const COLOURS = { light: ["#2f5d9b", "#b35c00"], dark: ["#7fb0ef", "#f0a04b"] };

/** The arrays of a figure at one index: the value and two standard errors, or that it is interpolated. */
export function valueAt(field, j, i) {
  return { ...numbersAt(field, j, i), interpolated: field.notes?.[j]?.[i] === INTERPOLATED };
}

function numbersAt(field, j, i) {
  const width = field.x.length, depth = field.columns?.shape?.at(-1) || 0;
  const at = (j * width + i) * depth;
  if (!depth) return { value: field.drawn.values[j * width + i], error: NaN };
  const [value, error, rise, riseError] = field.columns.values.subarray(at, at + depth);
  return { value, error: depth > 1 ? error : NaN, rise: depth > 2 ? rise : NaN, riseError: depth > 3 ? riseError : NaN };
}

/** The two curves through a grid point: coordinates, values, half the width of the band, which points are interpolated;
 * missing values are gaps. */
function curvesThrough(field, j, i) {
  const row = { x: field.x, value: [], band: [], between: [], words: [] }, column = { x: field.y, value: [], band: [], between: [], words: [] };
  const add = (curve, point, shown) => {
    curve.between.push(point.interpolated);
    curve.value.push(Number.isFinite(shown) ? point.value : null);
    curve.words.push(WORDS.pointed(point.value, point.interpolated ? NaN : point.error));
    curve.band.push(Number.isFinite(point.riseError) ? point.riseError : point.error);
  };
  const width = field.x.length;
  for (let k = 0; k < width; k++) add(row, valueAt(field, j, k), field.drawn.values[j * width + k]);
  for (let k = 0; k < field.y.length; k++) add(column, valueAt(field, k, i), field.drawn.values[k * width + i]);
  return [row, column];
}

/** Ticks at 1, 2, 5 x 10^k, like the picture's; over many decades at powers of ten, at most six. */
function roundTicks(values) {
  const known = values.filter(value => value > 0 && Number.isFinite(value)), low = Math.log10(Math.min(...known)), high = Math.log10(Math.max(...known));
  if (!known.length) return {};
  const first = Math.floor(low), decades = Array.from({ length: Math.ceil(high) - first + 1 }, (_, k) => first + k);
  const within = all => all.filter(value => Math.log10(value) >= low - 0.05 && Math.log10(value) <= high + 0.05);
  let ticks = within(decades.flatMap(power => [1, 2, 5].map(digit => digit * 10 ** power)));
  if (ticks.length < 2) return {}; // less than a factor of two: leave it to plotly
  if (ticks.length > 6) ticks = within(decades.map(power => 10 ** power));
  const every = Math.ceil(ticks.length / 6), kept = ticks.filter((_, k) => k % every === 0);
  return { tickmode: "array", tickvals: kept, ticktext: kept.map(value => String(Number(value.toPrecision(3)))) };
}

export class Sections {
  constructor(place) {
    this.place = place;
    this.plots = [el("div", { class: "section" }), el("div", { class: "section" })];
    this.words = el("p", { class: "reading", "aria-live": "polite" }, WORDS.sectionHint);
    fill(place, this.words, el("div", { class: "sections" }, this.plots));
    this.shown = null;
  }

  clear(sentence = WORDS.sectionHint) {
    this.shown = null;
    fill(this.words, sentence);
    for (const plot of this.plots) window.Plotly?.purge?.(plot);
  }

  /** @param axes the two axes as [{name, title}], @param log whether the values are drawn by their logarithm. */
  async show(field, j, i, axes, observable, log, words) {
    fill(this.words, words);
    const key = `${j} ${i} ${log} ${observable}`;
    if (this.shown === key && !this.stale) return;
    this.shown = key;
    this.stale = false;
    const [plotly, looks] = await Promise.all([getPlotly(), getLooks()]);
    if (this.shown !== key) return;
    const theme = darkNow() ? "dark" : "light";
    const here = [field.x[i], field.y[j]], other = [field.y[j], field.x[i]];
    curvesThrough(field, j, i).forEach((curve, k) => {
      const colour = COLOURS[theme][k];
      const known = curve.value.map((_, n) => n).filter(n => !curve.between[n]), refined = known.length < curve.value.length;
      const edge = sign => known.map(n => (curve.value[n] === null || !Number.isFinite(curve.band[n]) ? null : curve.value[n] + sign * curve.band[n]));
      const x = Array.from(curve.x), places = known.map(n => x[n]), upper = edge(1), lower = edge(-1);
      const data = [
        { x: places, y: lower, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false },
        { x: places, y: upper, mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: colour + "38", hoverinfo: "skip", showlegend: false },
        ...refined ? [{ x: places, y: known.map(n => curve.value[n]), mode: "markers", marker: { color: colour, size: 4 }, hoverinfo: "skip", showlegend: false }] : [],
        { x, y: curve.value, text: curve.words, mode: "lines", line: { color: colour, width: 1.8 }, showlegend: false, connectgaps: false,
          hovertemplate: `${axes[k].name} %{x:.4g}<br>${observable} %{text}<extra></extra>` },
        { x: [here[k]], y: [valueAt(field, j, i).value], mode: "markers", marker: { color: colour, size: 8, line: { color: "#ffffff", width: 1 } }, hoverinfo: "skip", showlegend: false },
      ];
      const layout = {
        template: looks.templates[theme], height: 170, width: this.plots[k].clientWidth || 300,
        margin: { l: 52, r: 8, t: 22, b: 34 },
        title: { text: WORDS.sectionTitle(axes[k].name, axes[1 - k].name, other[k]), font: { size: 12 }, x: 0.02, xanchor: "left", y: 0.97 },
        xaxis: { title: { text: axes[k].name, font: { size: 11 }, standoff: 2 }, automargin: false },
        yaxis: { type: log ? "log" : "linear", exponentformat: "power", nticks: 5, automargin: false, ...(log && roundTicks([...lower, ...upper, ...curve.value])) },
        hovermode: "x",
      };
      plotly.react(this.plots[k], data, layout, { displayModeBar: false, responsive: false, showSendToCloud: false });
    });
  }
}
