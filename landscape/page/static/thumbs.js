// Small pictures of landscapes, drawn from a byte per point; requested when they become visible.
import { ask, bytesOf, getLooks } from "./api.js";
import { el } from "./dom.js";
import { darkNow } from "./theme.js";

const WIDTH = 44, MOST = 6; // pixels; requests at once
const waiting = new Map(); // canvas -> what to draw
const answers = new Map();
let running = 0;

const seen = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); next(); }
}, { rootMargin: "120px" });

/** A canvas that fills itself; `generation` distinguishes pictures of the same landscape. */
export function thumbnail(run, landscape, generation, title) {
  const canvas = el("canvas", { class: "thumb", width: WIDTH, height: WIDTH, role: "img", "aria-label": title, title });
  const key = `${run}|${landscape}|${generation}`;
  if (answers.has(key)) { paint(canvas, answers.get(key)); return canvas; }
  waiting.set(canvas, { run, landscape, key });
  seen.observe(canvas);
  queueMicrotask(next);
  return canvas;
}

async function next() {
  if (running >= MOST) return;
  for (const [canvas, wanted] of waiting) {
    if (!canvas.isConnected) { if (canvas.dataset.was) waiting.delete(canvas); else canvas.dataset.was = "1"; continue; }
    waiting.delete(canvas);
    running++;
    try {
      const answer = answers.get(wanted.key) || await ask("thumbnail", { run: wanted.run, landscape: wanted.landscape });
      answers.set(wanted.key, answer);
      if (answers.size > 3000) answers.delete(answers.keys().next().value);
      if (answer.problem) canvas.title = answer.problem;
      await paint(canvas, answer);
    } catch { canvas.dataset.failed = "1"; }
    running--;
    next();
    return;
  }
}

let table = null;
async function colours() {
  if (table) return table;
  const { scales, scale_names: names, default_scale: usual } = await getLooks();
  const scale = scales[usual || names[0].name], rgb = text => (text.match(/[\d.]+/g) || []).map(Number);
  table = Array.from({ length: 251 }, (_, level) => {
    const at = level / 250, upper = Math.max(1, scale.findIndex(([position]) => position >= at));
    const [low, one] = scale[upper - 1], [high, other] = scale[upper], share = (at - low) / (high - low || 1);
    const [a, b] = [parse(one), parse(other)];
    return a.map((value, k) => Math.round(value + share * (b[k] - value)));
    function parse(text) { return text.startsWith("#") ? [1, 3, 5].map(k => parseInt(text.slice(k, k + 2), 16)) : rgb(text).slice(0, 3); }
  });
  return table;
}

/** Paints the bytes of a thumbnail on a canvas. */
export async function paint(canvas, { width, height, levels }, smooth = false) {
  const colour = await colours(), bytes = bytesOf(levels);
  const dark = darkNow(), missing = { 255: dark ? [48, 56, 69] : [223, 227, 232], 254: dark ? [170, 178, 190] : [59, 63, 70], 253: [194, 87, 12] };
  const source = new ImageData(width, height);
  for (let j = 0; j < height; j++) for (let i = 0; i < width; i++) {
    const level = bytes[(height - 1 - j) * width + i], [r, g, b] = level > 250 ? missing[level] || missing[255] : colour[level]; // beta grows upwards
    source.data.set([r, g, b, 255], 4 * (j * width + i));
  }
  const small = new OffscreenCanvas(width, height);
  small.getContext("2d").putImageData(source, 0, 0);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = smooth;
  if (height === 1) line(canvas, context, bytes, dark);
  else context.drawImage(small, 0, 0, canvas.width, canvas.height);
  canvas.dataset.painted = "1";
}

function line(canvas, context, bytes, dark) {
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.strokeStyle = dark ? "#7fb0ef" : "#2f5d9b";
  context.lineWidth = 1.5;
  context.beginPath();
  let pen = false;
  bytes.forEach((level, i) => {
    if (level > 250) { pen = false; return; }
    const x = 1 + (canvas.width - 2) * i / Math.max(1, bytes.length - 1), y = canvas.height - 2 - (canvas.height - 4) * level / 250;
    if (pen) context.lineTo(x, y); else context.moveTo(x, y);
    pen = true;
  });
  context.stroke();
}
