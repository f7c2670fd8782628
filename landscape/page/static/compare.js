// Landscapes of any runs side by side, overlaid, or as differences; and the differences between their jobs.
import { keep, link, oneOf } from "./address.js";
import { ask, getLooks, nameOf } from "./api.js";
import { itemsOf, LAST, nameBehind, namesOf } from "./choosing.js";
import { lines, proportions, range } from "./controls.js";
import { choice, el, facts, fill, labelled, perFrame, settled } from "./dom.js";
import { cameraOf, cameraText, commandOf, drawsSpace, lookOf } from "./look.js";
import { captionOf, FigureView } from "./plot.js";
import { split } from "./runs.js";
import { onTheme } from "./theme.js";
import { commandButton, linkButton } from "./toolbar.js";
import { WORDS } from "./words.js";

const MOST_SCENES = 8; // browsers keep some 16 WebGL contexts a page and drop the oldest
const ASKED = ["mode", "kind", "observable", "log", "levels", "exact", "zmin", "zmax", "scale", "proportions", "rise"];
const KEPT = ["mode", "kind"]; // by the reset button, beside the landscapes
const LIMITS = { levels: [1, 100], zmin: [-1e300, 1e300], zmax: [-1e300, 1e300] };

export class ComparePage {
  constructor(place, state) {
    this.place = place;
    this.state = { mode: "tiled", ...state };
    this.items = [...new Set(state.item || [])];
    this.views = [];
    this.scenes = []; // views that show a 3-D scene, the last used one at the end
    this.closers = [];
    this.signals = new EventTarget();
  }

  async open() {
    document.title = `${WORDS.comparison}: ${WORDS.title.toLowerCase()}`;
    this.tools = el("div", { class: "tools" });
    this.chips = el("div", { class: "chips" });
    this.rule = el("div", { class: "rule" });
    this.facts = new Map(); // what was trained, and how good it is, by item
    this.notes = el("div");
    this.tiles = el("div", { class: "tiles" });
    this.table = el("section", { class: "differences" });
    fill(this.place, el("div", { class: "title" }, el("h1", {}, WORDS.compareTitle(this.items.length))), this.chips, this.rule, this.tools, this.notes, this.tiles, this.table);
    // An image keeps the theme and the size of its drawing.
    const again = () => (this.views.some(view => view.image) ? this.draw() : this.views.forEach(view => view.again()));
    this.closers.push(onTheme(again));
    const resized = settled(() => { if (innerWidth !== this.width) { this.width = innerWidth; again(); } }, 150);
    this.width = innerWidth;
    addEventListener("resize", resized);
    this.closers.push(() => removeEventListener("resize", resized));
    this.looks = await getLooks().catch(() => null);
    if (this.closed) return;
    this.showChips();
    await this.read();
  }

  close() {
    this.closed = true;
    this.asking?.abort();
    for (const view of this.views) view.dispose();
    for (const closer of this.closers) closer();
  }

  set(changes, { draw = true } = {}) {
    Object.assign(this.state, changes);
    for (const [name, value] of Object.entries(changes)) if (value === undefined) delete this.state[name];
    keep("compare", { ...this.state, item: this.items });
    if (draw) this.draw();
  }

  /** Another arrangement or view has other ranges and zooms. */
  arrange(changes) {
    this.set({ zooms: undefined, ...changes, zmin: undefined, zmax: undefined }, { draw: false });
    this.showTools();
    this.draw();
  }

  /** Everything of the pictures as at first; the landscapes, their arrangement and the view stay. */
  reset() {
    this.set(Object.fromEntries(Object.keys(this.state).filter(name => !KEPT.includes(name)).map(name => [name, undefined])), { draw: false });
    this.showTools();
    this.draw();
    this.tabulate();
  }

  commandOf() {
    const zooms = this.views.map(view => String(view.options?.zoom || "")), same = new Set(zooms).size < 2;
    const { command, left } = commandOf(this.answer || {}, { ...this.state, zoom: same ? zooms[0] : undefined }, this.views[0]?.space, this.answer?.log && this.axes === 1);
    return { command, left: same ? left : [...left, "zoom"] };
  }

