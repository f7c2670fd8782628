// One run: its landscapes, one of them drawn with all controls, its training, its numbers; live while a job runs.
import { keep, oneOf } from "./address.js";
import { address, ask, getLooks } from "./api.js";
import { controls } from "./controls.js";
import { dataTable } from "./datatable.js";
import { choice, el, facts, fill, perFrame, settled } from "./dom.js";
import { History } from "./history.js";
import { jobDialog } from "./jobbox.js";
import { listen } from "./live.js";
import { cameraText, drawsSpace, lookOf } from "./look.js";
import { Player } from "./player.js";
import { askFigure, captionOf, FigureView } from "./plot.js";
import { Sections } from "./sections.js";
import { badge, progress, stateLines } from "./state.js";
import { onTheme } from "./theme.js";
import { WORDS } from "./words.js";
import { reading } from "./reading.js";

const ASKED = ["kind", "observable", "log", "levels", "exact", "zmin", "zmax", "scale", "uncertainty"]; // of the server

export class RunPage {
  constructor(place, state) {
    this.place = place;
    this.state = state;
    this.closers = [];
    this.refreshing = 0;
  }

  async open() {
    fill(this.place, el("p", { class: "quiet" }, WORDS.loading));
    this.closers.push(onTheme(() => { this.view?.again(); this.sections && (this.sections.stale = true); this.history?.draw(); }));
    const resized = settled(() => { if (innerWidth !== this.width) { this.width = innerWidth; this.view?.again(); this.history?.draw(); } }, 150);
    this.width = innerWidth;
    addEventListener("resize", resized);
    this.closers.push(() => removeEventListener("resize", resized));
    const full = () => setTimeout(() => { if (this.view) { this.view.tallest = document.fullscreenElement ? innerHeight * 0.72 : 640; this.view.again(); } }, 100);
    document.addEventListener("fullscreenchange", full);
    this.closers.push(() => document.removeEventListener("fullscreenchange", full));
    try {
      [this.run, this.looks] = await Promise.all([ask("run", { run: this.state.run }), getLooks()]);
    } catch (error) {
      if (!this.closed) fill(this.place, el("h1", {}, this.state.run || WORDS.runs), el("p", { class: "sentence", role: "alert" }, error.message));
      return;
    }
    if (this.closed) return;
    this.build();
    this.choose(this.state.landscape);
  }

  close() {
    this.closed = true;
    clearTimeout(this.refreshing);
    this.player?.stop();
    this.stop?.();
    this.view?.dispose();
    for (const closer of this.closers) closer();
  }

  // -- what stands on the page ----------------------------------------------------------------------------------------

  build() {
    const run = this.run;
    document.title = `${run.name}: ${WORDS.title.toLowerCase()}`;
    const here = document.querySelector("#trail span:last-child");
    if (here) fill(here, run.name);
    this.heading = el("div", { class: "state" });
    this.tabs = el("div", { class: "tabs" });
    this.notice = el("p", { class: "sentence", role: "alert", hidden: true });
    this.figurePlace = el("div", { class: "figure", tabindex: "0" });
    this.caption = el("figcaption");
    this.tools = el("div", { class: "tools" });
    this.playerPlace = el("div");
    this.sectionsPlace = el("div");
    this.panel = el("aside", { class: "panel", "aria-label": WORDS.picture });
    this.numbers = el("div", { class: "tables" });
    this.trouble = el("div", { class: "failures" });
    this.table = el("div");
    this.logs = el("div", { class: "logs" });
    this.provenance = el("div");
    const historyPlace = el("section", { class: "training", "aria-label": WORDS.training });
    fill(this.place,
      el("div", { class: "title" }, el("h1", {}, run.name), this.heading),
      this.tabs, this.notice,
      el("div", { class: `stage${run.history ? " withhistory" : ""}` }, run.history ? historyPlace : null,
        el("section", { class: "picture", "aria-label": WORDS.landscapes },
          this.tools, el("figure", {}, this.figurePlace, this.caption), this.playerPlace, this.sectionsPlace, this.table),
        this.panel),
      this.trouble, this.numbers, this.provenance, run.history ? null : historyPlace, this.logs,
      ...Object.entries(run.unreadable || {}).map(([name, reason]) => el("p", { class: "sentence" }, WORDS.unreadable(name, reason))),
      ...(run.problems || []).map(problem => el("p", { class: "sentence" }, problem)));
    this.view = new FigureView(this.figurePlace, {
      hover: perFrame(point => this.point(point)),
      click: point => this.pin(point),
      box: ranges => this.boxed(ranges),
      zoom: ranges => this.set({ zoom: ranges ? ranges.flat().map(value => Number(Number(value).toPrecision(6))).join(",") : undefined }, { draw: false }),
      camera: (camera, moving) => this.turned(camera, moving),
    });
    this.figurePlace.addEventListener("keydown", event => this.moved(event));
    this.sections = new Sections(this.sectionsPlace);
    this.history = new History(historyPlace, run, this.state, {
      choose: name => this.set({ landscape: name, kind: undefined, at: undefined, zoom: undefined }, { landscape: true }),
      keep: changes => this.set(changes, { draw: false }),
    });
    this.history.open();
    this.showLogs();
  }

