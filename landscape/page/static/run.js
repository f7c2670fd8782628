// One run: its landscapes, one of them drawn with all controls, its training and numbers; live while a job runs.
import { keep, oneOf } from "./address.js";
import { address, ask, getLooks } from "./api.js";
import { controls } from "./controls.js";
import { dataTable } from "./datatable.js";
import { choice, el, fill, perFrame, settled } from "./dom.js";
import { Exact } from "./exact.js";
import { Follower } from "./follow.js";
import { History } from "./history.js";
import { jobDialog } from "./jobbox.js";
import { cameraText, commandOf, drawsSpace, lookOf } from "./look.js";
import { showChecks, showFailures, showLog, showNumbers, showProvenance } from "./numbers.js";
import { longest } from "./path.js";
import { Player } from "./player.js";
import { askFigure, captionOf, FigureView } from "./plot.js";
import { Pointer } from "./pointer.js";
import { badge, progress, stateLines } from "./state.js";
import { onTheme } from "./theme.js";
import { toolbar } from "./toolbar.js";
import { WORDS } from "./words.js";

const ASKED = ["kind", "observable", "log", "levels", "exact", "zmin", "zmax", "clip", "scale", "proportions", "uncertainty", "extrema"]; // options of requests to the server
const LIMITS = { levels: [1, 100], zmin: [-1e300, 1e300], zmax: [-1e300, 1e300], clip: [50, 100] };
const OF_ONE = ["kind", "observable", "at", "zoom", "camera", "step", "slice", "zmin", "zmax"]; // reset when another landscape is chosen
const LOOKS = ["camera", "zoom", "ambient", "diffuse", "specular", "roughness", "lightfrom", "opacity", "path", "pathcolour", "pathwidth", "at", "step", "slice"];

export class RunPage {
  constructor(place, state) {
    this.place = place;
    this.state = state;
    this.closers = [];
  }

  async open() {
    fill(this.place, el("p", { class: "quiet" }, WORDS.loading));
    this.closers.push(onTheme(() => { this.again(); this.pointer?.stale(); this.history?.draw(); }));
    this.width = innerWidth;
    this.listen(window, "resize", settled(() => { if (innerWidth !== this.width) { this.width = innerWidth; this.again(); this.history?.draw(); } }, 150));
    this.listen(document, "fullscreenchange", settled(() => { if (this.view) { this.view.tallest = document.fullscreenElement ? innerHeight * 0.72 : 640; this.again(); } }, 100));
    try {
      [this.run, this.looks] = await Promise.all([ask("run", { run: this.state.run }), getLooks()]);
    } catch (error) {
      if (!this.closed) fill(this.place, el("h1", {}, WORDS.runs), el("p", { class: "sentence", role: "alert" }, error.message));
      return;
    }
    if (this.closed) return;
    this.build();
    this.choose(this.state.landscape);
  }

  listen(target, event, listener) {
    target.addEventListener(event, listener);
    this.closers.push(() => target.removeEventListener(event, listener));
  }

  close() {
    this.closed = true;
    this.asking?.abort();
    this.player?.stop();
    this.follower?.end();
    this.exact?.close();
    this.view?.dispose();
    for (const closer of this.closers) closer();
  }

  // -- what stands on the page ----------------------------------------------------------------------------------------