  showChips() {
    fill(this.chips, this.items.map(item => {
      const [run, name] = split(item);
      return el("span", { class: "chip" }, el("a", { href: link("run", { run, landscape: name }) }, `${nameOf(run)}: ${name}`),
        el("button", { type: "button", "aria-label": WORDS.remove(`${nameOf(run)}: ${name}`), onclick: () => this.remove(item) }, "×"));
    }), this.adder());
  }

  adder() {
    const choose = el("select", { "aria-label": WORDS.add, onchange: event => { if (event.target.value) this.add(event.target.value); } }, el("option", { value: "" }, `+ ${WORDS.add}`));
    const offer = async () => {
      if (choose.dataset.offered) return;
      choose.dataset.offered = "1";
      const { runs } = await ask("runs").catch(() => ({ runs: [] }));
      choose.append(...runs.slice(0, 1000).filter(run => run.landscapes?.length).map(run => el("optgroup", { label: run.name },
        run.landscapes.map(one => el("option", { value: `${run.id}|${one.name}` }, `${run.name}: ${one.name}`)))));
    };
    choose.addEventListener("focus", offer);
    choose.addEventListener("pointerdown", offer);
    return choose;
  }

  add(item) {
    if (!this.items.includes(item)) this.items = [...this.items, item];
    this.renew();
  }

  remove(item) {
    this.items = this.items.filter(one => one !== item);
    this.renew();
  }

  renew() {
    delete this.state.zooms; // they are those of the pictures by their places
    keep("compare", { ...this.state, item: this.items });
    fill(this.place.querySelector("h1"), WORDS.compareTitle(this.items.length));
    this.showChips();
    this.read();
  }

  /** The compared landscapes; their axes decide which views there are. */
  async read() {
    if (this.items.length < 2) {
      this.drop();
      fill(this.tools); fill(this.table); fill(this.rule);
      fill(this.notes, el("p", { class: "sentence" }, this.items.length ? WORDS.compareOne : WORDS.compareEmpty));
      return;
    }
    const items = this.items, answers = await Promise.all([...new Set(this.items.map(item => split(item)[0]))].map(run => ask("run", { run }).catch(error => ({ id: run, error }))));
    if (this.closed || items !== this.items) return; // a landscape was added or removed meanwhile
    this.runs = new Map(answers.map(run => [run.id, run]));
    const landscapes = this.items.map(item => { const [run, name] = split(item); return this.runs.get(run)?.landscapes?.find(one => one.name === name); }).filter(Boolean);
    this.axes = landscapes[0]?.axes.length || 2;
    this.observables = landscapes[0]?.observables || [];
    this.showChips();
    this.showRule();
    this.showTools();
    await Promise.all([this.draw(), this.tabulate()]);
  }

  /** Says how the landscapes of several runs were chosen, and offers other names. */
  showRule() {
    const runs = [...this.runs.values()].filter(run => run.landscapes?.length);
    if (runs.length < 2 || runs.length < this.runs.size) { fill(this.rule); return; }
    const names = namesOf(runs), chosen = nameBehind(this.items, runs), shared = names.some(one => one.count === runs.length);
    const words = chosen === undefined ? WORDS.chosenOneByOne : chosen === LAST ? WORDS.chosenLasts(shared) : WORDS.chosenOfName(chosen, names.find(one => one.name === chosen).count, runs.length);
    const options = [...names.map(one => [one.name, WORDS.chosenName(one, runs.length)]), [LAST, WORDS.chosenLast]];
    const select = el("select", { onchange: event => { this.items = itemsOf(runs, event.target.value); this.renew(); } },
      chosen === undefined ? el("option", { selected: true, disabled: true, hidden: true }, "–") : null,
      options.map(([value, name]) => el("option", { value, selected: value === chosen }, name)));
    fill(this.rule, el("p", {}, words), labelled(WORDS.chosenBy, select));
  }

