// One figure on the page: requested from the server, fitted to its place, drawn, patched while tiles arrive.
import { ask, getLooks, getPlotly, numbers } from "./api.js";
import { el, fill } from "./dom.js";
import { fit, recolour } from "./fit.js";
import { apply, role } from "./look.js";
import { mark } from "./missing.js";
import { sketch } from "./sketch.js";
import { darkNow } from "./theme.js";
import { WORDS } from "./words.js";

const KEPT = 24; // last answers of the server: going back to a figure needs no second request
const answers = new Map();

/** The server's answer for a figure; the same request is sent once while `generation` stays the same. */
export async function askFigure(parameters, generation, signal) {
  const key = JSON.stringify(parameters), known = answers.get(key);
  if (known?.generation === generation) return known.answer;
  const answer = await ask("figure", parameters, signal);
  answers.delete(key); // of a growing landscape only the last answer is kept
  answers.set(key, { generation, answer });
  while (answers.size > KEPT) answers.delete(answers.keys().next().value);
  return answer;
}

/** A copy of a figure that may be changed: only arrays of numbers are shared. */
export function copy(value) {
  if (Array.isArray(value)) return value.length > 64 && typeof value[0] !== "object" ? value : value.map(copy);
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value) || value.bdata) return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, copy(part)]));
}

export class FigureView {
  /** @param place the element to draw in; @param on listeners: hover(point), click(point), touch(place), box(ranges), camera(camera), zoom(ranges). */
  constructor(place, on = {}) {
    this.place = place;
    this.on = on;
    this.plot = el("div", { class: "plot" });
    this.answer = null;
    this.look = null;
    this.arrays = null;
    this.tallest = 640;
    this.drawn = 0;
    this.milliseconds = 0; // of the last drawing
    this.overlay = () => []; // the traces that lie over a figure
    this.zooms = []; // the zooms before the present one, the first of them null: the whole figure
    this.backButton = el("button", { type: "button", class: "zoomback", title: WORDS.zoomBackHint, onclick: () => this.zoomBack() }, `↩ ${WORDS.zoomBack}`);
    this.queue = Promise.resolve();
    this.begun = new Promise(done => { this.begin = done; }); // resolved when the first picture, or a sentence, is visible
    fill(place, this.plot);
  }

  /** Draws an answer of the server with a look. Drawings run one at a time; one with a newer successor is skipped. */
  show(answer, look, options = {}) {
    this.answer = answer;
    this.look = look;
    this.options = options;
    this.zooms = options.zoom ? (this.zooms.length ? this.zooms : [null]) : [];
    this.arrays = null;
    const turn = ++this.drawn;
    this.queue = this.queue.catch(() => null).then(() => (turn === this.drawn ? this.draw() : null)); // a failed drawing does not block later ones
    return this.queue;
  }

  again(look = this.look) {
    return this.answer ? this.show(this.answer, look, this.options) : Promise.resolve();
  }

  async draw() {
    const turn = this.drawn, looks = await getLooks();
    if (turn !== this.drawn) return;
    const figure = copy(this.answer.figure), theme = darkNow() ? "dark" : "light";
    turnSlice(figure, this.options.slice);
    recolour(figure.data, theme);
    apply(figure, this.look);
    fit(figure, this.plot.clientWidth || this.place.clientWidth || 600, this.tallest);
    figure.layout.template = looks.templates[theme];
    await this.sketch(figure, looks.templates[theme]);
    const plotly = await getPlotly(), begun = performance.now(); // loading plotly does not count as drawing
    if (turn !== this.drawn) return;
    figure.layout.datarevision = this.drawn;
    this.live = null; // patched rows belong to the previous figure
    if (this.options.live) this.prepareLive(figure);
    figure.data.push(...this.overlay(figure));
    if (this.options.dragmode) Object.assign(figure.layout, { dragmode: this.options.dragmode, selectdirection: this.options.selectdirection });
    const space = Boolean(figure.layout.meta?.space);
    if (this.space !== undefined && this.space !== space) plotly.purge(this.plot); // frees the old WebGL context
    this.keepView(figure, space);
    this.space = space;
    this.figure = figure;
    const config = { ...looks.config, responsive: false, modeBarButtonsToRemove: ["toImage"], scrollZoom: space };
    if (!this.place.contains(this.plot)) fill(this.place, this.plot);
    await plotly.react(this.plot, { data: figure.data, layout: figure.layout, frames: figure.frames || [], config });
    this.milliseconds = performance.now() - begun;
    this.place.querySelector(".sketch")?.remove();
    this.plot.dataset.drawn = String(this.drawn);
    this.listen();
    this.showBack();
  }

