// Draws the figures of the page: one per landscape at a time, fitted to the width, in the colours of the theme.
(() => {
  const store = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const MOST_SCENES = 8; // browsers keep some 16 WebGL contexts per page, then drop the oldest
  const scenes = []; // views that show a 3-D scene, oldest first

  // A copy of a stored figure with the shared arrays back in place.
  function restore(value) {
    if (Array.isArray(value)) return value.map(restore);
    if (value === null || typeof value !== "object") return value;
    if (value.$array) return store.arrays[value.$array];
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, restore(each)]));
  }

  // The names of a view's figures: one for a landscape, one or more for a comparison.
  function namesOf(view) {
    if (view.tiles) return store.comparisons[`${view.comparison}/${view.mode}/${view.kind}/${view.scale}`];
    const log = view.log ? "True" : "False";
    return [`${view.index}/${view.kind}/${view.observable}/${log}`];
  }

  // The places of a view's figures; a comparison has one per figure.
  function placesOf(view, count) {
    if (!view.tiles) return [view];
    for (let k = view.places.length; k < count; k++) {
      const figure = document.createElement("figure"), plot = document.createElement("div");
      const [title, caption] = ["h3", "figcaption"].map(name => document.createElement(name));
      plot.className = "plot";
      plot.setAttribute("role", "img");
      figure.append(title, plot, caption);
      view.tiles.append(figure);
      view.places.push({ figure, title, plot, caption });
    }
    for (const place of view.places.splice(count)) { Plotly.purge(place.plot); place.figure.remove(); }
    return view.places;
  }

  async function draw(view) {
    const figures = namesOf(view).map(name => restore(store.figures[name])), places = placesOf(view, figures.length);
    const space = figures.filter(figure => figure.layout.meta.space).length;
    if (view.space || space) for (const place of places) Plotly.purge(place.plot); // frees the old WebGL contexts
    admit(view, space);
    for (const [k, place] of places.entries()) await drawAt(place, figures[k], view, figures.length);
    if (view.tiles && space > 1) linkCameras(places);
    const play = view.section.querySelector("[data-do=play]"), { frames, layout } = figures[0];
    if (play) play.hidden = !(frames || []).length || Boolean(layout.sliders);
  }

  async function drawAt(place, figure, view, count) {
    const theme = dark.matches ? "dark" : "light", full = document.fullscreenElement === view.section;
    const words = figure.layout.meta;
    recolour(figure.data, theme);
    fit(figure, place.plot.clientWidth, full ? innerHeight * 0.72 : count > 1 ? 460 : 640);
    figure.layout.template = store.templates[theme];
    const config = JSON.parse(JSON.stringify(store.config));
    config.responsive = false; // the page fits the figure itself
    config.toImageButtonOptions.filename = words.file || "landscape";
    await Plotly.react(place.plot, { data: figure.data, layout: figure.layout, frames: figure.frames || [], config });
    place.caption.textContent = words.caption || "";
    if (!place.title) return;
    place.title.textContent = words.title;
    place.plot.setAttribute("aria-label", words.title);
  }

  // Compared scenes share one camera: turning one turns all.
  function linkCameras(places) {
    let turning = false;
    for (const { plot } of places) plot.on("plotly_relayout", async change => {
      if (turning || !change["scene.camera"]) return;
      turning = true;
      const others = places.filter(other => other.plot !== plot && other.plot.layout);
      await Promise.all(others.map(other => Plotly.relayout(other.plot, { "scene.camera": change["scene.camera"] })));
      turning = false;
    });
  }

  // Keeps the number of 3-D scenes low: the least recently shown views go back to their flat figures.
  function admit(view, space) {
    const at = scenes.indexOf(view);
    if (at >= 0) scenes.splice(at, 1);
    view.space = space;
    if (!space) return;
    scenes.push(view);
    const count = () => scenes.reduce((sum, one) => sum + one.space, 0);
    while (scenes.length > 1 && count() > MOST_SCENES) {
      const oldest = scenes.shift();
      oldest.space = 0;
      for (const place of placesOf(oldest, oldest.tiles ? oldest.places.length : 1)) Plotly.purge(place.plot);
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
      frame: { duration, redraw: true } }); // without it, plotly removes the contour lines
  }

  function start(section) {
    const given = JSON.parse(section.dataset.view);
    const view = { ...given, first: given.kind, section, space: 0, drawn: false, places: [],
      tiles: section.querySelector(".tiles"), plot: section.querySelector(".plot"), caption: section.querySelector("figcaption") };
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
    fitHistory(figure, history.clientWidth);
    figure.layout.template = store.templates[theme];
    Plotly.react(history, figure.data, figure.layout, { ...store.config, responsive: false, displayModeBar: false });
  }

  // A figure is drawn when it comes near the window, so a long page opens at once.
  const near = new IntersectionObserver(entries => {
    for (const entry of entries) {
      const view = views.find(each => (each.tiles || each.plot) === entry.target);
      if (entry.isIntersecting && !view.drawn) { view.drawn = true; draw(view); }
    }
  }, { rootMargin: "600px" });
  views.forEach(view => near.observe(view.tiles || view.plot));
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
