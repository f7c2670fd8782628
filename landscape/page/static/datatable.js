// The values of a figure as a table, for screen readers and for reading numbers; made when it is opened.
import { el, fill } from "./dom.js";
import { WORDS } from "./words.js";
import { valueAt } from "./sections.js";

const MOST = 41; // rows and columns; larger grids are thinned, and the CSV has them all

/** @param readField, observable, csv functions, called when the table is opened. */
export function dataTable(readField, axes, observable, csv) {
  const place = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": WORDS.dataTable });
  const details = el("details", {}, el("summary", {}, WORDS.dataTable), place);
  details.addEventListener("toggle", () => { if (details.open) fill(place, build(readField(), axes, observable(), csv())); });
  return details;
}

function build(field, axes, observable, csv) {
  const link = el("a", { href: csv, download: true }, WORDS.csv);
  if (!field) return el("p", {}, WORDS.noTable, " ", link);
  if (axes.length === 1 || field.drawn.shape.length === 1) {
    const rows = pick(field.x.length, 400);
    return [el("p", {}, rows.length < field.x.length ? WORDS.thinned(rows.length, field.x.length) + " " : "", link),
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, axes[0].name), el("th", { scope: "col" }, observable))),
        el("tbody", {}, rows.map(i => el("tr", {}, el("th", { scope: "row" }, short(field.x[i])), cell({ ...field, notes: field.notes && [field.notes] }, 0, i))))), said(field)];
  }
  const columns = pick(field.x.length, MOST), rows = pick(field.y.length, MOST);
  return [el("p", {}, columns.length < field.x.length || rows.length < field.y.length ? WORDS.thinned(columns.length * rows.length, field.x.length * field.y.length) + " " : "", link),
    el("table", {}, field.place || field.notes ? el("caption", {}, field.place, field.notes ? ` ${WORDS.interpolated}` : "") : null, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, `${axes[1].name} \\ ${axes[0].name}`), columns.map(i => el("th", { scope: "col" }, short(field.x[i]))))),
      el("tbody", {}, rows.map(j => el("tr", {}, el("th", { scope: "row" }, short(field.y[j])),
        columns.map(i => cell(field, j, i)))))), said(field)];
}

function cell(field, j, i) {
  const { value, error, interpolated } = valueAt(field, j, i), drawn = field.drawn.values[j * field.x.length + i];
  const words = WORDS.cell(value, interpolated ? NaN : error);
  return el("td", {}, Number.isFinite(drawn) ? (interpolated ? "≈ " : "") + words : Number.isFinite(value) ? `(${words})` : "–");
}

/** What stands after ± in the cells; nothing where no error is known. */
function said(field) {
  return (field.columns?.shape?.at(-1) || 0) > 1 ? el("p", { class: "quiet" }, WORDS.cellErrors) : null;
}

function pick(size, most) {
  if (size <= most) return Array.from({ length: size }, (_, k) => k);
  return [...new Set(Array.from({ length: most }, (_, k) => Math.round(k * (size - 1) / (most - 1))))];
}

export function short(value, digits = 4) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(digits))) : "–";
}