  build() {
    const { run } = this, training = el("section", { class: "training", "aria-label": WORDS.training });
    document.title = `${run.name}: ${WORDS.title.toLowerCase()}`;
    fill(document.querySelector("#trail span:last-child"), run.name);
    for (const name of ["heading", "tabs", "tools", "playing", "pointing", "exactly", "table", "checks", "trouble", "numbers", "provenance", "logs"]) this[name] = el("div", { class: name });
    this.notice = el("p", { class: "sentence", role: "alert", hidden: true });
    this.figure = el("div", { class: "figure", tabindex: "0", onkeydown: event => { this.pointer?.key(event); this.exact?.key(event); } });
    this.caption = el("figcaption");
    this.panel = el("aside", { class: "panel", "aria-label": WORDS.picture });
    const sentences = [...Object.entries(run.unreadable || {}).map(([name, reason]) => WORDS.unreadable(name, reason)), ...(run.problems || [])];
    fill(this.place,
      el("div", { class: "title" }, el("h1", {}, run.name), this.heading), this.tabs, this.notice,
      el("div", { class: `stage${run.history ? " withhistory" : ""}` }, run.history ? training : null,
        el("section", { class: "picture", "aria-label": WORDS.landscapes },
          this.tools, el("figure", {}, this.figure, this.caption), this.playing, this.pointing, this.exactly, this.table),
        this.panel),
      this.checks, this.trouble, this.numbers, this.provenance, run.history ? null : training, this.logs,
      sentences.map(sentence => el("p", { class: "sentence" }, sentence)));
    this.view = new FigureView(this.figure, {
      hover: perFrame(point => this.pointer?.hover(point)),
      click: point => { this.pointer?.pin(point); if (point && this.state.kind === "surface") this.exact?.touch(point); },
      touch: at => this.exact?.touch(at),
      box: ranges => { if (ranges.length && this.boxing === "patch") this.exact.fill(ranges); else if (ranges.length) jobDialog(this.run, this.landscape, ranges.slice(0, this.landscape.axes.length)); },
      zoom: ranges => this.set({ zoom: ranges ? ranges.flat().map(value => Number(Number(value).toPrecision(6))).join(",") : undefined }, { draw: false }),
      slice: number => { this.set({ slice: number }, { draw: false }); this.exact?.turned(); },
      camera: (camera, moving) => this.turned(camera, moving),
    });
    this.history = new History(training, run, this.state, {
      choose: name => this.turnToLandscape(name),
      keep: changes => this.set(changes, { draw: false }),
    }, this.view.begun);
    this.history.open();
    for (const log of run.logs || []) showLog(this.logs, log);
  }

  get landscape() {
    return this.run.landscapes.find(one => one.name === this.name);
  }

  /** Shows a landscape of the run; the first one if the address names none, or a removed one. */
  choose(wanted) {
    const names = this.run.landscapes.map(one => one.name);
    this.name = names.includes(wanted) ? wanted : names[0];
    this.lost = wanted === undefined || names.includes(wanted) ? "" : WORDS.landscapeGone(wanted, this.name);
    this.say(this.lost);
    if (names.length) this.showLandscape();
    else this.showNone();
    this.follower?.end();
    this.follower = new Follower(this, {
      changed: () => { this.say(this.lost); this.showState(); showFailures(this.trouble, this.landscape?.failures || []); },
      reread: () => this.reread(),
      serving: body => { this.serving = body; this.exact?.show(); },
      log: body => showLog(this.logs, body),
      trouble: sentence => this.say(sentence || WORDS.gone),
    });
  }

  showNone() {
    for (const place of [this.heading, this.tabs, this.tools, this.panel, this.playing, this.pointing, this.exactly, this.table, this.checks, this.numbers, this.provenance]) fill(place);
    this.view.say(WORDS.noLandscapes);
  }

  showLandscape() {
    this.settle();
    this.exact?.close();
    this.exact = new Exact(this.exactly, this);
    this.showState();
    this.showTabs();
    this.showControls();
    this.showFacts();
    this.showPlayer();
    this.pointer = new Pointer(this.pointing, this);
    this.history.mark(this.name);
    this.draw();
  }

  say(sentence) {
    this.notice.hidden = !sentence;
    fill(this.notice, sentence);
  }

  // -- the state --------------------------------------------------------------------------------------------------------

  /** Resets parts of the state that do not fit this landscape to their defaults. */
  settle() {
    const { landscape, state } = this, kinds = this.kinds();
    state.kind = oneOf(state.kind, kinds, kinds[0]);
    state.observable = oneOf(state.observable, landscape.observables.map(one => one.name), undefined);
    state.proportions = oneOf(state.proportions, ["fill"], undefined);
    state.scale = oneOf(state.scale, this.looks.scale_names.map(one => one.name), undefined);
    for (const name of ["log", "exact", "uncertainty", "extrema"]) state[name] = oneOf(state[name], ["0", "1"], undefined);
    for (const [name, [low, high]] of Object.entries(LIMITS)) if (!(Number(state[name]) >= low && Number(state[name]) <= high)) delete state[name];
    if ("zmax" in state) delete state.clip;
    const space = kind => ["surface", "volume"].includes(kind);
    this.flat = space(state.kind) && !drawsSpace();
    if (this.flat) state.kind = kinds.find(kind => !space(kind)) || state.kind;
    this.keep();
  }

