// The buttons above a picture: its views, a box for a job, saving, a link, full screen.
import { address } from "./api.js";
import { choice, copyText, el, fill } from "./dom.js";
import { WORDS } from "./words.js";

/** @param page has `state`, `landscape`, `looks`, `view`, `asked()`, `turnTo(kind)`, `fullScreen()`. */
export function toolbar(page) {
  const kinds = page.looks.kinds[page.landscape.axes.length].map(kind => [kind.name, WORDS.kinds[kind.name] || kind.title]);
  return [choice(WORDS.views, kinds, page.state.kind, kind => page.turnTo(kind)), boxButton(page), saving(page), linkButton(),
    el("button", { type: "button", class: "single", onclick: () => page.fullScreen() }, WORDS.fullScreen)];
}

function boxButton(page) {
  if (page.landscape.axes.length > 2 || ["surface", "barcode"].includes(page.state.kind)) return null;
  const words = () => (page.boxing ? WORDS.boxOff : WORDS.boxTool);
  return el("button", { type: "button", class: "single", "aria-pressed": String(Boolean(page.boxing)), title: WORDS.boxHint, onclick: event => {
    page.boxing = !page.boxing;
    fill(event.target, words());
    event.target.setAttribute("aria-pressed", String(page.boxing));
    const { dragmode, selectdirection } = page.options();
    if (page.view.options) Object.assign(page.view.options, { dragmode, selectdirection });
    window.Plotly?.relayout(page.view.plot, { dragmode: dragmode || "zoom", selectdirection });
  } }, words());
}

function saving(page) {
  const button = format => el("button", { type: "button", onclick: () => page.view.download(format) }, WORDS[format]);
  const renew = event => { event.target.href = address("csv", page.asked()); };
  return el("span", { class: "choice", role: "group", "aria-label": WORDS.save }, button("png"), button("svg"),
    el("a", { class: "button", download: true, href: address("csv", page.asked()), onpointerdown: renew, onfocus: renew }, WORDS.csv));
}

function linkButton() {
  return el("button", { type: "button", class: "single", onclick: async event => {
    fill(event.target, await copyText(location.href) ? WORDS.copied : WORDS.notCopied);
    setTimeout(() => fill(event.target, WORDS.link), 1200);
  } }, WORDS.link);
}
