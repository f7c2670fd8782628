// The list of runs: sorted, filtered, selected for comparison. Only the rows in sight are elements of the page.
import { go, keep, link } from "./address.js";
import { ask } from "./api.js";
import { itemsOf, usualName } from "./choosing.js";
import { el, fill, perFrame } from "./dom.js";
import { listen } from "./live.js";
import { badge } from "./state.js";
import { thumbnail } from "./thumbs.js";
import { WORDS } from "./words.js";

const ROW = 58, SPARE = 6; // height of a row in pixels, as the style sheet has it; rows drawn beyond the window
const COLUMNS = ["name", "picture", "state", "lowest", "model", "optimiser", "learning_rate", "when"];

export class RunsPage {
  constructor(place, state) {
    this.place = place;
    this.state = state;
    this.runs = new Map();
    this.selected = new Set([...state.tick || [], ...(state.item || []).map(item => split(item)[0])]); // by their identifiers
    delete state.item;
    this.shown = [];
  }

  async open() {
    document.title = WORDS.title;
    this.filter = el("input", { type: "search", id: "filter", placeholder: WORDS.filterHint, value: this.state.q || "", autocomplete: "off", spellcheck: "false", "aria-label": WORDS.filter,
      oninput: () => this.set({ q: this.filter.value || undefined }) });
    this.count = el("span", { class: "quiet", role: "status" });
    this.compareButton = el("button", { type: "button", class: "single strong", onclick: () => go("compare", { item: itemsOf(this.ticked, usualName(this.ticked)) }) });
    this.clearButton = el("button", { type: "button", class: "single", onclick: () => { this.selected.clear(); this.select(); } }, WORDS.clearSelection);
    this.head = el("div", { class: "row head", role: "row" });
    this.body = el("div", { class: "rows", role: "rowgroup" });
    this.window = el("div", { class: "window", tabindex: "0", role: "table", "aria-label": WORDS.runs }, this.head, this.body);
    this.words = el("div");
    fill(this.place, el("div", { class: "title" }, el("h1", {}, WORDS.runs), this.count),
      el("div", { class: "tools" }, this.filter, this.compareButton, this.clearButton), this.words, this.window);
    this.onScroll = perFrame(() => this.paint());
    addEventListener("scroll", this.onScroll, { passive: true });
    addEventListener("resize", this.onScroll);
    this.showHead();
    this.select(false);
    await this.read();
    if (this.closed) return;
    let times = 0; // changes before the stream opened are in none of its events
    this.stop = listen({}, { runs: body => this.changed(body) }, () => {
      if (times++ || this.scanning || [...this.runs.values()].some(run => run.pending)) this.read();
    });
  }

  close() {
    this.closed = true;
    this.stop?.();
    removeEventListener("scroll", this.onScroll);
    removeEventListener("resize", this.onScroll);
  }

  async read() {
    const meanwhile = this.meanwhile = []; // the answer may be older than changes that arrive before it
    try {
      const body = await ask("runs");
      if (this.closed || this.meanwhile !== meanwhile) return; // a later answer is awaited
      this.meanwhile = null;
      this.places = body.places;
      this.scanning = body.scanning;
      this.runs = new Map(body.runs.map(run => [run.id, prepared(run)]));
      this.arrange();
      meanwhile.forEach(change => this.changed(change));
    } catch (error) {
      if (this.meanwhile === meanwhile) this.meanwhile = null;
      fill(this.words, el("p", { class: "sentence", role: "alert" }, error.message));
    }
  }

  changed(change) {
    this.meanwhile?.push(change);
    const { changed = [], removed = [], scanning } = change;
    for (const run of changed) this.runs.set(run.id, prepared(run));
    for (const id of removed) {
      this.runs.delete(id);
      this.selected.delete(id);
    }
    if (removed.length) this.select(false);
    this.scanning = scanning;
    this.arrange();
  }

  set(changes) {
    Object.assign(this.state, changes);
    keep("runs", { ...this.state, tick: [...this.selected] });
    this.arrange();
  }

  // -- which rows, in which order ---------------------------------------------------------------------------------------

  arrange() {
    const words = (this.state.q || "").toLowerCase().split(/\s+/).filter(Boolean);
    const [column, down] = sorting(this.state.sort);
    this.shown = [...this.runs.values()].filter(run => words.every(word => run.text.includes(word)));
    this.shown.sort((one, other) => order(one, other, column, down) || one.id.localeCompare(other.id));
    fill(this.count, WORDS.listed(this.shown.length, this.runs.size), this.scanning ? ` ${WORDS.scanning}` : "");
    fill(this.words,
      (this.places || []).filter(place => place.problem).map(place => el("p", { class: "sentence" }, place.problem)),
      !this.runs.size && !this.scanning && this.places ? el("p", { class: "sentence" }, WORDS.noRuns(this.places.map(place => place.path || place.name).join(", "))) : null,
      this.runs.size && !this.shown.length ? el("p", { class: "sentence" }, WORDS.noMatch(this.state.q)) : null);
    this.window.hidden = !this.runs.size;
    this.range = null;
    this.select(false); // a run may have got its first landscape
    this.paint();
  }