  kinds() { return this.looks.kinds[this.landscape.axes.length].map(kind => kind.name); }

  keep() { keep("run", { ...this.state, landscape: this.name }); }

  /** Applies changes of the state: updates the address and redraws the affected parts. */
  set(changes, { draw = true, controls: rebuild = false } = {}) {
    Object.assign(this.state, changes);
    for (const [name, value] of Object.entries(changes)) if (value === undefined || value === "") delete this.state[name];
    this.keep();
    if (rebuild) this.showControls();
    if (!draw) return;
    if (Object.keys(changes).some(name => ASKED.includes(name))) this.draw();
    else this.restyle();
  }

  turnTo(kind) {
    Object.assign(this.state, { kind, zoom: undefined });
    this.settle();
    this.showControls();
    this.draw();
  }

  turnToLandscape(name) {
    for (const part of OF_ONE) delete this.state[part];
    this.choose(name);
  }

  /** Everything of the picture as at first; the landscape and the view stay. */
  reset() {
    for (const name of [...LOOKS, ...ASKED]) if (name !== "kind") delete this.state[name];
    this.boxing = "";
    this.keep();
    this.view.kept = null;
    this.showControls();
    this.showPlayer();
    this.pointer = new Pointer(this.pointing, this);
    this.draw({ reset: true });
  }

  commandOf() { return commandOf(this.view.answer || {}, this.state, this.view.space, this.log && this.landscape.axes.length === 1); }

  // -- drawing ----------------------------------------------------------------------------------------------------------

  /** The request to the server for the picture. */
  asked() {
    const asked = { run: this.run.id, landscape: this.name, log: "auto" };
    for (const name of ASKED) if (this.state[name] !== undefined) asked[name] = this.state[name];
    return asked;
  }

  options(extra = {}) {
    const zoom = (this.state.zoom || "").split(",").map(Number);
    return {
      live: this.landscape?.state === "running",
      same: `${this.name} ${this.state.kind}`,
      zoom: zoom.length === 4 && zoom.every(Number.isFinite) ? [zoom.slice(0, 2), zoom.slice(2)] : null,
      slice: this.state.slice === undefined ? undefined : Number(this.state.slice),
      dragmode: this.boxing && this.state.kind !== "barcode" ? "select" : undefined, selectdirection: this.landscape?.axes.length === 1 ? "h" : "any", ...extra,
    };
  }

  async draw(extra) {
    this.asking?.abort();
    const asking = this.asking = new AbortController(), began = this.name;
    this.figure.setAttribute("aria-busy", "true");
    try {
      const answer = await askFigure(this.asked(), this.landscape.generation, asking.signal);
      if (asking.signal.aborted || this.closed || began !== this.name) return;
      this.log = Boolean(answer.log);
      this.follower?.follow(this.log); // before it is drawn: a tile of another scale must not be written into it
      await this.view.show(answer, lookOf(this.state), this.options(extra));
      this.shown();
    } catch (error) {
      if (error.name !== "AbortError" && !this.closed) { this.view.say(error.message); this.caption.textContent = ""; }
    } finally {
      if (this.asking === asking) this.figure.removeAttribute("aria-busy");
    }
  }

  restyle = perFrame(() => this.again(lookOf(this.state)));

  /** Redraws the same answer with another look or size; the path still ends at the player's snapshot. */
  async again(look) {
    try {
      await this.view?.again(look);
      if (this.state.step !== undefined) await this.player?.draw();
    } catch (error) {
      if (!this.closed) this.view.say(error.message);
    }
  }

