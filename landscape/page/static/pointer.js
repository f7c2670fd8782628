// The current point of a plane (under the pointer, clicked, or moved by arrow keys) and its cross-sections.
import { copyText, el, fill } from "./dom.js";
import { snapshotNear } from "./path.js";
import { Sections, valueAt } from "./sections.js";
import { WORDS } from "./words.js";

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };

export class Pointer {
  /** @param page has `view`, `landscape`, `state`, `log` and `set(changes)`; the place is filled where there are two axes. */
  constructor(place, page) {
    this.page = page;
    this.pinned = null; // indices [j, i] of the clicked or moved point
    this.flat = page.landscape.axes.length === 2;
    fill(place);
    if (!this.flat) return;
    const shown = el("div");
    this.why = el("div", { class: "why" });
    fill(place, shown, this.why);
    this.sections = new Sections(shown);
  }

  get field() { return this.flat ? this.page.view.field() : null; }

  /** Shows the point under the pointer; the pinned one when the pointer has left. */
  hover(point) {
    const { field } = this;
    if (!field) return;
    if (point) this.show(...nearest(field, point.x, point.y));
    else if (this.pinned) this.show(...this.pinned);
  }

  /** Keeps a point, also in the address. */
  pin(point) {
    const { field } = this;
    if (point && field) this.keep(nearest(field, point.x, point.y), field);
  }

  keep([j, i], field) {
    this.pinned = [j, i];
    this.show(j, i);
    this.explain(j, i);
    this.page.set({ at: `${short(field.x[i])},${short(field.y[j])}` }, { draw: false });
  }

  /** Shows the address's point, or the pinned one, in a redrawn figure. */
  again() {
    const { field } = this, at = (this.page.state.at || "").split(",").map(Number);
    if (!field) return;
    this.stale(); // the point may have new values
    if (at.length === 2 && at.every(Number.isFinite)) this.pinned = nearest(field, ...at);
    if (this.pinned) this.show(...this.pinned);
    if (this.pinned) this.explain(...this.pinned);
  }

  /** For a clicked point without a finite loss, the command that shows which layer breaks there. */
  explain(j, i) {
    const { field } = this, { run, landscape } = this.page;
    const grey = field && landscape.missing === 0 && j < field.y.length && i < field.x.length && !Number.isFinite(valueAt(field, j, i).value);
    const command = grey ? inspecting(run.path, landscape.name, field.x[i], field.y[j]) : "";
    fill(this.why, grey ? [el("p", { class: "quiet" }, WORDS.whyGrey), el("pre", { tabindex: "0" }, command),
      el("button", { type: "button", class: "single", onclick: async event => {
        fill(event.target, await copyText(command) ? WORDS.copied : WORDS.notCopied);
      } }, WORDS.copy)] : null);
  }

  /** Moves by an arrow key, five points with Shift. */
  key(event) {
    const step = STEPS[event.key], { field } = this;
    if (!step || !field) return;
    event.preventDefault();
    const [j, i] = this.pinned || nearest(field, 0, 0), stride = event.shiftKey ? 5 : 1;
    this.keep([clamp(j + step[0] * stride, field.y.length), clamp(i + step[1] * stride, field.x.length)], field);
  }

  show(j, i) {
    const { landscape, state, log } = this.page, { field } = this;
    if (!field || j >= field.y.length || i >= field.x.length) return;
    const observable = landscape.observables.find(one => one.name === (state.observable || landscape.observables[0].name));
    this.sections.show(field, j, i, landscape.axes, observable?.title || "", log, reading(field, j, i, landscape));
  }

  stale() { if (this.sections) this.sections.stale = true; }
}

/** The shell command that inspects a point. */
function inspecting(path, name, x, y) {
  const quoted = /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'"'"'`)}'`;
  return `landscape inspect ${quoted} ${name} --at=${x},${y}`;
}

/** A sentence with the values at a grid point, and a path's snapshot near it. */
function reading(field, j, i, landscape) {
  const { axes } = landscape;
  const words = WORDS.reading([[axes[0].name, field.x[i]], [axes[1].name, field.y[j]]], valueAt(field, j, i));
  const near = snapshotNear(landscape, field.x[i], field.y[j]);
  return near === null ? words : words + WORDS.nearPath(near.path, near.k);
}

/** The indices [j, i] of the grid point nearest to coordinates. */
export function nearest(field, x, y) {
  const closest = (values, wanted) => {
    let best = 0;
    for (let k = 1; k < values.length; k++) if (Math.abs(values[k] - wanted) < Math.abs(values[best] - wanted)) best = k;
    return best;
  };
  return [closest(field.y, y), closest(field.x, x)];
}

const clamp = (value, size) => Math.max(0, Math.min(size - 1, value));
const short = value => Number(value.toPrecision(6));
