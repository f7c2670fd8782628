"use strict";
// Draws the figures of the page: one per landscape at a time, fitted to the width, in the colours of the theme.
(() => {
  const store = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const NARROW = 560, MOST_SCENES = 8; // browsers keep some 16 WebGL contexts per page, then drop the oldest
  const scenes = []; // views that show a 3-D scene, oldest first

  // A copy of a stored figure with the shared arrays back in place.
  function restore(value) {
    if (Array.isArray(value)) return value.map(restore);
    if (value === null || typeof value !== "object") return value;
    if (value.$array) return store.arrays[value.$array];
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, restore(each)]));
  }

  function legendRows(data, width) {
    const names = data.filter(t => t.showlegend !== false && t.name).map(t => t.name.length * 5.9 + 48);
    if (!names.length) return 0;
    if (names.reduce((a, b) => a + b, 0) <= width) return 1;
    return Math.ceil(names.length / Math.max(1, Math.floor(width / Math.max(...names))));
  }

  // Colours that a template cannot reach: line colours of isolines and curves.
  function recolour(data, theme) {
    for (const trace of data) {
      const meta = trace.meta || {};
      if (meta.scales) trace.colorscale = meta.scales[theme];
      if (meta.patterns) trace.fillpattern = { ...trace.fillpattern, ...meta.patterns[theme] };
      if (meta.fills) Object.assign(trace, { fillcolor: meta.fills[theme], opacity: theme === "dark" ? 0.4 : 0.24 });
      if (!meta.colours) continue;
      trace.line = { ...trace.line, color: meta.colours[theme] };
      trace.marker = { ...trace.marker, color: meta.colours[theme] };
    }
  }

  // Sizes are in pixels, so that words keep their size and the plot takes what is left of the width.
  function fit(figure, width, tallest) {
    const { data, layout } = figure, meta = layout.meta, narrow = width < NARROW;
    const bars = data.filter(t => t.colorbar || (t.marker && t.marker.colorbar));
    const flat = !meta.space, margin = { ...layout.margin, t: 30 };
    delete layout.updatemenus;
    if (narrow) {
      margin.l = flat ? 52 : 4;
      margin.r = flat ? 14 : 4;
      if (flat) for (const key of ["xaxis", "yaxis"]) shorten(layout[key]);
      if (!flat) {
        for (const key of ["xaxis", "yaxis"]) shorten(layout.scene[key]);
        layout.scene.zaxis.title = { text: "" }; // the colour bar says what it is
        for (const key of "xyz") layout.scene.camera.eye[key] *= 1.15;
      }
    }
    let inner = width - margin.l - margin.r;
    let height = meta.equal ? inner * meta.plot[1] / meta.plot[0] : meta.plot[1];
    if (meta.space) height = Math.min(meta.plot[1], Math.max(300, inner * 0.8));
    height = Math.min(height, Math.max(tallest, meta.equal ? 0 : meta.plot[1]));
    if (meta.equal) { // the rest of the width goes to the margins, so that the colour bar stays beside the plot
      const spare = inner - height * meta.plot[0] / meta.plot[1];
      margin.l += spare / 2; margin.r += spare / 2; inner -= spare;
    }
    let below = narrow && flat ? 46 + (layout.sliders ? 74 : 0) : meta.below;
    if (narrow && bars.length) {
      for (const trace of bars) {
        const bar = trace.colorbar || trace.marker.colorbar;
        Object.assign(bar, { orientation: "h", x: 0.5, xanchor: "center", y: -below / height, yanchor: "top",
          lenmode: "fraction", len: 1, title: { ...bar.title, side: "top" }, thickness: 12 });
        thin(bar, inner, trace.meta && trace.meta.labelled);
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

  // Step numbers that keep clear of each other; the last and the first stay.
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

  function shorten(axis) {
    if (axis && axis.title && axis.title.text) axis.title.text = axis.title.text.split(":")[0];
  }

  function thin(bar, width, labelled) {
    if (labelled) { bar.tickangle = -90; return; } // the lines take their labels from here: none may be empty
    const most = Math.max(2, Math.floor(width / 42)), every = Math.ceil(bar.tickvals.length / most);
    const shown = bar.ticktext.map((text, k) => (k % every ? "" : text));
    bar.ticktext = shown;
  }

  async function draw(view) {
    const key = `${view.index}/${view.kind}/${view.observable}/${view.log ? "True" : "False"}`;
    const figure = restore(store.figures[key]), theme = dark.matches ? "dark" : "light";
    const full = document.fullscreenElement === view.section;
    recolour(figure.data, theme);
    fit(figure, view.plot.clientWidth, full ? innerHeight * 0.72 : 640);
    figure.layout.template = store.templates[theme];
    const space = Boolean(figure.layout.meta.space);
    if (view.space || space) Plotly.purge(view.plot); // gives the old WebGL context back
    admit(view, space);
    const config = JSON.parse(JSON.stringify(store.config));
    config.responsive = false; // the page fits the figure itself
    config.toImageButtonOptions.filename = figure.layout.meta.file || "landscape";
    await Plotly.react(view.plot, { data: figure.data, layout: figure.layout, frames: figure.frames || [], config });
    view.caption.textContent = figure.layout.meta.caption || "";
    const play = view.section.querySelector("[data-do=play]");
    if (play) play.hidden = !(figure.frames || []).length || Boolean(figure.layout.sliders);
  }

  // Keeps the number of 3-D scenes low: the oldest goes back to its flat view.
  function admit(view, space) {
    const at = scenes.indexOf(view);
    if (at >= 0) scenes.splice(at, 1);
    view.space = space;
    if (!space) return;
    scenes.push(view);
    if (scenes.length > MOST_SCENES) {
      const oldest = scenes[0];
      oldest.kind = oldest.first;
      press(oldest, "kind", oldest.kind);
      draw(oldest);
    }
  }

  function press(view, what, value) {
    for (const button of view.section.querySelectorAll(`[data-set="${what}"]`))
      button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
  }

  function play(view) {
    const count = (view.plot._transitionData?._frames || []).length || 1;
    const duration = still.matches ? 0 : Math.max(60, Math.min(500, 6000 / count));
    Plotly.animate(view.plot, null, { mode: "immediate", transition: { duration: 0 },
      frame: { duration, redraw: view.space } });
  }

  function start(section) {
    const given = JSON.parse(section.dataset.view);
    const view = { ...given, first: given.kind, log: false, section, space: false, drawn: false,
      plot: section.querySelector(".plot"), caption: section.querySelector("figcaption") };
    section.addEventListener("click", event => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.set) {
        const value = button.dataset.value;
        view[button.dataset.set] = button.dataset.set === "log" ? value === "true" : value;
        press(view, button.dataset.set, value);
        draw(view);
      } else if (button.dataset.do === "play") play(view);
      else if (button.dataset.do === "full") {
        if (document.fullscreenElement) document.exitFullscreen(); else section.requestFullscreen?.();
      }
    });
    return view;
  }

  const views = [...document.querySelectorAll("section[data-view]")].map(start);
  const history = document.getElementById("history");

  function drawHistory() {
    if (!history) return;
    const figure = restore(store.figures.history), theme = dark.matches ? "dark" : "light";
    recolour(figure.data, theme);
    Object.assign(figure.layout, { template: store.templates[theme], width: history.clientWidth });
    Plotly.react(history, figure.data, figure.layout, { ...store.config, responsive: false, displayModeBar: false });
  }

  // A figure is drawn when it comes near the window, so that a long page opens at once.
  const near = new IntersectionObserver(entries => {
    for (const entry of entries) {
      const view = views.find(each => each.plot === entry.target);
      if (entry.isIntersecting && !view.drawn) { view.drawn = true; draw(view); }
    }
  }, { rootMargin: "600px" });
  views.forEach(view => near.observe(view.plot));
  drawHistory();

  const again = () => { drawHistory(); views.filter(view => view.drawn).forEach(draw); };
  let width = document.documentElement.clientWidth, timer = 0;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (document.documentElement.clientWidth === width) return;
      width = document.documentElement.clientWidth;
      again();
    }, 150);
  });
  document.addEventListener("fullscreenchange", () => setTimeout(again, 100));
  dark.addEventListener("change", again);
  // For a link such as report.html#landscape-0=surface, and for tests: choose a view from outside.
  window.landscapeReport = { views, show: (index, change) => {
    const view = Object.assign(views[index], change, { drawn: true });
    for (const [what, value] of Object.entries(change)) press(view, what, value);
    return draw(view);
  } };
})();