  /** Updates the parts around the picture. */
  shown() {
    const { answer } = this.view;
    if (!answer) return;
    const noValue = answer.low === null ? el("strong", { class: "sentence" }, WORDS.noValues(this.landscape.done), " ") : null;
    fill(this.caption, noValue, this.flat ? `${WORDS.noSpace} ` : "", captionOf(answer));
    this.figure.setAttribute("aria-label", `${answer.title}. ${captionOf(answer)}`);
    this.signals?.dispatchEvent(new CustomEvent("answered", { detail: answer }));
    this.pointer.again();
    if (this.state.step !== undefined && this.player) this.player.to(this.player.indexOf(this.state.step));
  }

  turned(camera, moving) {
    this.signals?.dispatchEvent(new CustomEvent("turned", { detail: camera }));
    if (!moving) this.set({ camera: cameraText(camera) }, { draw: false });
  }

  fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.figure.closest(".picture").requestFullscreen?.();
  }

  // -- parts --------------------------------------------------------------------------------------------------------------

  showTabs() {
    const tabs = this.run.landscapes.map(one => [one.name, [one.name, " ", el("small", {}, badge(one.state))]]);
    fill(this.tabs, tabs.length < 2 ? [] : choice(WORDS.landscapes, tabs, this.name, name => this.turnToLandscape(name)));
  }

  showState() {
    const { landscape } = this;
    fill(this.heading, landscape ? [badge(landscape.state), progress(landscape), stateLines(landscape)] : "");
  }

  showControls() {
    fill(this.tools, toolbar(this));
    this.pointing.hidden = this.exactly.hidden = this.state.kind === "barcode"; // a barcode has no points
    this.signals = new EventTarget();
    fill(this.panel, controls(this));
    this.offered = this.observables();
  }

  observables() { return this.landscape.observables.map(one => one.name).join(" "); }

  showPlayer() {
    const { paths = [] } = this.landscape, path = longest(paths);
    this.player?.stop();
    this.player = path && path.numbers.length > 1
      ? new Player(this.view, paths, step => this.set({ step: step === path.numbers.length - 1 ? undefined : path.numbers[step] }, { draw: false })) : null;
    fill(this.playing, this.player ? this.player.element : []);
  }

  showFacts() {
    const { landscape } = this;
    showChecks(this.checks, landscape.checks);
    showNumbers(this.numbers, landscape, this.run);
    showProvenance(this.provenance, landscape);
    showFailures(this.trouble, landscape.failures);
    fill(this.table, dataTable(() => this.view.field(), landscape.axes, () => this.state.observable || "loss", () => address("csv", this.asked())));
  }

  /** Reads the run again after a landscape has ended, is new, or is gone. */
  async reread() {
    try {
      const run = await ask("run", { run: this.run.id }), before = this.name;
      if (this.closed) return;
      this.run = run;
      if (!this.landscape || before === undefined) { this.choose(before); return; }
      this.showTabs();
      this.showState();
      this.showFacts();
      if (this.observables() !== this.offered) { // an extension has added one; otherwise a control in use is not replaced
        this.settle();
        this.showControls();
      }
      this.draw();
    } catch (error) {
      this.say(error.message);
    }
  }

  // -- keys ---------------------------------------------------------------------------------------------------------------

  key(key) {
    if (!this.landscape) return false;
    const kinds = this.kinds(), names = this.run.landscapes.map(one => one.name);
    const beside = step => names[(names.indexOf(this.name) + step + names.length) % names.length];
    const press = {
      l: () => this.set({ log: this.log ? "0" : "1" }),
      u: () => this.set({ uncertainty: this.state.uncertainty === "1" ? undefined : "1" }, { controls: true }),
      m: () => this.set({ extrema: this.state.extrema === "1" ? undefined : "1" }, { controls: true }),
      p: () => this.player?.toggle(),
      f: () => this.fullScreen(),
      r: () => this.reset(),
      z: () => this.view.zoomBack(),
      "[": () => this.turnToLandscape(beside(-1)),
      "]": () => this.turnToLandscape(beside(1)),
    }[key] || (kinds[Number(key) - 1] && (() => this.turnTo(kinds[Number(key) - 1])));
    if (!press) return false;
    press();
    return true;
  }
}
