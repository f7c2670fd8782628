// The controls of one landscape's picture. Each writes one part of the state; the page redraws what has changed.
import { choice, el, fill, labelled } from "./dom.js";
import { CAMERA, LIGHT, lookOf } from "./look.js";
import { WORDS } from "./words.js";

/** @param page has `state`, `landscape`, `looks`, `signals` and `set(changes)`. */
export function controls(page) {
  const { state, landscape, looks } = page, space = ["surface", "volume"].includes(state.kind), look = lookOf(state);
  return [
    group(WORDS.picture, [
      landscape.observables.length > 1 ? labelled(WORDS.observable, select(landscape.observables.map(one => [one.name, one.title]), state.observable || landscape.observables[0].name,
        value => page.set({ observable: value === landscape.observables[0].name ? undefined : value, zmin: undefined, zmax: undefined }, { controls: "zmin" in state || "zmax" in state }))) : null,
      scaleChoice(page),
      ["curve", "barcode"].includes(state.kind) ? null : labelled(WORDS.colours, colourMaps(looks, state, page)),
      ["contour", "topographic", "surface"].includes(state.kind) ? lines(page) : null,
      state.kind === "barcode" ? null : [ // a barcode shows lengths in place of values
        range(page, "zmax", WORDS.clip), range(page, "zmin", WORDS.clipLow), percentile(page),
        check(WORDS.uncertainty, state.uncertainty === "1", on => page.set({ uncertainty: on ? "1" : undefined })),
        check(WORDS.extrema, state.extrema === "1", on => page.set({ extrema: on ? "1" : undefined })),
      ],
      ["curve", "barcode"].includes(state.kind) ? null : proportions(page),
      ["curve", "barcode"].includes(state.kind) ? null : slider(WORDS.opacity, 0.1, 1, 0.05, look.opacity, value => page.set({ opacity: value === 1 ? undefined : value })),
    ]),
    landscape.paths?.length ? group(WORDS.pathGroup, [
      check(WORDS.path, look.path, on => page.set({ path: on ? undefined : "0" })),
      landscape.paths.some(path => path.label) ? null // with several runs, colours tell the runs apart
        : labelled(WORDS.pathColour, el("input", { type: "color", value: look.pathColour, oninput: event => page.set({ pathcolour: event.target.value }) })),
      slider(WORDS.pathWidth, 0.5, 10, 0.5, look.pathWidth, value => page.set({ pathwidth: value })),
    ]) : null,
    space ? lightAndCamera(page, look) : null,
    el("p", {}, el("button", { type: "button", class: "single", onclick: () => page.reset() }, WORDS.reset)),
  ];
}

function group(name, parts) {
  return el("fieldset", {}, el("legend", {}, name), parts);
}

function select(options, chosen, choose) {
  return el("select", { onchange: event => choose(event.target.value) }, options.map(([value, name]) => el("option", { value, selected: value === chosen }, name)));
}

function scaleChoice(page) {
  const place = el("span"), show = log => fill(place, choice(WORDS.scale, [["0", WORDS.linear], ["1", WORDS.logarithmic]], log, value => page.set({ log: value })));
  show(page.state.log ?? (page.log ? "1" : "0"));
  page.signals.addEventListener("answered", event => show(event.detail.log ? "1" : "0"));
  return el("div", { class: "field" }, el("span", { class: "name" }, WORDS.scale), place);
}

/** Axes true to their ranges, or as long as the picture has room. */
export function proportions(page) {
  const choices = Object.entries(WORDS.proportionsOf), chosen = page.state.proportions === "fill" ? "fill" : "true";
  return el("div", { class: "field" }, el("span", { class: "name" }, WORDS.proportions),
    el("span", {}, choice(WORDS.proportions, choices, chosen, value => page.set({ proportions: value === "fill" ? value : undefined }))));
}

function colourMaps(looks, state, page) {
  const groups = [[WORDS.perceptual, looks.scale_names.filter(one => one.perceptual)], [WORDS.misleading, looks.scale_names.filter(one => !one.perceptual)]];
  return el("select", { onchange: event => page.set({ scale: event.target.value || undefined }) },
    el("option", { value: "", selected: !state.scale }, WORDS.automaticScale),
    groups.filter(([, names]) => names.length).map(([name, scales]) => el("optgroup", { label: name },
      scales.map(one => el("option", { value: one.name, selected: one.name === state.scale }, one.title)))));
}

/** The number of contour lines, and whether exactly so many are drawn. */
export function lines(page) {
  const { state } = page;
  const words = el("output", { class: "quiet" });
  page.signals.addEventListener("answered", event => { words.textContent = event.detail.levels ? String(event.detail.levels.length) : ""; });
  const number = el("input", { type: "number", min: 1, max: 100, step: 1, value: state.levels || "", placeholder: WORDS.automatic,
    onchange: event => page.set({ levels: event.target.value || undefined }) });
  return el("div", { class: "pair" }, labelled(WORDS.lines, number, words), check(WORDS.exact, state.exact === "1", on => page.set({ exact: on ? "1" : undefined })));
}

/** An end of the range that is drawn; its placeholder is the end that was chosen. */
export function range(page, name, words) {
  const input = el("input", { type: "number", step: "any", value: page.state[name] || "", placeholder: WORDS.automatic,
    onchange: event => page.set({ [name]: event.target.value || undefined, ...(name === "zmax" && { clip: undefined }) }, { controls: name === "zmax" && "clip" in page.state }) });
  page.signals.addEventListener("answered", event => {
    const end = event.detail[name === "zmax" ? "high" : "low"];
    if (Number.isFinite(end)) input.placeholder = String(Number(end.toPrecision(4)));
  });
  return labelled(words, input);
}

/** The share of the values that is drawn: higher ones are cut off. The option for the highest value takes precedence. */
function percentile(page) {
  const set = event => page.set({ clip: event.target.value || undefined, zmax: undefined }, { controls: "zmax" in page.state });
  return labelled(WORDS.percentile, el("input", { type: "number", min: 50, max: 100, step: "any", value: page.state.clip || "", placeholder: WORDS.automatic, onchange: set }));
}

function check(name, checked, choose) {
  return el("label", { class: "check" }, el("input", { type: "checkbox", checked, onchange: event => choose(event.target.checked) }), el("span", {}, name));
}

function slider(name, low, high, step, value, choose) {
  const words = el("output", {}, String(value));
  return labelled(name, el("input", { type: "range", min: low, max: high, step, value, oninput: event => {
    words.textContent = event.target.value;
    choose(Number(event.target.value));
  } }), words);
}

function lightAndCamera(page, look) {
  const words = el("output", { class: "quiet" }), usual = { eye: CAMERA };
  const say = camera => { words.textContent = WORDS.cameraAt(camera?.eye ? camera : usual); };
  say(look.camera || page.view.plot?.layout?.scene?.camera);
  page.signals.addEventListener("turned", event => say(event.detail));
  page.signals.addEventListener("answered", () => say(page.view.plot?.layout?.scene?.camera));
  return group(WORDS.lightGroup, [
    ...Object.keys(LIGHT).map(name => slider(WORDS.light[name], 0, name === "specular" ? 2 : 1, 0.02, look.light[name],
      value => page.set({ [name]: value === LIGHT[name] ? undefined : value }))),
    el("div", { class: "field" }, el("span", { class: "name" }, WORDS.camera), words),
  ]);
}