  showTools() {
    const { state } = this, kinds = (this.looks?.kinds[this.axes] || []).map(kind => kind.name).filter(kind => !["slices", "barcode"].includes(kind));
    const usual = kinds.includes("contour") ? "contour" : kinds[0];
    state.kind = oneOf(state.kind, kinds, usual);
    if (state.kind === "surface" && !drawsSpace()) state.kind = usual;
    for (const [name, [low, high]] of Object.entries(LIMITS)) if (!(Number(state[name]) >= low && Number(state[name]) <= high)) delete state[name];
    state.mode = oneOf(state.mode, Object.keys(WORDS.modes), "tiled");
    const loss = !state.observable || state.observable === "loss", pressed = () => oneOf(state.rise, ["0", "1"], this.answer?.rise ? "1" : "0");
    this.rises = loss ? el("span") : null;
    this.showRise = () => this.rises && fill(this.rises, choice(WORDS.values, Object.entries(WORDS.risesOf).reverse(), pressed(), rise => this.arrange({ rise, zooms: this.state.zooms })));
    this.showRise();
    const scales = this.looks?.scale_names || [];
    const check = (name, words, usual, draw = true) => el("label", { class: "check" }, el("input", { type: "checkbox", checked: (state[name] ?? usual) === "1",
      onchange: event => this.set({ [name]: event.target.checked === (usual === "1") ? undefined : event.target.checked ? "1" : "0" }, { draw }) }), el("span", {}, words));
    fill(this.tools,
      choice(WORDS.mode, Object.entries(WORDS.modes), state.mode, mode => this.arrange({ mode })),
      kinds.length > 1 ? choice(WORDS.views, kinds.map(kind => [kind, WORDS.kinds[kind] || kind]), state.kind, kind => this.arrange({ kind })) : null,
      this.rises,
      choice(WORDS.scale, [["", WORDS.automaticScale], ["0", WORDS.linear], ["1", WORDS.logarithmic]], oneOf(state.log, ["0", "1"], ""), log => this.set({ log: log || undefined })),
      this.observables.length > 1 ? labelled(WORDS.observable, el("select", { onchange: event => this.arrange({ observable: event.target.value, rise: undefined }) }, this.observables.map(one => el("option", { value: one.name, selected: one.name === state.observable }, one.title)))) : null,
      labelled(WORDS.colours, el("select", { onchange: event => this.set({ scale: event.target.value || undefined }) }, [{ name: "", title: WORDS.automaticScale }, ...scales].map(one => el("option", { value: one.name, selected: one.name === (state.scale || "") }, one.title)))),
      state.kind === "curve" ? null : [proportions(this), lines(this)],
      state.mode === "difference" ? range(this, "zmax", WORDS.limit) : [range(this, "zmax", WORDS.clip), range(this, "zmin", WORDS.clipLow)],
      check("lock", WORDS.lock, "1"), check("cameras", WORDS.linkCameras, "1", false), check("cursors", WORDS.linkCursors, "1", false),
      linkButton(), commandButton(this), el("button", { type: "button", class: "single", onclick: () => this.reset() }, WORDS.reset));
  }

  asked() {
    const asked = { item: this.items, lock: this.state.lock ?? "1", mode: oneOf(this.state.mode, Object.keys(WORDS.modes), "tiled") };
    for (const name of ASKED) if (name !== "mode" && this.state[name] !== undefined) asked[name] = this.state[name];
    return asked;
  }

  drop() {
    for (const view of this.views) view.dispose();
    this.views = [];
    this.scenes = [];
    fill(this.tiles);
  }

  async draw() {
    this.asking?.abort();
    const asking = this.asking = new AbortController();
    this.tiles.setAttribute("aria-busy", "true");
    try {
      const answer = await ask("compare", this.asked(), asking.signal);
      if (asking.signal.aborted || this.closed) return;
      this.drop();
      this.answer = answer;
      this.showRise();
      this.signals.dispatchEvent(new CustomEvent("answered", { detail: answer }));
      fill(this.notes, answer.notes.map(note => el("p", { class: "quiet" }, note)));
      this.tiles.dataset.count = String(Math.min(3, answer.figures.length));
      for (const figure of answer.figures) {
        await this.tile(figure);
        if (asking.signal.aborted || this.closed) return; // another comparison was requested while this one was drawn
      }
    } catch (error) {
      if (error.name === "AbortError" || asking.signal.aborted || this.closed) return;
      this.drop();
      fill(this.notes, el("p", { class: "sentence", role: "alert" }, error.message));
    } finally {
      if (this.asking === asking) this.tiles.removeAttribute("aria-busy");
    }
  }