  get landscape() {
    return this.run.landscapes.find(one => one.name === this.name);
  }

  /** Turns to a landscape of the run; the first one where the address names none or one that is gone. */
  choose(wanted) {
    const names = this.run.landscapes.map(one => one.name);
    if (!names.length) {
      this.showState();
      this.listenTo(undefined);
      this.view.say(WORDS.noLandscapes);
      fill(this.tools); fill(this.panel); fill(this.playerPlace); fill(this.sectionsPlace);
      return;
    }
    this.name = names.includes(wanted) ? wanted : names[0];
    this.notice.hidden = wanted === undefined || names.includes(wanted);
    if (!this.notice.hidden) fill(this.notice, WORDS.landscapeGone(wanted, this.name));
    this.settle();
    this.showTabs();
    this.showState();
    this.showControls();
    this.showFacts();
    this.showPlayer();
    this.draw();
    this.listenTo(this.name);
    this.history.mark(this.name);
  }

  /** Makes the state possible: what fits no landscape of this kind goes back to its default. */
  settle() {
    const { landscape, state } = this, kinds = this.kinds();
    state.kind = oneOf(state.kind, kinds, this.usualKind());
    state.observable = oneOf(state.observable, landscape.observables.map(one => one.name), undefined);
    state.scale = oneOf(state.scale, this.looks.scale_names.map(one => one.name), undefined);
    state.log = oneOf(state.log, ["0", "1"], undefined);
    for (const [name, low, high] of [["levels", 1, 100], ["zmin", -1e300, 1e300], ["zmax", -1e300, 1e300]])
      if (!(state[name] !== undefined && Number(state[name]) >= low && Number(state[name]) <= high)) delete state[name];
    this.flat = !drawsSpace() && ["surface", "volume"].includes(state.kind);
    if (this.flat) state.kind = kinds.find(kind => !["surface", "volume"].includes(kind)) || state.kind;
    keep("run", this.shared());
  }

  kinds() { return this.looks.kinds[this.landscape.axes.length].map(kind => kind.name); }

  usualKind() { return this.kinds()[0]; }

  shared() { return { ...this.state, landscape: this.name }; }

  /** Takes changes of the state: keeps the address in step and draws what they concern. */
  set(changes, { draw = true, landscape = false, controls: rebuild = false } = {}) {
    Object.assign(this.state, changes);
    for (const [name, value] of Object.entries(changes)) if (value === undefined || value === "") delete this.state[name];
    if (landscape) return this.choose(this.state.landscape);
    keep("run", this.shared());
    if (rebuild) this.showControls();
    if (!draw) return null;
    if (Object.keys(changes).some(name => ASKED.includes(name))) return this.draw();
    return this.restyle();
  }

  // -- drawing ----------------------------------------------------------------------------------------------------------

  asked() {
    const asked = { run: this.run.id, landscape: this.name };
    for (const name of ASKED) if (this.state[name] !== undefined) asked[name] = this.state[name];
    asked.log ??= "auto";
    return asked;
  }

  options(extra = {}) {
    const zoom = (this.state.zoom || "").split(",").map(Number);
    return {
      live: this.landscape?.state === "running",
      same: `${this.name} ${this.state.kind}`,
      zoom: zoom.length === 4 && zoom.every(Number.isFinite) ? [zoom.slice(0, 2), zoom.slice(2)] : null,
      dragmode: this.boxing ? "select" : undefined, ...extra,
    };
  }