  /** Shows a sketch of the figure at once if plotly is not loaded yet. */
  async sketch(figure, template) {
    const canvas = window.Plotly || document.hidden ? null : sketch(figure, template);
    if (canvas) {
      this.place.querySelector(".sketch")?.remove();
      this.place.append(canvas);
      // Plotly blocks the browser for a second: the sketch must be visible before.
      await new Promise(done => { requestAnimationFrame(() => setTimeout(done)); setTimeout(done, 200); });
      performance.mark("first picture");
    }
    this.begin();
  }

  /** The user's rotation and zoom stay while the same landscape is redrawn. */
  keepView(figure, space) {
    const { layout } = figure, same = this.kept === this.options.same;
    this.kept = this.options.same;
    if (space) {
      const turned = same && this.space && this.plot.layout?.scene?.camera;
      if (turned && !this.options.reset) layout.scene.camera = turned;
    } else if (this.options.zoom && layout.xaxis && layout.yaxis) {
      layout.xaxis.range = this.options.zoom[0];
      layout.yaxis.range = this.options.zoom[1];
    }
    this.options.reset = false;
  }

  listen() {
    if (this.listening === this.plot && this.plot._landscapeListening) return;
    this.listening = this.plot;
    this.plot._landscapeListening = true;
    const point = event => this.pointOf(event);
    this.plot.addEventListener("click", event => { const at = this.placeOf(event); if (at) this.on.touch?.(at); });
    this.plot.on("plotly_hover", event => this.on.hover?.(point(event)));
    this.plot.on("plotly_unhover", () => this.on.hover?.(null));
    this.plot.on("plotly_click", event => this.on.click?.(point(event)));
    this.plot.on("plotly_selected", event => {
      const along = letter => Object.entries(event.range).find(([name]) => name.startsWith(letter))?.[1]; // of the panel with the drag
      if (event?.range) this.on.box?.([along("x"), along("y")].filter(Boolean));
    });
    this.plot.on("plotly_relayout", change => {
      if (change["scene.camera"]) this.on.camera?.(change["scene.camera"]);
      if (this.goingBack) return;
      const along = letter => change[`${letter}axis.range`] || (`${letter}axis.range[0]` in change ? [0, 1].map(end => change[`${letter}axis.range[${end}]`]) : null);
      const across = along("x"), up = along("y");
      if (across || up) this.zoomed([across || this.plot.layout.xaxis.range, up || this.plot.layout.yaxis.range]);
      else if (change["xaxis.autorange"]) this.zoomed(null);
    });
    // Plotly itself goes back to what was drawn first, which may be the zoom of an address.
    this.plot.on("plotly_doubleclick", () => { if (!this.space && this.zooms.length) queueMicrotask(() => this.zoomTo(null, [])); });
    this.plot.on("plotly_sliderchange", ({ slider }) => {
      this.options.slice = slider.active;
      this.on.slice?.(slider.active);
    });
    this.plot.on("plotly_relayouting", change => { if (change["scene.camera"]) this.on.camera?.(change["scene.camera"], true); });
  }

  /** Remembers the zoom for redrawing the same answer, and the one before for going back. */
  zoomed(ranges) {
    const { xaxis, yaxis } = this.answer.figure.layout, isWhole = ranges && String(ranges) === String([xaxis?.range, yaxis?.range]);
    this.keepZoom(isWhole ? null : ranges, isWhole || !ranges ? [] : [...this.zooms, this.options.zoom || null]);
  }

  keepZoom(ranges, before) {
    this.zooms = before;
    this.options.zoom = ranges;
    this.on.zoom?.(ranges);
    this.showBack();
  }

  /** Undoes the last zoom. */
  zoomBack() {
    if (this.zooms.length && this.figure) this.zoomTo(this.zooms.at(-1), this.zooms.slice(0, -1));
  }

  /** Shows the given ranges of both axes, or the whole figure. */
  async zoomTo(ranges, before) {
    const whole = this.answer.figure.layout, changes = {};
    ["x", "y"].forEach((letter, k) => {
      const range = ranges ? ranges[k] : whole[`${letter}axis`].range;
      changes[`${letter}axis.${range ? "range" : "autorange"}`] = range ? [...range] : true;
    });
    this.keepZoom(ranges, before);
    this.goingBack = true; // the event of this change is no further zoom
    try { await window.Plotly.relayout(this.plot, changes); } finally { this.goingBack = false; }
  }

  showBack() {
    if (!this.zooms.length || this.space) this.backButton.remove();
    else if (!this.backButton.isConnected) this.place.append(this.backButton);
  }

