// Exact values from a service of `landscape serve`: of a clicked or typed point, and of a box, drawn while its rows arrive.
import { ask, askLines } from "./api.js";
import { el, fill, labelled } from "./dom.js";
import { Patch, patchTraces, pointTraces } from "./exactlayers.js";
import { WORDS } from "./words.js";

const NEAR = 4; // pixels: a click this close to a grid point means the grid point
const PIXELS = 2; // of the screen per point of a patch, at least
const SIDES = [16, 32, 64, 128]; // points along a side of a patch, at most
const SIDE = 64, LINE = 4; // the default side; a line has this many times as many points
const SHARE = 3, PAUSE = 100; // pause between two drawings: times the last drawing's duration, and milliseconds at least

export class Exact {
  /** @param place is filled; @param page has `run`, `view`, `landscape`, `state`, `serving`, `tools`. */
  constructor(place, page) {
    this.place = place;
    this.page = page;
    this.axes = page.landscape.axes;
    this.side = SIDE;
    this.point = this.patch = null;
    page.view.overlay = figure => this.traces(figure);
    this.fields = this.axes.map(axis => el("input", { type: "number", step: "any", required: true }));
    this.words = el("p", { class: "answer", "aria-live": "polite" });
    this.slopes = el("p", { class: "answer", "aria-live": "polite" });
    this.filling = el("div", { class: "filling" });
    this.show();
  }

  /** Whether a service answers for this landscape now. */
  get served() { return Boolean(this.page.serving?.landscapes.includes(this.page.name)); }

  close() {
    this.asking?.abort();
    this.stop();
    this.page.view.overlay = () => [];
  }

  // -- what stands on the page ----------------------------------------------------------------------------------------

  /** Updates the page to whether there is a service; computed values stay. */
  show() {
    const { serving, tools } = this.page;
    for (const button of tools.querySelectorAll("[data-mode=patch]")) button.hidden = !this.served;
    const command = this.page.landscape.job ? serving?.command : null; // no service evaluates the network of an import
    if (this.shown === this.served && this.command === command) return;
    this.shown = this.served;
    this.command = command;
    const [before, after] = WORDS.exactNone, results = [this.words, this.slopes, this.filling];
    if (this.served) fill(this.place, el("h2", {}, WORDS.exactTitle), el("p", { class: "quiet" }, WORDS.exactHint), this.form(), results, this.boxForm());
    else fill(this.place, command ? el("p", { class: "quiet" }, before, el("code", {}, command), after) : null, this.point || this.patch ? results : null);
  }

  form() {
    const submit = event => { event.preventDefault(); this.at(this.fields.map(field => Number(field.value))); };
    return el("form", { class: "exactform", onsubmit: submit },
      this.axes.map((axis, k) => labelled(axis.name, this.fields[k])),
      el("button", { type: "submit" }, WORDS.exactAsk), el("button", { type: "button", onclick: () => this.slope() }, WORDS.exactSlopes));
  }

  /** An alternative to dragging: the ends of a box as numbers. */
  boxForm() {
    const drawn = this.axes.slice(0, 2), side = el("select", { onchange: event => { this.side = Number(event.target.value); } },
      SIDES.map(size => el("option", { value: size, selected: size === this.side }, String(size))));
    const ends = drawn.map(axis => [axis.low, axis.high].map(value => el("input", { type: "number", step: "any", required: true, value })));
    const submit = event => { event.preventDefault(); this.fill(ends.map(pair => pair.map(input => Number(input.value)))); };
    return el("details", {}, el("summary", {}, WORDS.patchByNumbers), el("form", { class: "exactform", onsubmit: submit },
      drawn.map((axis, k) => ends[k].map((input, end) => labelled(WORDS.patchEnds(axis.name, end), input))),
      labelled(WORDS.patchMost, side), el("button", { type: "submit" }, WORDS.patchAsk)));
  }

  // -- a point --------------------------------------------------------------------------------------------------------

  /** Handles a click at coordinates of the drawn axes; near a grid point it means that point. */
  touch({ x, y, pixel }) {
    if (!this.served) return;
    const { view } = this.page, grid = view.field(), one = this.axes.length === 1;
    const snapped = (at, values, unit) => {
      const near = values?.reduce((best, value) => (Math.abs(value - at) < Math.abs(best - at) ? value : best), Infinity);
      return unit === undefined || Math.abs(near - at) <= NEAR * unit ? near : Number(at.toPrecision(6));
    };
    const near = [snapped(x, grid?.x, pixel?.[0]), ...one ? [] : [snapped(y, grid?.y, pixel?.[1])]];
    const onGrid = near.every((value, k) => (k ? grid?.y : grid?.x)?.includes(value));
    const place = onGrid ? near : [x, ...one ? [] : [y]].map(value => Number(value.toPrecision(6)));
    this.at([...place, ...this.beyond()]);
  }

  /** Enter on the picture asks for the point of the cross-sections. */
  key(event) {
    const { pointer, view } = this.page, [j, i] = pointer?.pinned || [], grid = view.field();
    if (event.key !== "Enter" || event.target !== this.page.figure || !this.served || j === undefined || !grid) return;
    event.preventDefault();
    this.at([grid.x[i], grid.y[j]]);
  }

  /** The coordinate of the shown slice; undefined without slices. */
  beyond() {
    const { view } = this.page, slider = view.plot.layout?.sliders?.[0];
    return this.axes.length < 3 ? [] : [view.answer?.slices?.[slider?.active ?? 0] ?? 0];
  }

