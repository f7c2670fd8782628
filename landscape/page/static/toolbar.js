// The buttons above a picture: its views, a box for a job or a patch, saving, a link, full screen.
import { address } from "./api.js";
import { choice, copyText, el, fill } from "./dom.js";
import { WORDS } from "./words.js";

/** @param page has `state`, `landscape`, `looks`, `view`, `asked()`, `turnTo(kind)`, `fullScreen()`. */
export function toolbar(page) {
  const kinds = page.looks.kinds[page.landscape.axes.length].map(kind => [kind.name, WORDS.kinds[kind.name] || kind.title]);
  return [choice(WORDS.views, kinds, page.state.kind, kind => page.turnTo(kind)), ...boxButtons(page), saving(page), linkButton(), commandButton(page),
    el("button", { type: "button", class: "single", onclick: () => page.fullScreen() }, WORDS.fullScreen)];
}

/** The effect of dragging over a picture: zooming, or marking a box for the pressed button. */
function boxButtons(page) {
  const { kind } = page.state, axes = page.landscape.axes.length, flat = !["surface", "volume", "barcode"].includes(kind);
  return [flat && axes < 3 ? modeButton(page, "box") : null, flat ? modeButton(page, "patch") : null];
}

function modeButton(page, mode) {
  const isOn = () => page.boxing === mode, words = () => (isOn() ? WORDS.boxOff : WORDS.boxModes[mode]);
  return el("button", { type: "button", class: "single", "data-mode": mode, "aria-pressed": String(isOn()), title: WORDS.boxHints[mode], hidden: mode === "patch" && !page.exact?.served, onclick: () => {
    page.boxing = isOn() ? "" : mode;
    for (const button of page.tools.querySelectorAll("[data-mode]")) {
      button.setAttribute("aria-pressed", String(button.dataset.mode === page.boxing));
      fill(button, button.dataset.mode === page.boxing ? WORDS.boxOff : WORDS.boxModes[button.dataset.mode]);
    }
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

export function linkButton() {
  return copyButton(WORDS.link, () => location.href);
}

/** Copies the shell command that exports the picture, and says what of the view it leaves out. @param page has `commandOf()`. */
export function commandButton(page) {
  const said = el("span", { class: "quiet", role: "status" });
  const read = () => {
    const { command, left } = page.commandOf();
    button.title = command;
    fill(said, left.length ? WORDS.commandLeaves(left) : "");
    return command;
  };
  const button = copyButton(WORDS.command, read, { onpointerenter: read, onfocus: read });
  return [button, said];
}

function copyButton(name, read, more = {}) {
  return el("button", { type: "button", class: "single", ...more, onclick: async event => {
    fill(event.target, await copyText(read()) ? WORDS.copied : WORDS.notCopied);
    setTimeout(() => fill(event.target, name), 1200);
  } }, name);
}