  async draw(extra) {
    this.asking?.abort();
    const asking = this.asking = new AbortController(), began = this.name;
    this.figurePlace.setAttribute("aria-busy", "true");
    try {
      const answer = await askFigure(this.asked(), this.landscape.generation, asking.signal);
      if (asking.signal.aborted || this.closed || began !== this.name) return;
      await this.view.show(answer, lookOf(this.state), this.options(extra));
      this.shown();
    } catch (error) {
      if (error.name !== "AbortError" && !this.closed) { this.view.say(error.message); this.caption.textContent = ""; }
    } finally {
      if (this.asking === asking) this.figurePlace.removeAttribute("aria-busy");
    }
  }

  restyle = perFrame(() => this.view?.again(lookOf(this.state)));

  shown() {
    const { answer } = this.view;
    if (!answer) return;
    fill(this.caption, this.flat ? `${WORDS.noSpace} ` : "", captionOf(answer));
    this.figurePlace.setAttribute("aria-label", `${answer.title}. ${captionOf(answer)}`);
    this.log = Boolean(answer.log);
    this.signals?.dispatchEvent(new CustomEvent("answered", { detail: answer }));
    const at = (this.state.at || "").split(",").map(Number);
    if (this.landscape.axes.length === 2 && at.length === 2 && at.every(Number.isFinite)) this.pointAt(at);
    else if (this.landscape.axes.length === 2 && this.pinned) this.showPoint(...this.pinned);
    if (this.state.step !== undefined && this.player) this.player.to(this.player.indexOf(this.state.step));
  }

  // -- the pointer -------------------------------------------------------------------------------------------------------

  point(point) {
    if (this.landscape.axes.length !== 2) return;
    const field = this.view.field();
    if (!field) return;
    if (!point) { if (this.pinned) this.showPoint(...this.pinned); return; }
    this.showPoint(...nearest(field, point.x, point.y));
  }

  pin(point) {
    const field = this.view.field();
    if (!point || !field || this.landscape.axes.length !== 2) return;
    this.pinned = nearest(field, point.x, point.y);
    this.showPoint(...this.pinned);
    this.set({ at: `${short(field.x[this.pinned[1]])},${short(field.y[this.pinned[0]])}` }, { draw: false });
  }

  pointAt([x, y]) {
    const field = this.view.field();
    if (!field) return;
    this.pinned = nearest(field, x, y);
    this.showPoint(...this.pinned);
  }

  showPoint(j, i) {
    const field = this.view.field(), { axes } = this.landscape;
    if (!field || axes.length !== 2) return;
    const name = this.landscape.observables.find(one => one.name === (this.state.observable || this.landscape.observables[0].name));
    this.sections.show(field, j, i, axes, name?.title || "", this.log, reading(field, j, i, this.landscape));
  }

  /** Arrow keys move the cross-sections while the picture has the focus. */
  moved(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
    const field = this.view.field();
    if (!step || !field || this.landscape.axes.length !== 2) return;
    event.preventDefault();
    const [j, i] = this.pinned || nearest(field, 0, 0);
    const stride = event.shiftKey ? 5 : 1;
    this.pinned = [clamp(j + step[0] * stride, field.y.length), clamp(i + step[1] * stride, field.x.length)];
    this.showPoint(...this.pinned);
    this.set({ at: `${short(field.x[this.pinned[1]])},${short(field.y[this.pinned[0]])}` }, { draw: false });
  }

  turned(camera, moving) {
    this.signals?.dispatchEvent(new CustomEvent("turned", { detail: camera }));
    if (!moving) this.set({ camera: cameraText(camera) }, { draw: false });
  }

  async boxed(ranges) {
    if (ranges.length) await jobDialog(this.run, this.landscape, ranges);
  }

  // -- parts -------------------------------------------------------------------------------------------------------------

  showTabs() {
    const names = this.run.landscapes;
    fill(this.tabs, names.length < 2 ? [] : choice(WORDS.landscapes, names.map(one => [one.name, [one.name, " ", el("small", {}, badge(one.state))]]), this.name,
      name => this.set({ landscape: name, kind: undefined, observable: undefined, at: undefined, zoom: undefined, camera: undefined, step: undefined }, { landscape: true })));
  }

  showState() {
    fill(this.heading, this.landscape ? [badge(this.landscape.state), progress(this.landscape)] : "", stateLines(this.landscape));
  }