  /** The clicked coordinates in a flat figure, even if nothing is drawn there; null outside its axes. */
  placeOf(event) {
    const pane = event.target.closest?.(".nsewdrag"), [, across, up] = pane?.dataset.subplot?.match(/^x(\d*)y(\d*)$/) || [];
    if (across === undefined || event.detail > 1) return null; // a double click resets the zoom
    const { [`xaxis${across}`]: x, [`yaxis${up}`]: y } = this.plot._fullLayout, { left, top } = pane.getBoundingClientRect();
    return { x: x.p2d(event.clientX - left), y: y.p2d(event.clientY - top), pixel: [Math.abs(x.p2d(1) - x.p2d(0)), Math.abs(y.p2d(1) - y.p2d(0))] };
  }

  /** The grid point under the pointer: indices of the drawn grid and coordinates; null outside the grid. */
  pointOf(event) {
    const hit = event?.points?.find(point => role(point.data) === "field") || event?.points?.[0];
    if (!hit) return null;
    const number = hit.pointNumber ?? hit.pointNumbers;
    const index = Array.isArray(number) ? number : [number];
    return { x: hit.x, y: hit.y, index, role: role(hit.data) };
  }

  /** The numbers of the drawing, flat: drawn values, the pointer's columns, coordinates; for slices those of the shown one. */
  field() {
    const slider = this.plot.layout?.sliders?.[0], frames = this.answer?.figure.frames, shown = slider && frames?.[slider.active ?? 0];
    if (this.arrays && this.arrays.frame === shown) return this.arrays;
    const isField = one => role(one) === "field" && one.type !== "mesh3d" && (one.z !== undefined || one.y !== undefined);
    const source = this.figure && (shown || this.answer.figure).data.find(isField);
    if (!source) return null;
    const live = shown ? null : this.live;
    this.arrays = {
      frame: shown, place: shown ? `${slider.currentvalue?.prefix || ""}${slider.steps[slider.active ?? 0].label}` : "",
      x: numbers(source.x).values, y: numbers(source.y).values, notes: notesOf(source), // of a refined landscape
      drawn: live ? live.drawn : numbers(source.z ?? source.y), columns: live ? live.columns : columnsOf(source),
    };
    return this.arrays;
  }

  // -- live ---------------------------------------------------------------------------------------------------------

  /** Rows that can be changed in place, in the traces of the field. */
  prepareLive(figure) {
    const fields = figure.data.filter(one => role(one) === "field" && one.z && one.z.bdata);
    if (!fields.length) return;
    const drawn = numbers(fields[0].z), columns = fields[0].customdata ? columnsOf(fields[0]) : null;
    if (drawn.shape.length !== 2) return;
    const [height, width] = drawn.shape;
    const rows = Array.from({ length: height }, (_, j) => drawn.values.subarray(j * width, (j + 1) * width));
    let custom = null;
    if (columns) {
      const depth = columns.shape[2];
      custom = Array.from({ length: height }, (_, j) => Array.from({ length: width }, (_, i) =>
        columns.values.subarray((j * width + i) * depth, (j * width + i + 1) * depth)));
    }
    for (const field of fields) {
      field.z = rows;
      if (custom) field.customdata = field.type === "surface" ? turned(custom) : custom;
    }
    const states = this.answer.states ? numbers(this.answer.states).values : null;
    this.live = { drawn, columns, width, height, states, levels: fields[0].meta.levels || null, x: numbers(fields[0].x).values, y: numbers(fields[0].y).values };
  }

  /** Writes tiles into the drawn rows. Returns whether any tile fitted. */
  patch(tiles) {
    if (!this.live) return false;
    const { drawn, columns, width, height, states, levels } = this.live;
    let changed = false;
    for (const tile of tiles) {
      const [j0, i0] = tile.start, part = numbers(tile.drawn), [rows, cells] = part.shape;
      if (part.shape.length !== 2 || j0 + rows > height || i0 + cells > width) continue;
      const extra = columns && tile.customdata ? numbers(tile.customdata) : null, depth = columns ? columns.shape[2] : 0;
      for (let j = 0; j < rows; j++) {
        drawn.values.set(even(part.values.subarray(j * cells, (j + 1) * cells), levels), (j0 + j) * width + i0);
        if (states && tile.states) states.set(numbers(tile.states).values.subarray(j * cells, (j + 1) * cells), (j0 + j) * width + i0);
        if (extra && extra.shape[2] === depth)
          columns.values.set(extra.values.subarray(j * cells * depth, (j + 1) * cells * depth), ((j0 + j) * width + i0) * depth);
      }
      changed = true;
    }
    return changed;
  }

