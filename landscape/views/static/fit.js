// Fits a figure of `draw` to its place on a page: its width, its theme. The report and the live page share it.

const NARROW = 560; // pixels; in a narrower figure the colour bar is below the plot and scenes name their axes alone

function legendRows(data, width) {
  const names = data.filter(t => t.showlegend !== false && t.name).map(t => t.name.length * 5.9 + 48);
  if (!names.length) return 0;
  if (names.reduce((a, b) => a + b, 0) <= width) return 1;
  return Math.ceil(names.length / Math.max(1, Math.floor(width / Math.max(...names))));
}

// Colours that a template cannot reach: line colours of isolines and curves.
export function recolour(data, theme) {
  for (const trace of data) {
    const meta = trace.meta || {};
    if (meta.themed) merge(trace, meta.themed[theme]);
    if (meta.scales) trace.colorscale = meta.scales[theme];
    if (meta.patterns) trace.fillpattern = { ...trace.fillpattern, ...meta.patterns[theme] };
    if (meta.fills) Object.assign(trace, { fillcolor: meta.fills[theme], opacity: theme === "dark" ? 0.4 : 0.24 });
    if (!meta.colours) continue;
    trace.line = { ...trace.line, color: meta.colours[theme] };
    trace.marker = { ...trace.marker, color: meta.colours[theme] };
  }
}

// Options of a trace that differ by theme: `theme.themed` of the drawing.
function merge(target, change) {
  for (const [key, value] of Object.entries(change)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) merge(target[key] ??= {}, value);
    else target[key] = value;
  }
}

// Sizes are in pixels: words keep their size, and the plot takes the rest of the width.
export function fit(figure, width, tallest) {
  const { data, layout } = figure, meta = layout.meta, narrow = width < NARROW;
  // A bar without labels is invisible: it only carries the texts of lines.
  const bars = data.filter(t => (t.colorbar && t.colorbar.showticklabels !== false) || (t.marker && t.marker.colorbar));
  const flat = !meta.space, margin = { ...layout.margin, t: meta.top ?? 30 };
  delete layout.updatemenus;
  if (narrow) {
    margin.l = flat ? 52 : 4;
    margin.r = flat ? 14 : 4;
    if (!flat) {
      for (const key of ["xaxis", "yaxis"]) shorten(layout.scene[key]);
      for (const key of "xyz") layout.scene.camera.eye[key] *= 1.15;
    }
  }
  if (!flat && width < 720) layout.scene.zaxis.title = { text: "" }; // the colour bar has the title
  let inner = width - margin.l - margin.r;
  let height = meta.equal ? inner * meta.plot[1] / meta.plot[0] : meta.plot[1];
  if (meta.space) height = Math.min(meta.plot[1], Math.max(300, inner * 0.8));
  height = Math.min(height, Math.max(tallest, meta.equal ? 0 : meta.plot[1]));
  if (meta.equal) { // margins take the rest of the width, so the colour bar stays beside the plot
    const spare = inner - height * meta.plot[0] / meta.plot[1];
    margin.l += spare / 2; margin.r += spare / 2; inner -= spare;
  }
  if (flat) { suit(layout.xaxis, inner); suit(layout.yaxis, height); }
  let below = narrow && flat ? 46 + (layout.sliders ? 74 : 0) : meta.below;
  if (narrow && bars.length) {
    for (const trace of bars) {
      const bar = trace.colorbar || trace.marker.colorbar;
      Object.assign(bar, { orientation: "h", x: 0.5, xanchor: "center", y: -below / height, yanchor: "top",
        lenmode: "fraction", len: 1, title: { ...bar.title, side: "top" }, thickness: 12 });
      thin(bar, inner);
    }
    below += 72;
  } else for (const trace of bars) {
    const bar = trace.colorbar || trace.marker.colorbar;
    if (bar.lenmode === "pixels") bar.len = Math.max(Math.min(bar.len, height), 160);
  }
  if (layout.sliders) layout.sliders[0].y = -(narrow ? 50 : meta.below - 68) / height;
  const rows = legendRows(data, inner);
  if (layout.legend) layout.legend.y = -(below + 8) / height;
  margin.b = below + (rows ? 14 + rows * 22 : 8);
  layout.margin = margin;
  layout.width = width;
  layout.height = Math.round(height + margin.t + margin.b);
  layout.annotations = (layout.annotations || []).filter(a => a.name !== "caption");
  if (narrow && flat) layout.annotations = apart(layout, inner, height);
  if (narrow && !flat) layout.scene.annotations = (layout.scene.annotations || []).filter((_, k, all) =>
    k % Math.ceil(all.length / 4) === 0 || k === all.length - 1);
}

// The history keeps the heights of its panels; its legend takes as many rows as the width requires.
export function fitHistory(figure, width) {
  const { data, layout } = figure, { meta, margin } = layout;
  const rows = layout.showlegend ? legendRows(data, width - margin.l - margin.r) : 0;
  margin.b = meta.below + 4 + (rows ? rows * 22 + 10 : 0);
  layout.width = width;
  layout.height = meta.plot[1] + margin.t + margin.b;
}

// Step numbers that do not overlap; the last and the first stay.
function apart(layout, width, height) {
  const [x, y] = [layout.xaxis.range, layout.yaxis.range], kept = [], spots = [];
  const steps = layout.annotations.filter(a => a.name === "step");
  for (const step of [...steps.slice(-1), ...steps.slice(0, -1)]) {
    const spot = [(step.x - x[0]) / (x[1] - x[0]) * width + (step.xshift || 0),
      (step.y - y[0]) / (y[1] - y[0]) * height + (step.yshift || 0)];
    if (spots.some(other => Math.abs(other[0] - spot[0]) < 22 && Math.abs(other[1] - spot[1]) < 18)) continue;
    kept.push(step); spots.push(spot);
  }
  return [...layout.annotations.filter(a => a.name !== "step"), ...kept];
}

// A title that is too long for its axis gets smaller, down to 0.7; a longer one is the name alone: the caption has it whole.
function suit(axis, room) {
  const { text, font } = axis?.title || {};
  if (!text) return;
  const size = font?.size || 13, share = room / (0.55 * size * text.length);
  if (share < 0.7) shorten(axis);
  else axis.title = { ...axis.title, font: { ...font, size: size * Math.min(1, share) } };
}

function shorten(axis) {
  if (axis && axis.title && axis.title.text) axis.title.text = axis.title.text.split(" \u00b7 ")[0].replace(/ \([^()]*\)/g, "");
}

function thin(bar, width) {
  const most = Math.max(2, Math.floor(width / 42)), every = Math.ceil(bar.tickvals.length / most);
  const shown = bar.ticktext.map((text, k) => (k % every ? "" : text));
  bar.ticktext = shown;
}