  showControls() {
    const { state } = this;
    const kinds = this.looks.kinds[this.landscape.axes.length].map(kind => [kind.name, WORDS.kinds[kind.name] || kind.title]);
    fill(this.tools,
      choice(WORDS.views, kinds, state.kind, kind => { this.set({ kind, zoom: undefined }); this.settle(); this.showControls(); }),
      this.saving());
    this.signals = new EventTarget();
    fill(this.panel, controls(this));
  }

  saving() {
    const save = el("span", { class: "choice", role: "group", "aria-label": WORDS.save },
      el("button", { type: "button", onclick: () => this.view.download("png") }, WORDS.png),
      el("button", { type: "button", onclick: () => this.view.download("svg") }, WORDS.svg),
      el("a", { class: "button", download: true, onmousedown: event => { event.target.href = address("csv", this.asked()); }, onfocus: event => { event.target.href = address("csv", this.asked()); },
        href: address("csv", this.asked()) }, WORDS.csv));
    const box = this.landscape.axes.length === 2 && !["surface"].includes(this.state.kind)
      ? el("button", { type: "button", class: "single", "aria-pressed": String(Boolean(this.boxing)), onclick: event => {
          this.boxing = !this.boxing;
          fill(event.target, this.boxing ? WORDS.boxOff : WORDS.boxTool);
          event.target.setAttribute("aria-pressed", String(this.boxing));
          window.Plotly?.relayout(this.view.plot, { dragmode: this.boxing ? "select" : "zoom" });
        } }, this.boxing ? WORDS.boxOff : WORDS.boxTool) : null;
    return [box, save,
      el("button", { type: "button", class: "single", onclick: async event => {
        await navigator.clipboard?.writeText(location.href).catch(() => null);
        fill(event.target, WORDS.copied); setTimeout(() => fill(event.target, WORDS.link), 1200);
      } }, WORDS.link),
      el("button", { type: "button", class: "single", onclick: () => this.fullScreen() }, WORDS.fullScreen)];
  }

  fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.figurePlace.closest(".picture").requestFullscreen?.();
  }

  showPlayer() {
    const { path } = this.landscape;
    this.player?.stop();
    this.player = path && path.numbers.length > 1 ? new Player(this.view, path, step => this.set({ step: step === path.numbers.length - 1 ? undefined : path.numbers[step] }, { draw: false })) : null;
    fill(this.playerPlace, this.player ? this.player.element : []);
  }

  showFacts() {
    const { landscape } = this, { rows } = landscape;
    this.pinned = null;
    fill(this.sectionsPlace);
    if (landscape.axes.length === 2) this.sections = new Sections(this.sectionsPlace);
    fill(this.numbers,
      el("div", {}, el("h2", {}, WORDS.facts), facts(rows.landscape)),
      el("div", {}, Object.entries(rows.observables).map(([name, values]) => [el("h2", {}, landscape.observables.find(one => one.name === name)?.title || name), facts(values)])),
      this.run.info.length ? el("div", {}, el("h2", {}, WORDS.trained), facts(this.run.info)) : []);
    fill(this.provenance, el("details", {}, el("summary", {}, WORDS.provenance), facts(rows.provenance), landscape.job ? [el("h3", {}, WORDS.job), el("pre", {}, landscape.job)] : null));
    fill(this.trouble, !landscape.failures.length ? [] : [el("h2", {}, WORDS.failures(landscape.failures.length)),
      el("ul", {}, landscape.failures.map(failure => el("li", {}, WORDS.failure(failure), failure.traceback ? el("details", {}, el("summary", {}, WORDS.traceback), el("pre", {}, failure.traceback)) : null)))]);
    fill(this.table, dataTable(() => this.view.field(), landscape.axes, this.state.observable || "loss", address("csv", this.asked())));
  }

  showLogs() {
    fill(this.logs, (this.run.logs || []).map(log => el("details", { "data-log": log.name }, el("summary", {}, WORDS.log(log.name)), el("pre", {}, log.lines.join("\n")))));
  }

  // -- live ---------------------------------------------------------------------------------------------------------------

  listenTo(name) {
    this.stop?.();
    const asked = this.asked();
    this.stop = listen({ run: this.run.id, landscape: name, observable: asked.observable, log: asked.log }, {
      state: body => this.changed(body),
      tiles: body => this.arrived(body),
      landscape: body => this.remade(body),
      log: body => this.logged(body),
      gone: body => { this.notice.hidden = false; fill(this.notice, body.error || WORDS.gone); },
    });
  }

  changed({ landscapes }) {
    let remade = false;
    for (const fresh of landscapes) {
      const known = this.run.landscapes.find(one => one.name === fresh.name);
      if (!known) { remade = true; continue; }
      const ended = known.state === "running" && fresh.state !== "running", newer = known.generation !== fresh.generation;
      Object.assign(known, fresh);
      if (fresh.name === this.name && (newer || ended)) { this.refreshSoon(); if (ended) remade = true; }
    }
    if (remade) this.reread();
    this.showState();
  }

  arrived({ landscape, tiles, generation }) {
    if (landscape !== this.name) return;
    const known = this.landscape;
    if (known && generation !== undefined) known.generation = generation;
    if (this.view.patch(tiles)) this.redraw();
    this.refreshSoon();
  }

  /** Draws patched tiles at once, and again only when the last drawing has ended. */
  async redraw() {
    this.again = true;
    if (this.redrawing) return;
    this.redrawing = true;
    while (this.again && !this.closed) {
      this.again = false;
      await this.view.redraw();
      this.view.plot.dataset.patched = String(Number(this.view.plot.dataset.patched || 0) + 1);
    }
    this.redrawing = false;
  }

  /** Asks for the whole figure again, with its scale and marks for what is missing: seldom enough to cost little. */
  refreshSoon() {
    if (this.refreshing) return;
    const pause = this.view.live ? Math.max(2000, 20 * this.view.milliseconds) : 700;
    this.refreshing = setTimeout(async () => {
      this.refreshing = 0;
      if (!this.closed && this.landscape) await this.draw();
    }, pause);
  }

  async reread() {
    try {
      const run = await ask("run", { run: this.run.id });
      if (this.closed) return;
      const fresh = !this.run.landscapes.some(one => one.name === this.name);
      this.run = run;
      if (!this.landscape || fresh) return void this.choose(this.name);
      this.showTabs(); this.showState(); this.showFacts(); this.draw();
    } catch (error) {
      this.notice.hidden = false;
      fill(this.notice, error.message);
    }
  }

  remade() { this.reread(); }

  logged({ name, lines }) {
    let place = this.logs.querySelector(`[data-log="${CSS.escape(name)}"]`);
    if (!place) { place = el("details", { "data-log": name }, el("summary", {}, WORDS.log(name)), el("pre")); this.logs.append(place); }
    fill(place.querySelector("pre"), lines.join("\n"));
  }

  // -- keys ---------------------------------------------------------------------------------------------------------------

  key(key) {
    if (!this.landscape) return false;
    const kinds = this.kinds(), names = this.run.landscapes.map(one => one.name);
    const beside = step => names[(names.indexOf(this.name) + step + names.length) % names.length];
    const press = {
      l: () => this.set({ log: this.log ? "0" : "1" }, { controls: true }),
      u: () => this.set({ uncertainty: this.state.uncertainty === "1" ? undefined : "1" }, { controls: true }),
      p: () => this.player?.toggle(),
      f: () => this.fullScreen(),
      r: () => this.reset(),
      "[": () => this.set({ landscape: beside(-1), kind: undefined, at: undefined, zoom: undefined }, { landscape: true }),
      "]": () => this.set({ landscape: beside(1), kind: undefined, at: undefined, zoom: undefined }, { landscape: true }),
    }[key] || (kinds[Number(key) - 1] && (() => { this.set({ kind: kinds[Number(key) - 1], zoom: undefined }); this.settle(); this.showControls(); }));
    if (!press) return false;
    press();
    return true;
  }

  reset() {
    for (const name of ["camera", "zoom", "ambient", "diffuse", "specular", "roughness", "lightfrom", "opacity"]) delete this.state[name];
    keep("run", this.shared());
    this.view.kept = null;
    this.showControls();
    this.draw({ reset: true });
  }
}

function nearest(field, x, y) {
  const closest = (values, wanted) => {
    let best = 0;
    for (let k = 1; k < values.length; k++) if (Math.abs(values[k] - wanted) < Math.abs(values[best] - wanted)) best = k;
    return best;
  };
  return [closest(field.y, y), closest(field.x, x)];
}

const clamp = (value, size) => Math.max(0, Math.min(size - 1, value));
const short = value => Number(value.toPrecision(6));