  async tile(answer) {
    const place = el("div", { class: "figure" });
    const save = format => el("button", { type: "button", onclick: () => view.download(format) }, WORDS[format]);
    this.tiles.append(el("figure", { class: "tile" }, el("h2", {}, answer.title), place, el("figcaption", {}, captionOf(answer)), this.factsOf(answer.items),
      el("span", { class: "choice", role: "group", "aria-label": WORDS.save }, save("png"), save("svg"))));
    const view = new FigureView(place, {
      camera: (camera, moving) => this.turned(view, camera, moving),
      hover: perFrame(point => this.pointed(view, point)),
      zoom: () => this.set({ zooms: this.views.map(one => (one.options?.zoom ? one.options.zoom.flat().map(value => Number(Number(value).toPrecision(6))).join(",") : "")).join(";").replace(/^;*$/, "") || undefined }, { draw: false }),
    });
    view.tallest = this.state.mode === "tiled" ? 460 : 640;
    this.views.push(view);
    const zoom = (this.state.zooms || "").split(";")[this.views.indexOf(view)]?.split(",").map(Number) || [];
    await view.show(answer, lookOf(this.state), { same: "compare", zoom: zoom.length === 4 && zoom.every(Number.isFinite) ? [zoom.slice(0, 2), zoom.slice(2)] : null });
    if (view.space && this.views.includes(view)) await this.admit(view);
  }

  /** What was trained, under its picture; several landscapes of one picture have a column each. */
  factsOf(items) {
    const place = el("div", { class: "trained" }), known = items.map(item => this.facts.get(item));
    place.items = items;
    if (!known.every(Boolean)) return place; // filled by `showFacts`
    const names = [...new Set(known.flat().map(([name]) => name))], of = (rows, name) => rows.find(row => row[0] === name)?.[1] ?? "–";
    return fill(place, items.length === 1 ? facts(known[0]) : el("table", {},
      el("thead", {}, el("tr", {}, el("td"), items.map(item => el("th", { scope: "col" }, split(item).map((part, k) => (k ? part : nameOf(part))).join(": "))))),
      el("tbody", {}, names.map(name => el("tr", {}, el("th", { scope: "row" }, name), known.map(rows => el("td", {}, of(rows, name))))))));
  }

  showFacts() {
    for (const place of this.tiles.querySelectorAll(".trained")) place.replaceWith(this.factsOf(place.items));
  }

  // -- linked views ------------------------------------------------------------------------------------------------------

  turned(view, camera, moving) {
    if (moving || this.linking) return;
    this.scenes = [...this.scenes.filter(one => one !== view), view];
    this.set({ camera: cameraText(camera) }, { draw: false });
    if ((this.state.cameras ?? "1") !== "1") return;
    this.linking = true;
    Promise.all(this.views.filter(one => one !== view && one.space && !one.image)
      .map(one => window.Plotly.relayout(one.plot, { "scene.camera": { ...one.plot.layout.scene.camera, ...cameraOf(this.state.camera) } }))).finally(() => { this.linking = false; });
  }

  pointed(view, point) {
    if ((this.state.cursors ?? "1") !== "1" || this.state.mode !== "tiled" || view.space) return;
    for (const other of this.views) {
      if (other === view || other.space || !other.plot._fullLayout?.xaxis) continue;
      this.cursor(other, point);
    }
  }

