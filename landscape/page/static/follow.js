// A landscape while it is computed: tiles are drawn at once, the whole figure is requested rarely.
import { listen } from "./live.js";

const LEAST = 2000, LEAST_WHOLE = 700, MOST = 10000; // milliseconds between two whole figures, with and without patched tiles
const COST = 20; // times the last drawing's duration: the page draws at most a twentieth of the time

export class Follower {
  /** @param page has `run`, `view`, `landscape`, `asked()`, `draw()`; @param on listeners: changed(), reread(), serving(body), log(body), trouble(sentence). */
  constructor(page, on) {
    this.page = page;
    this.on = on;
    this.follow(false);
  }

  /** Opens the stream whose tiles fit the figure: those of its observable, on its scale. */
  follow(log) {
    const { page } = this, { state, name: landscape } = page;
    const wanted = { run: page.run.id, landscape, observable: state.observable, log: log ? "1" : "0" }, key = JSON.stringify(wanted);
    if (key === this.key) return;
    this.key = key;
    page.view.live = null; // the tiles of this stream fit only the next figure
    this.close?.();
    this.close = listen(wanted, {
      state: body => this.changed(body),
      tiles: body => this.arrived(body),
      landscape: () => this.on.reread(),
      serving: body => this.on.serving?.(body),
      log: this.on.log,
      gone: body => this.on.trouble(body.error),
      problem: body => this.on.trouble(body.error),
    });
  }

  end() {
    this.ended = true;
    clearTimeout(this.waiting);
    this.close();
  }

  /** Updates the states of all landscapes; if one is new or has ended, the tables must be read again. */
  changed({ landscapes }) {
    const { page } = this;
    let reread = false;
    for (const fresh of landscapes) {
      const known = page.run.landscapes.find(one => one.name === fresh.name);
      if (!known) { // an unreadable landscape is not requested again until that has changed
        reread ||= fresh.state !== "unreadable" || !Object.hasOwn(page.run.unreadable || {}, fresh.name);
        continue;
      }
      const ended = known.state === "running" && fresh.state !== "running", newer = known.generation !== fresh.generation;
      Object.assign(known, fresh);
      if (fresh.name !== page.name) continue;
      if (ended) reread = true;
      else if (newer) this.drawSoon();
    }
    if (reread) this.on.reread();
    this.on.changed();
  }

  arrived({ landscape, tiles, generation }) {
    const { page } = this;
    if (landscape !== page.name || !page.landscape) return;
    if (generation !== undefined) page.landscape.generation = generation;
    if (page.view.patch(tiles)) this.redraw();
    this.drawSoon();
  }

  /** Draws patched tiles at once; tiles that arrive meanwhile are drawn together afterwards. */
  async redraw() {
    this.more = true;
    if (this.drawing) return;
    this.drawing = true;
    try {
      while (this.more && !this.ended) {
        this.more = false;
        await this.page.view.redraw();
        const { dataset } = this.page.view.plot;
        dataset.patched = String(Number(dataset.patched || 0) + 1);
      }
    } catch {
      this.drawSoon(); // if that fails too, it shows the error
    } finally {
      this.drawing = false;
    }
  }

  /** Requests the whole figure, with its scale and contour lines, the more rarely the costlier it is, and one at a time:
   * a newer request would cancel the one under way, and a slow server's answer would never arrive. */
  drawSoon() {
    this.due = true;
    if (this.waiting) return;
    const { view } = this.page, patched = view.live && view.answer?.low !== null; // a figure without a value has nothing to patch
    const pause = patched ? Math.min(MOST, Math.max(LEAST, COST * view.milliseconds)) : LEAST_WHOLE;
    this.waiting = setTimeout(async () => {
      this.due = false;
      if (!this.ended && this.page.landscape) await this.page.draw();
      this.waiting = 0;
      if (this.due && !this.ended) this.drawSoon();
    }, pause);
  }
}