  /** Shows the exact values of a point. */
  async at(place) {
    this.asking?.abort();
    const asking = this.asking = new AbortController();
    this.fields.forEach((field, k) => { field.value = String(Number(place[k].toPrecision(12))); });
    this.point = null;
    fill(this.words, WORDS.exactAsking);
    fill(this.slopes);
    try {
      this.point = await ask("exact", { ...this.asked(), at: place.join(",") }, asking.signal);
      fill(this.words, WORDS.exactReading(this.names, this.point));
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(this.words, error.message);
    }
    this.page.view.relay();
  }

  /** Shows the derivatives of the loss at the point of the fields. */
  async slope() {
    if (!this.fields.every(field => field.reportValidity())) return;
    const { asking } = this, place = this.fields.map(field => Number(field.value));
    fill(this.slopes, WORDS.exactAsking);
    try {
      const answer = await ask("slopes", { ...this.asked(), at: place.join(",") }, asking?.signal);
      if (asking === this.asking) fill(this.slopes, WORDS.exactSlope(this.names, place, answer));
    } catch (error) {
      if (error.name !== "AbortError") fill(this.slopes, error.message);
    }
  }

  asked() { return { run: this.page.run.id, landscape: this.page.name }; }

  get names() { return this.axes.map(axis => axis.name); }

  // -- a patch --------------------------------------------------------------------------------------------------------

  /** Requests a box and draws it as its rows arrive. @param ranges [low, high] of each drawn axis. */
  async fill(ranges) {
    const drawn = Math.min(2, this.axes.length), box = ranges.slice(0, drawn).map(pair => pair.map(end => Number(Number(end).toPrecision(6))).sort((one, other) => one - other));
    if (this.page.view.space) { fill(this.filling, WORDS.patchFlat); return; }
    this.drop();
    if (box.length < drawn || box.some(([low, high]) => !(low < high))) { fill(this.filling, WORDS.patchBox); return; }
    const filling = this.running = new AbortController(), beyond = this.beyond(), most = this.side * (drawn === 1 ? LINE : 1);
    const sizes = this.pixels(box).map(length => Math.max(2, Math.min(most, Math.round(length / PIXELS))));
    window.Plotly?.update(this.page.view.plot, { selectedpoints: [null] }, { selections: [] }); // the patch draws its own edge
    const asked = { ...this.asked(), low: [...box.map(ends => ends[0]), ...beyond].join(","), high: [...box.map(ends => ends[1]), ...beyond].join(","), shape: [...sizes, ...beyond.map(() => 1)].join(",") };
    const patch = this.patch = new Patch(box, sizes);
    try {
      this.say(patch);
      for await (const line of askLines("patch", asked, filling.signal)) {
        if (line.error) throw new Error(line.error);
        patch.take(line);
        this.say(patch);
        this.draw();
      }
      patch.state = "whole";
    } catch (error) {
      if (filling !== this.running) return; // another patch has replaced it
      patch.state = error.name === "AbortError" ? WORDS.patchStopped : error.message;
    }
    if (filling !== this.running) return;
    this.running = null;
    this.say(patch);
    this.draw();
  }

  /** The lengths of a box on the screen along each axis. */
  pixels(box) {
    const { view } = this.page, { xaxis, yaxis } = view.plot._fullLayout || {};
    return box.map(([low, high], k) => {
      const axis = [xaxis, yaxis][k];
      return axis?.d2p && !view.space ? Math.abs(axis.d2p(high) - axis.d2p(low)) : Infinity;
    });
  }

  /** Draws the rows so far, no more often than the figure can be drawn. */
  draw() {
    this.due = true;
    if (this.drawing) return;
    this.drawing = (async () => {
      while (this.due) {
        this.due = false;
        const { view } = this.page;
        await view.relay().catch(() => null);
        view.plot.dataset.laid = String(Number(view.plot.dataset.laid || 0) + 1);
        await new Promise(done => setTimeout(done, Math.max(PAUSE, SHARE * view.milliseconds)));
      }
      this.drawing = null;
    })();
  }

  /** Shows the progress of a patch, with a button that ends or removes it. */
  say(patch) {
    const running = !patch.state, words = patch.words();
    if (!this.bar) this.bar = { progress: el("progress", {}), said: el("span", { class: "quiet" }), state: el("span", { class: "sentence", role: "status" }), button: el("button", { type: "button", class: "single", onclick: () => (this.running ? this.stop() : this.remove()) }) };
    const { progress, said, state, button } = this.bar;
    progress.max = patch.all;
    progress.value = patch.done;
    progress.setAttribute("aria-label", words);
    progress.hidden = !running;
    fill(said, words);
    fill(state, running || patch.state === "whole" ? "" : patch.state);
    fill(button, running ? WORDS.patchCancel : WORDS.patchClear);
    if (!this.filling.contains(button)) fill(this.filling, progress, said, state, button);
  }

  /** Stops computing the patch; its rows so far stay. */
  stop() { this.running?.abort(); }

  /** Forgets the patch, and ignores further rows. */
  drop() {
    this.stop();
    this.running = this.patch = null;
  }

  remove() {
    this.drop();
    fill(this.filling);
    this.draw();
  }

  /** Another slice is shown: drops the values of the previous one. */
  turned() {
    this.point = null;
    fill(this.words);
    fill(this.slopes);
    this.remove();
  }

  // -- what is drawn --------------------------------------------------------------------------------------------------

  traces(figure) {
    const { landscape, state, view } = this.page;
    const shown = { figure, axes: this.axes, observables: landscape.observables, name: state.observable || landscape.observables[0].name, log: Boolean(view.answer?.log) };
    return [...this.patch ? patchTraces(this.patch, shown) : [], ...this.point ? pointTraces(this.point, shown) : []];
  }
}
