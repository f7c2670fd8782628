// All words of the page. Numbers are put into sentences only here.
const count = (number, one, many) => `${number} ${number === 1 ? one : many}`;
const digits = (value, places = 4) => (Number.isFinite(value) ? String(Number(value.toPrecision(places))) : "–");
/** Two standard errors, as beside a value in pictures; empty if they are not known. */
const within = twice => (Number.isFinite(twice) ? ` ± ${digits(twice, 2)} (2 s.e.)` : "");
/** As many digits of a value as twice its standard error allows; `places` if that is not known. */
const allowed = (value, twice, places) => {
  if (!Number.isFinite(value) || !(twice > 0)) return digits(value, places);
  const [size, noise] = [value, twice].map(number => (number ? Math.floor(Math.log10(Math.abs(number))) : 0));
  return digits(value, Math.min(Math.max(1, size - noise + 2, size < 6 ? size + 1 : 1), 15));
};
/** A value ± two standard errors, with as many digits as these allow; the value alone if the error is not known. */
const withError = (value, error, places = 5) => {
  const twice = error === null || error === undefined ? NaN : 2 * error;
  return `${allowed(value, twice, places)}${within(twice)}`;
};

export const WORDS = {
  title: "Loss landscapes",
  runs: "Runs",
  loading: "Loading…",
  unreachable: "The server does not answer; it may have been ended. Start `landscape view` again, or wait for it.",
  signedOut: "This server asks for its token: open the address that `landscape view` printed.",
  badAnswer: status => `The server answered with ${status}; its terminal says why.`,
  noPlotly: "The drawing library did not load; reload the page.",
  connected: "live",
  reconnecting: "connection lost, trying again…",
  theme: "Colours of the page",
  themes: { system: "System", light: "Light", dark: "Dark" },
  keys: "Keys",

  // the list of runs
  filter: "Filter",
  filterHint: "name, model, optimiser, state …",
  compareSelected: number => (number < 2 ? "Select two or more to compare" : `Compare ${count(number, "run", "runs")}`),
  clearSelection: "Clear the selection",
  listed: (shown, all) => (shown === all ? count(all, "run", "runs") : `${shown} of ${count(all, "run", "runs")}`),
  scanning: "looking for more…",
  noRuns: places => `There is no run in ${places} yet. \`landscape run JOB\` makes one; it appears here by itself.`,
  noMatch: text => `No run matches "${text}".`,
  columns: { select: "", name: "Run", picture: "Landscapes", state: "State", lowest: "Lowest loss", model: "Model", optimiser: "Optimiser", learning_rate: "Initial learning rate", when: "When" },
  lowest: (value, error) => (Number.isFinite(value) ? withError(value, error, 4) : ""),
  selectRun: name => `Select ${name} for comparison`,
  sortBy: name => `Sort by ${name}`,
  more: number => `+${number}`,
  pending: "reading…",

  // states
  states: { complete: "complete", running: "running", waiting: "waiting", interrupted: "interrupted", partial: "partial", damaged: "damaged", unreadable: "unreadable", empty: "no landscape" },
  progress: (done, points, onPath, unit = "points") => `${done.toLocaleString("en")} of ${points.toLocaleString("en")} ${unit}${onPath ? ` (${onPath.toLocaleString("en")} of them on the path, beside the grid)` : ""}`,
  rate: (rate, unit = "points") => `${digits(rate, 3)} ${unit}/s`,
  eta: text => `about ${text} left`,
  seconds: value => {
    if (!Number.isFinite(value)) return "";
    if (value < 90) return `${Math.round(value)} s`;
    const minutes = Math.round(value / 60);
    return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  },
  workers: number => count(number, "worker", "workers"),
  worker: worker => [worker.name, worker.host && `on ${worker.host}`, worker.device && `(${worker.device})`,
    worker.points !== null && worker.points !== undefined && count(worker.points, "point", "points"),
    worker.points && worker.seconds && `${digits(worker.points / worker.seconds, 3)} points/s`].filter(Boolean).join(", ").replace(", on", " on").replace(", (", " ("),
  interrupted: "The job was interrupted; the same `landscape run` goes on where it stopped.",
  damaged: number => `${count(number, "point", "points")} cannot be read; \`landscape validate RUN\` names the damaged files, and the same \`landscape run\` computes them again.`,
  partial: number => `${count(number, "point was", "points were")} given up; the same \`landscape run\` tries them again.`,
  failures: number => count(number, "failed task", "failed tasks"),
  failure: failure => `${failure.task}: ${failure.cause} (${count(failure.attempts, "attempt", "attempts")}${failure.worker ? ` on ${failure.worker}` : ""})`,
  traceback: "Traceback",
  log: name => `Log ${name}`,
  gone: "This run is gone: its folder was moved or deleted.",
  landscapeGone: (name, other) => `There is no landscape "${name}" in this run${other ? `; this is "${other}"` : ""}.`,
  noLandscapes: "This run holds no landscape yet. A job that names this run makes one: landscape run JOB.",
  unreadable: (name, reason) => `${name}: ${reason}`,
  noValues: done => (done ? "No computed point has a finite value." : "No point is computed yet."),
  noSpace: "This browser has no WebGL, so the picture is flat.",

  // one landscape
  landscapes: "Landscapes",
  views: "View",
  kinds: { curve: "Curve", contour: "Contour", topographic: "Topographic", surface: "3-D", slices: "Slices", volume: "Volume", barcode: "Barcode" },
  observable: "Observable",
  scale: "Scale",
  linear: "Linear",
  logarithmic: "Logarithmic",
  automaticScale: "Automatic",
  colours: "Colour map",
  perceptual: "Even to the eye",
  misleading: "For comparison with other tools",
  lines: "Contour lines",
  automatic: "automatic",
  exact: "exactly",
  clip: "Highest value drawn",
  clipLow: "Lowest value drawn",
  percentile: "Drawn up to this percentile",
  opacity: "Opacity",
  uncertainty: "Uncertainty",
  extrema: "Minima and saddles",
  path: "Path",
  pathColour: "Colour of the path",
  pathWidth: "Width of the path",
  light: { ambient: "Ambient light", diffuse: "Diffuse light", specular: "Highlights", roughness: "Roughness" },
  lightGroup: "Light and camera",
  camera: "Camera",
  cameraAt: camera => `x ${camera.eye.x.toFixed(2)}, y ${camera.eye.y.toFixed(2)}, z ${camera.eye.z.toFixed(2)}`,
  reset: "Reset",
  zoomBack: "Zoom back",
  zoomBackHint: "One step back (key z); a double click goes back all the way",
  proportions: "Proportions",
  proportionsOf: { true: "True", fill: "Fill" },
  picture: "Picture",
  pathGroup: "Path",
  fullScreen: "Full screen",
  png: "PNG",
  svg: "SVG",
  csv: "CSV",
  save: "Save",
  link: "Copy link",
  command: "Copy command",
  commandLeaves: parts => `Not in the command: ${parts.map(part => WORDS.leftOut[part]).join(", ")}.`,
  leftOut: { light: "the light", opacity: "the opacity", step: "the snapshot", slice: "the slice", zoom: "the zooms, which differ" },
  copied: "Copied.",
  notCopied: "Not copied; select the text by hand.",
  play: "Play",
  pause: "Pause",
  pathSlider: "Snapshot along the path",
  pathStep: (path, k) => `${path.label ? `${path.label} ` : ""}${path.unit} ${path.numbers[k]}`,
  boxModes: { box: "Select a box", patch: "Exact patch" },
  boxOff: "Back to zoom",
  boxHints: { box: "Drag a box over the picture: a job for it, and finer steps there.", patch: "Drag a box over the picture: it is computed point by point, and drawn as its rows come." },
  jobTitle: "This box",
  finerTitle: "Finer steps in this landscape",
  finerHint: "Every point that is there is kept; this page shows the new ones as they come.",
  finer: factor => (factor === 2 ? "Half the steps:" : "A quarter of the steps:"),
  finerCost: (points, seconds, covers) => `${count(points, "new point", "new points")}${seconds >= 1 ? `, about ${WORDS.seconds(seconds)} at the recorded speed` : ""}, ` +
    `in whole blocks: ${covers.map(([name, low, high]) => `${name} ${digits(low)} to ${digits(high)}`).join(", ")}.`,
  notFiner: reason => `Not to be had: ${reason}.`,
  newJob: "A landscape of its own",
  jobCost: text => `It takes about ${text} at the recorded speed.`,
  jobNoCost: "Its cost is not known: no speed was recorded.",
  copy: "Copy",
  close: "Close",
  training: "Training",
  trained: "What was trained",
  historyHint: "Shaded: the stretches that landscapes cover. Click one to see its landscape.",
  watched: count => `× in red: rules that watched the training fired at ${count === 1 ? "one step" : `${count} steps${count > 6 ? "; the first" : ""}`}:`,
  historyLog: "Loss on a logarithmic scale",
  historyUnit: "Count steps or epochs",
  byUnit: unit => `By ${unit}`,
  overlay: "Overlay another run",
  noHistory: "The training left no history.",
  facts: "Landscape",
  measures: "Measures of the run",
  provenance: "Provenance",
  job: "Job",
  dataTable: "Data table",
  noTable: "This view has no table of its points; all of them are here:",
  cell: (value, twice) => `${allowed(value, twice, 5)}${Number.isFinite(twice) ? ` ± ${digits(twice, 2)}` : ""}`,
  cellErrors: "± is two standard errors.",
  pointed: (value, twice) => `${allowed(value, twice, 5)}${within(twice)}`,
  interpolated: "≈ stands before values between points that were evaluated.",
  thinned: (shown, all) => `${shown} of ${all} values;`,
  whyGrey: "The value here is not finite. Which layer of the network breaks, and how:",
  sectionHint: "Point at the picture, or move with the arrow keys, to see the cross-sections through a point.",
  sectionTitle: (along, across, at) => `along ${along} at ${across} = ${digits(at, 3)}`,
  reading: (places, { value, error, rise, riseError, interpolated }) => {
    const parts = [places.map(([name, at]) => `${name} ${digits(at)}`).join(", ")];
    if (interpolated && Number.isFinite(value)) return [...parts, `${digits(value, 5)}, interpolated between points that were evaluated`].join("; ");
    parts.push(Number.isFinite(value) ? `${allowed(value, error, 5)}${within(error)}` : "no value");
    if (Number.isFinite(rise)) parts.push(`rise over the origin ${allowed(rise, riseError, 4)}${within(riseError)}`);
    return parts.join("; ");
  },
  nearPath: (path, k) => {
    const off = path.distance[k] ?? NaN;
    return `; near ${path.unit} ${path.numbers[k]} of ${path.label || "the path"}${Number.isFinite(off) ? `, ${digits(off, 3)} off the plane` : ""}`;
  },

  // exact values, by a service
  exactTitle: "Exact value",
  exactHint: "Click anywhere, or give coordinates: the network is evaluated there. On the picture Enter asks for the point of the arrow keys.",
  exactAsk: "Compute",
  exactSlopes: "Slope and curvature",
  exactNone: ["A click can show the exact value anywhere, and a box fill at full resolution, while this runs: ", "."],
  exactAsking: "The network is evaluated…",
  exactSources: { store: "stored", cache: "computed before", computed: "computed now" },
  exactReading: (axes, { at, source, status, values, rise }) => [
    at.map((value, k) => `${axes[k]} ${digits(value, 6)}`).join(", "),
    ...values.map(({ title, value, stderr }) => `${title} ${Number.isFinite(value) ? withError(value, stderr, 6) : "not finite"}`),
    ...(rise && Number.isFinite(rise.value) ? [`rise over the origin ${withError(rise.value, rise.stderr, 4)}`] : []),
    ...(status === 2 ? ["a value there is not finite"] : []), WORDS.exactSources[source] || source].join("; "),
  exactSlope: (axes, at, { gradient, stderr, curvature, eigenvalues }) => [
    at.map((value, k) => `${axes[k]} ${digits(value, 6)}`).join(", "),
    gradient.map((value, k) => `slope of the loss along ${axes[k]} ${withError(value, stderr[k], 4)}`).join(", "),
    `curvature ${axes.flatMap((one, j) => axes.slice(j).map((other, k) => `${one}${k ? `–${other}` : ""} ${digits(curvature[j][j + k], 4)}`)).join(", ")}`,
    ...(axes.length > 1 ? [`its eigenvalues ${eigenvalues.map(value => digits(value, 4)).join(", ")}`] : [])].join("; "),
  patchMost: "Points along a side, at most",
  patchEnds: (axis, end) => `${axis} ${end ? "to" : "from"}`,
  patchAsk: "Fill this box",
  patchByNumbers: "A box by numbers",
  patchCancel: "Cancel",
  patchClear: "Remove the patch",
  patchProgress: (rows, all, unit, computed, known) => `${rows} of ${all} ${unit}; ${count(computed, "point", "points")} computed${known ? `, ${known} known before` : ""}`,
  patchUnits: { rows: "rows", points: "points" },
  patchStopped: "cancelled",
  patchValue: (title, value, error) => `${title} ${withError(value, error)}, exact`,
  patchName: "Exact patch",
  patchFlat: "A patch is drawn in the flat views; choose one of them first.",
  patchBox: "A box must have different ends along each axis.",

  // comparison
  comparison: "Comparison",
  compareTitle: number => `Comparison of ${count(number, "landscape", "landscapes")}`,
  compareEmpty: "Select landscapes in the list of runs to compare them.",
  compareOne: "One landscape is selected; add another to compare it with.",
  chosenBy: "Landscape of each run",
  chosenLast: "each run's last",
  chosenName: ({ name, count: having }, runs) => (having === runs ? name : `${name} (${having} of ${runs} runs)`),
  chosenOneByOne: "These landscapes were chosen one by one.",
  chosenOfName: (name, having, runs) => (having === runs ? `${runs === 2 ? "Both" : `All ${runs}`} runs have a landscape "${name}".`
    : `"${name}" of the ${having} of ${runs} runs that have it, and the last landscape of the others.`),
  chosenLasts: shared => (shared ? "The last landscape of each run." : "No landscape has the same name in all of these runs, so this is the last one of each, as in MindInsight."),
  modes: { tiled: "Tiled", overlay: "Overlaid", difference: "Difference" },
  mode: "Arrangement",
  lock: "One scale for all",
  values: "Values",
  risesOf: { 1: "Above the origin", 0: "Loss" },
  limit: "Highest difference drawn",
  linkCameras: "Link cameras",
  linkCursors: "Link cursors",
  differences: "What differs",
  onlyDifferent: "Only what differs",
  whole: "Show all of it",
  remove: name => `Remove ${name}`,
  add: "Add a landscape",
  asImage: "This scene is shown as an image; press to turn it again.",

  // keys
  keyList: [
    ["/", "filter the list"], ["1 … 6", "view of the landscape"], ["l", "linear or logarithmic"], ["[ and ]", "landscape before, landscape after"],
    ["p", "play along the path"], ["f", "full screen"], ["u", "uncertainty"], ["m", "minima and saddles"], ["arrow keys", "move the cross-sections, while the picture has the focus"], ["Enter", "exact value at the point of the cross-sections, where a service runs"],
    ["z", "zoom back by one step"], ["r", "everything as at first"], ["Esc", "close"], ["?", "this list"],
  ],
};