  showHead() {
    const [column, down] = sorting(this.state.sort);
    fill(this.head, el("span", { role: "columnheader", class: "select" }), COLUMNS.map(name => el("span", { role: "columnheader", class: name, "aria-sort": name === column ? (down ? "descending" : "ascending") : "none" },
      name === "picture" ? WORDS.columns[name] : el("button", { type: "button", title: WORDS.sortBy(WORDS.columns[name]),
        onclick: () => { this.set({ sort: name === column && !down ? `-${name}` : name }); this.showHead(); } }, WORDS.columns[name], name === column ? (down ? " ↓" : " ↑") : ""))));
  }

  /** Makes elements only for the visible rows. */
  paint() {
    if (!this.body.isConnected) return;
    const top = this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / ROW) - SPARE), last = Math.min(this.shown.length, Math.ceil((innerHeight - top) / ROW) + SPARE);
    if (this.range && this.range[0] === first && this.range[1] === last) return;
    this.range = [first, last];
    this.body.style.height = `${this.shown.length * ROW}px`;
    this.window.setAttribute("aria-rowcount", String(this.shown.length + 1));
    fill(this.body, this.shown.slice(first, last).map((run, k) => this.row(run, first + k)));
  }

  row(run, number) {
    const cell = (name, ...content) => el("span", { role: "cell", class: name }, content);
    const landscapes = run.landscapes || [];
    const row = el("div", { class: "row", role: "row", "aria-rowindex": number + 2, "data-run": run.id },
      cell("select", landscapes.length ? el("input", { type: "checkbox", "aria-label": WORDS.selectRun(run.name), checked: this.selected.has(run.id), onchange: event => this.tick(run, event.target.checked) }) : null),
      cell("name", el("a", { href: link("run", { run: run.id }) }, run.name), el("small", { class: "quiet", title: run.source ? `${run.path} (from ${run.source})` : run.path }, run.source ? `${run.path} (from ${run.source})` : run.path)),
      cell("picture", landscapes.slice(0, 3).map(one => el("a", { href: link("run", { run: run.id, landscape: one.name }) }, thumbnail(run.id, one.name, one.generation, one.name))),
        landscapes.length > 3 ? el("small", { class: "quiet" }, WORDS.more(landscapes.length - 3)) : null),
      cell("state", run.pending ? el("span", { class: "quiet" }, WORDS.pending) : run.problem ? el("span", { class: "problem", title: run.problem }, run.problem) : [badge(run.state),
        run.state === "running" ? [el("progress", { max: run.points || 1, value: run.done || 0, "aria-label": WORDS.progress(run.done || 0, run.points || 0) }),
          run.eta_seconds ? el("small", { class: "quiet" }, WORDS.eta(WORDS.seconds(run.eta_seconds))) : null] : null]),
      cell("lowest", WORDS.lowest(run.lowest, run.lowest_stderr)), cell("model", run.model || ""), cell("optimiser", run.optimiser || ""), cell("learning_rate", digits(run.learning_rate)),
      cell("when", run.when ? el("time", { datetime: run.when }, run.when.slice(0, 16).replace("T", " ")) : ""));
    row.style.top = `${number * ROW}px`;
    return row;
  }

  // -- selection ------------------------------------------------------------------------------------------------------------

  tick(run, on) {
    if (on) this.selected.add(run.id);
    else this.selected.delete(run.id);
    this.select();
  }

  /** The selected runs that have a landscape to compare. */
  get ticked() { return [...this.selected].map(id => this.runs.get(id)).filter(run => run?.landscapes?.length); }

  select(paint = true) {
    const count = this.ticked.length;
    fill(this.compareButton, WORDS.compareSelected(count));
    this.compareButton.disabled = count < 2;
    this.clearButton.hidden = !this.selected.size;
    if (!paint) return;
    keep("runs", { ...this.state, tick: [...this.selected] });
    this.range = null;
    this.paint();
  }

  key(key) {
    if (key !== "/") return false;
    this.filter.focus();
    return true;
  }
}

export function split(item) {
  const at = item.lastIndexOf("|");
  return [item.slice(0, at), item.slice(at + 1)];
}

function prepared(run) {
  const names = (run.landscapes || []).map(one => one.name).join(" ");
  return { ...run, text: [run.path, run.name, run.model, run.optimiser, run.state, run.learning_rate, run.when, names].filter(part => part !== null && part !== undefined).join(" ").toLowerCase() };
}

function sorting(text) {
  const name = (text || "-when").replace(/^-/, "");
  return COLUMNS.includes(name) ? [name, (text || "-when").startsWith("-")] : ["when", true];
}

/** Numbers by size, texts alphabetically; unknown or unread values come last in both orders. */
function order(one, other, column, down) {
  const [a, b] = [one[column], other[column]];
  const none = value => value === null || value === undefined || value === "";
  if (none(a) || none(b)) return Number(none(a)) - Number(none(b));
  const sign = down ? -1 : 1;
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

function digits(value) {
  return typeof value === "number" && Number.isFinite(value) ? String(Number(value.toPrecision(4))) : value ?? "";
}
