// The training history beside its landscapes: every recorded column, shaded intervals; other runs can be overlaid.
import { oneOf } from "./address.js";
import { ask, getLooks, getPlotly, nameOf } from "./api.js";
import { el, fill } from "./dom.js";
import { fitHistory, recolour } from "./fit.js";
import { copy } from "./plot.js";
import { darkNow } from "./theme.js";
import { WORDS } from "./words.js";

export class History {
  /** @param on choose(name of a landscape), keep(changes of the state); @param after the promise of the previous drawing. */
  constructor(place, run, state, on, after) {
    Object.assign(this, { place, run, on, after });
    this.others = (state.overlay || "").split("|").filter(Boolean);
    this.log = state.histlog === "1";
    this.unit = oneOf(state.histunit, run.history?.units || [], undefined);
  }

  open() {
    const { run } = this;
    if (!run.history) return fill(this.place, el("p", { class: "quiet" }, WORDS.noHistory));
    this.plot = el("div", { class: "plot" });
    this.words = el("p", { class: "quiet" }, run.landscapes.length ? WORDS.historyHint : null);
    this.plot.addEventListener("click", event => this.clicked(event));
    this.watched = el("div", { class: "watched" });
    fill(this.place, el("h2", {}, WORDS.training), el("figure", {}, this.plot, this.words), this.watched, this.options());
    return this.ask();
  }

  options() {
    const overlay = el("select", { "aria-label": WORDS.overlay, onchange: event => { if (event.target.value) this.lay(event.target.value); } }, el("option", { value: "" }, WORDS.overlay));
    overlay.addEventListener("focus", () => this.offer(overlay), { once: true });
    overlay.addEventListener("pointerdown", () => this.offer(overlay), { once: true });
    this.chips = el("span", { class: "chips" });
    this.showChips();
    return el("div", { class: "tools" }, overlay, this.chips, this.units(),
      el("label", { class: "check" }, el("input", { type: "checkbox", checked: this.log, onchange: event => {
        this.log = event.target.checked;
        this.on.keep({ histlog: this.log ? "1" : undefined });
        this.ask();
      } }), el("span", {}, WORDS.historyLog)));
  }

  /** The unit of the axis, if the rows of the history have several. */
  units() {
    const { units = [] } = this.run.history;
    if (units.length < 2) return null;
    return el("select", { "aria-label": WORDS.historyUnit, onchange: event => {
      this.unit = event.target.value || undefined;
      this.on.keep({ histunit: this.unit });
      this.ask();
    } }, el("option", { value: "" }, WORDS.historyUnit), units.map(unit => el("option", { value: unit, selected: unit === this.unit }, WORDS.byUnit(unit))));
  }

  async offer(overlay) {
    if (this.offered) return;
    this.offered = true;
    const { runs } = await ask("runs").catch(() => ({ runs: [] }));
    overlay.append(...runs.filter(run => run.id !== this.run.id).slice(0, 2000).map(run => el("option", { value: run.id }, run.name)));
  }

  lay(id) {
    if (!this.others.includes(id)) this.others.push(id);
    this.keepOthers();
  }

  keepOthers() {
    this.on.keep({ overlay: this.others.join("|") || undefined });
    this.showChips();
    this.ask();
  }

  showChips() {
    fill(this.chips, this.others.map(id => el("button", { type: "button", class: "chip", "aria-label": WORDS.remove(nameOf(id)),
      onclick: () => { this.others = this.others.filter(one => one !== id); this.keepOthers(); } }, nameOf(id), " ×")));
  }

  async ask() {
    if (!this.run.history) return;
    try {
      this.answer = await ask("history", { run: [this.run.id, ...this.others], log: this.log ? "1" : undefined, unit: this.unit });
      await this.draw();
      this.showWatched();
    } catch (error) {
      fill(this.words, error.message);
    }
  }

  /** The first rules that fired in training. */
  showWatched() {
    const marks = (this.answer.figure.layout.meta.watch || []).filter(mark => mark.run === 0);
    const lines = marks.map(mark => mark.line);
    fill(this.watched, lines.length ? [el("p", {}, WORDS.watched(lines.length)), el("ul", {}, lines.slice(0, 6).map(line => el("li", {}, line)))] : null);
  }

  async draw() {
    if (!this.answer) return;
    await this.after;
    const [plotly, looks] = await Promise.all([getPlotly(), getLooks()]);
    const figure = copy(this.answer.figure), theme = darkNow() ? "dark" : "light";
    recolour(figure.data, theme);
    fitHistory(figure, this.plot.clientWidth || 500);
    figure.layout.template = looks.templates[theme];
    this.emphasise(figure.layout);
    await plotly.react(this.plot, figure.data, figure.layout, { ...looks.config, responsive: false, displayModeBar: false });
    this.plot.dataset.drawn = "1";
  }

  /** Outlines the interval of the shown landscape. */
  emphasise(layout) {
    for (const shape of layout.shapes || [])
      if (shape.name === this.chosen) shape.line = { width: 1.5, color: darkNow() ? "#ff7aa8" : "#b3245a" };
  }

  mark(name) {
    this.chosen = name;
    if (this.answer) this.draw();
  }

  /** A click on a shaded stretch chooses its landscape; of overlapping ones, the shortest. */
  clicked(event) {
    const layout = this.plot._fullLayout;
    if (!layout || event.target.closest(".legend")) return;
    const box = this.plot.getBoundingClientRect();
    const x = layout.xaxis.p2d(event.clientX - box.left - layout.xaxis._offset);
    // The first run is this page's; the stretches of other runs belong to landscapes that it does not have.
    const hits = this.answer.figure.layout.meta.intervals.filter(one => one.runs.includes(0) && x >= one.start && x <= one.stop);
    hits.sort((one, other) => (one.stop - one.start) - (other.stop - other.start));
    if (hits.length) this.on.choose(hits[0].landscape);
  }
}