  /** A cross over another figure at the same coordinates; an element of the page, so plotly redraws nothing. */
  cursor(view, point) {
    const layout = view.plot._fullLayout;
    view.cross ??= view.place.appendChild(el("span", { class: "cross", "aria-hidden": "true" }));
    if (!view.cross.isConnected) view.place.append(view.cross);
    const x = point && layout.xaxis.d2p(point.x), y = point && layout.yaxis.d2p(point.y);
    view.cross.hidden = !point || !Number.isFinite(x) || !Number.isFinite(y);
    if (view.cross.hidden) return;
    view.cross.style.left = `${view.plot.offsetLeft + layout.xaxis._offset + x}px`;
    view.cross.style.top = `${view.plot.offsetTop + layout.yaxis._offset + y}px`;
  }

  /** Keeps the number of 3-D scenes low: the least recently used one becomes an image. */
  async admit(view) {
    this.scenes = [...this.scenes.filter(one => one !== view), view];
    if (this.scenes.length <= MOST_SCENES) return;
    const oldest = this.scenes.shift();
    const image = el("img", { src: await oldest.picture(), alt: oldest.answer.title });
    const button = el("button", { type: "button", class: "asimage", title: WORDS.asImage, onclick: async () => {
      button.remove();
      oldest.image = false;
      oldest.place.append(oldest.plot);
      await oldest.again(lookOf(this.state));
      await this.admit(oldest);
    } }, image);
    oldest.image = true;
    window.Plotly.purge(oldest.plot);
    oldest.plot._landscapeListening = false;
    oldest.space = undefined;
    fill(oldest.place, button);
  }

  key(key) {
    const view = this.views.findLast(one => one.zooms.length);
    if (key === "r" && this.answer) { this.reset(); return true; }
    if (key !== "z" || !view) return false;
    view.zoomBack();
    return true;
  }

  // -- the table -----------------------------------------------------------------------------------------------------------

  async tabulate() {
    const items = this.items;
    let answer;
    try {
      answer = await ask("differences", { item: items });
    } catch (error) {
      return items === this.items ? fill(this.table, el("p", { class: "sentence" }, error.message)) : null;
    }
    if (this.closed || items !== this.items) return null;
    for (const { item, facts: rows } of answer.columns) this.facts.set(item, rows);
    this.showFacts();
    const all = this.state.same === "1";
    return fill(this.table, el("h2", {}, WORDS.differences),
      el("label", { class: "check" }, el("input", { type: "checkbox", checked: !all, onchange: event => { this.set({ same: event.target.checked ? undefined : "1" }, { draw: false }); this.tabulate(); } }), el("span", {}, WORDS.onlyDifferent)),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": WORDS.differences },
        answer.sections.map(section => this.sectionTable(section, answer.columns, all))),
      answer.notes.map(note => el("p", { class: "quiet" }, note)));
  }

  sectionTable(section, columns, all) {
    const rows = section.rows.filter(row => all || row.differs);
    if (!rows.length) return null;
    const place = el("table");
    const numeric = section.rows.some(row => row.numbers.some(value => value !== null));
    const cell = (...content) => el("div", { class: "cell" }, content);
    const value = (row, k) => (row.wholes[k] ? el("details", { class: "whole" }, el("summary", { title: WORDS.whole }, row.values[k]), row.wholes[k]) : row.values[k] ?? "–");
    const draw = (by, down) => {
      const places = columns.map((_, k) => k);
      if (by) places.sort((one, other) => { const [a, b] = [by.numbers[one], by.numbers[other]]; return (a === null) - (b === null) || (a - b) * (down ? -1 : 1); });
      fill(place, el("caption", {}, section.title),
        el("thead", {}, el("tr", {}, el("td"), places.map(k => el("th", { scope: "col" }, cell(columns[k].run, el("small", {}, ` ${columns[k].landscape}`)))))),
        el("tbody", {}, rows.map(row => el("tr", { class: row.differs ? "differs" : "" },
          el("th", { scope: "row" }, cell(numeric && row.numbers.some(value => value !== null)
            ? el("button", { type: "button", title: WORDS.sortBy(row.name), onclick: () => draw(row, by === row && !down) }, row.name, by === row ? (down ? " ↓" : " ↑") : "") : row.name)),
          places.map(k => el("td", {}, cell(value(row, k))))))));
    };
    draw(null, false);
    return place;
  }
}