  /** Draws patched rows; the promise resolves when the pixels are visible. */
  async redraw() {
    const plotly = await getPlotly();
    if (!this.figure || !this.live) return;
    const { states, width, height, x, y } = this.live;
    if (states) mark(this.figure, states, width, height, x, y);
    await this.repaint(plotly);
  }

  /** Redraws the layers over the figure; requests meanwhile are combined. */
  relay() {
    this.laying ??= this.queue = this.queue.catch(() => null).then(async () => {
      this.laying = null;
      const plotly = this.figure && await getPlotly();
      if (!this.figure) return;
      this.figure.data = [...this.figure.data.filter(trace => role(trace) !== "exact"), ...this.overlay(this.figure)];
      await this.repaint(plotly);
    });
    return this.laying;
  }

  /** Redraws the figure after in-place changes, in the user's current view. */
  async repaint(plotly) {
    const begun = performance.now();
    this.figure.layout.datarevision = `${this.drawn}.${begun}`;
    if (this.space && this.plot.layout?.scene?.camera) this.figure.layout.scene.camera = this.plot.layout.scene.camera;
    else if (this.plot.layout?.xaxis) {
      this.figure.layout.xaxis.range = this.plot.layout.xaxis.range;
      this.figure.layout.yaxis.range = this.plot.layout.yaxis.range;
    }
    await plotly.react(this.plot, this.figure.data, this.figure.layout);
    this.milliseconds = performance.now() - begun;
  }

  // -- what a user takes along -----------------------------------------------------------------------------------------

  async download(format) {
    const plotly = await getPlotly();
    if (!this.figure) return; // a sentence is shown instead
    const { width, height } = this.plot._fullLayout;
    await plotly.downloadImage(this.plot, { format, filename: this.answer.file || "landscape", width, height, scale: format === "png" ? 3 : 1 });
  }

  async picture() {
    const plotly = await getPlotly();
    const { width, height } = this.plot._fullLayout;
    return plotly.toImage(this.plot, { format: "png", width, height, scale: devicePixelRatio });
  }

  /** Shows a sentence in place of the picture. */
  say(sentence) {
    this.drawn++;
    this.begin();
    window.Plotly?.purge?.(this.plot);
    this.plot._landscapeListening = false;
    this.answer = this.figure = this.arrays = this.live = null;
    this.space = undefined;
    fill(this.place, el("p", { class: "sentence", role: "alert" }, sentence));
    this.plot = el("div", { class: "plot" });
  }

  dispose() {
    this.drawn++;
    window.Plotly?.purge?.(this.plot);
    fill(this.place);
  }
}

/** Transposes rows and columns. Plotly indexes a surface's pointer texts by [x, y], although its heights are [y, x]. */
const turned = rows => rows[0].map((_, i) => rows.map(row => row[i]));

/** The texts beside the values of a refined landscape, [y][x]. */
function notesOf(trace) {
  return trace.text && trace.type === "surface" ? turned(trace.text) : trace.text;
}

/** The pointer's numbers, [y, x, columns], flat. */
function columnsOf(trace) {
  const columns = numbers(trace.customdata);
  if (trace.type !== "surface" || columns.shape.length !== 3) return columns;
  const [width, height, depth] = columns.shape, values = new columns.values.constructor(columns.values.length);
  for (let i = 0; i < width; i++) for (let j = 0; j < height; j++)
    values.set(columns.values.subarray((i * height + j) * depth, (i * height + j + 1) * depth), (j * width + i) * depth);
  return { values, shape: [height, width, depth] };
}

/** Makes a figure start at the slice with this number; by default the one nearest zero. */
function turnSlice(figure, number) {
  const slider = figure.layout.sliders?.[0], frame = figure.frames?.[number];
  if (!slider || !frame) return;
  slider.active = number;
  frame.traces.forEach((place, k) => { figure.data[place] = { ...frame.data[k] }; });
}

/** Drawn values in the units of a trace with uneven levels [n]: the n-th level is at n, linear between two levels. */
export function even(values, levels) {
  if (!levels || levels.length < 2) return values;
  const last = levels.length - 2;
  return values.map(value => {
    if (!Number.isFinite(value)) return value;
    let k = 0;
    while (k < last && value >= levels[k + 1]) k++;
    return k + (value - levels[k]) / (levels[k + 1] - levels[k]);
  });
}

/** The caption as one text; the server sends single sentences. */
export function captionOf(answer) {
  return Array.isArray(answer.caption) ? answer.caption.map(part => part.replace(/\.?$/, ".")).join(" ") : answer.caption || "";
}

export const loading = () => el("p", { class: "quiet" }, WORDS.loading);
