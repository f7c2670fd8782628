// Playing along the paths: a slider over the snapshots and a button. The figure shows each path up to the chosen snapshot;
// shorter paths are shown whole.
import { getPlotly, numbers } from "./api.js";
import { el, fill } from "./dom.js";
import { role } from "./look.js";
import { longest } from "./path.js";
import { WORDS } from "./words.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Player {
  constructor(view, paths, onStep) {
    this.view = view;
    this.paths = paths;
    this.onStep = onStep;
    this.path = longest(paths);
    this.last = this.path.numbers.length - 1;
    this.step = this.last;
    this.timer = 0;
    this.slider = el("input", { type: "range", min: 0, max: this.last, step: 1, value: this.last, "aria-label": WORDS.pathSlider,
      oninput: () => { this.stop(); this.to(Number(this.slider.value)); } });
    this.words = el("output", { class: "quiet" });
    this.button = el("button", { type: "button", onclick: () => this.toggle() }, WORDS.play);
    this.element = el("div", { class: "player" }, this.button, this.slider, this.words);
    this.say();
  }

  /** The position of the snapshot with this number; the last position if there is none. */
  indexOf(number) {
    const index = this.path.numbers.indexOf(Number(number));
    return index < 0 ? this.last : index;
  }

  say() {
    this.words.textContent = this.paths.map(path => WORDS.pathStep(path, Math.min(this.step, path.numbers.length - 1))).join(", ");
    this.slider.setAttribute("aria-valuetext", this.words.textContent);
  }

  toggle() {
    if (this.timer) return this.stop();
    if (still.matches) return this.to(this.step === this.last ? 0 : this.step + 1); // reduced motion: one snapshot per press
    if (this.step === this.last) this.to(0);
    const pause = Math.max(60, Math.min(500, 6000 / (this.last + 1)));
    fill(this.button, WORDS.pause);
    const next = async () => {
      if (this.step >= this.last) return this.stop();
      await this.to(this.step + 1);
      if (this.timer) this.timer = setTimeout(next, pause);
    };
    this.timer = setTimeout(next, pause);
    return null;
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    fill(this.button, WORDS.play);
  }

  async to(step) {
    this.step = Math.max(0, Math.min(this.last, step));
    this.slider.value = String(this.step);
    this.say();
    this.onStep?.(this.step);
    await this.draw();
  }

  /** Shows the path up to the chosen snapshot, by a frame; without `redraw` plotly removes the contour lines. */
  async draw() {
    const plotly = await getPlotly(), { figure, plot } = this.view;
    if (!figure || !plot.data) return;
    const traces = [], data = [];
    if (this.played !== figure) { // a frame changes the traces of a figure: keep the originals
      this.played = figure;
      this.whole = figure.data.map(trace => (role(trace) === "path" && trace.x
        ? Object.fromEntries(["x", "y", "z"].filter(axis => trace[axis] !== undefined).map(axis => [axis, Array.from(numbers(trace[axis]).values)])) : null));
    }
    this.whole.forEach((all, k) => {
      if (!all) return;
      const { length } = all.x, { path = 0, each } = figure.data[k].meta, count = this.paths[path].numbers.length, step = Math.min(this.step, count - 1);
      const share = each ? each * (step + 1) : length <= count ? step + 1 : Math.round(step * (length - 1) / (count - 1)) + 1;
      traces.push(k);
      data.push(Object.fromEntries(Object.entries(all).map(([axis, values]) => [axis, values.slice(0, share)])));
    });
    if (!traces.length) return;
    await plotly.animate(plot, { data, traces }, { mode: "immediate", transition: { duration: 0 }, frame: { duration: 0, redraw: true } }).catch(() => null);
  }
}
