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
    const view = { ...given, first: given.kind, section, space: false, drawn: false,
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
