// Changes to a drawn figure that need no new numbers: colours of the path, opacity, light, camera, shown layers.
import { numeric } from "./address.js";
import { darkNow } from "./theme.js";

export const LIGHT = { ambient: 0.72, diffuse: 0.5, specular: 0.08, roughness: 0.85 };
export const CAMERA = { x: 0.95, y: -1.35, z: 0.95 };
const PATH = { colour: "#d6336c", width: 2.5 };

/** The look of a state; impossible values are ignored. */
export function lookOf(state) {
  const light = {};
  for (const [name, usual] of Object.entries(LIGHT)) light[name] = numeric(state[name], 0, 2, usual);
  return {
    path: state.path !== "0",
    pathColour: /^#[0-9a-f]{6}$/i.test(state.pathcolour || "") ? state.pathcolour : PATH.colour,
    pathWidth: numeric(state.pathwidth, 0.5, 12, PATH.width),
    opacity: numeric(state.opacity, 0.1, 1, 1),
    light,
    lightFrom: state.lightfrom ? triple(state.lightfrom) : null,
    camera: cameraOf(state.camera),
  };
}

/** The camera's position (and target) as text for the address, and back. */
export function cameraText(camera) {
  const { eye, center } = camera;
  return [eye.x, eye.y, eye.z, ...(center ? [center.x, center.y, center.z] : [])].map(value => Number(value.toFixed(3))).join(",");
}

export function cameraOf(text) {
  const values = (text || "").split(",").map(Number);
  if (![3, 6].includes(values.length) || !values.every(Number.isFinite) || values.every(value => value === 0)) return null;
  const [x, y, z, cx, cy, cz] = values.map(value => Math.max(-20, Math.min(20, value)));
  return { eye: { x, y, z }, ...(values.length === 6 ? { center: { x: cx, y: cy, z: cz } } : {}) };
}

function triple(text) {
  const values = text.split(",").map(Number);
  return values.length === 3 && values.every(Number.isFinite) ? { x: values[0], y: values[1], z: values[2] } : null;
}

/** The command that exports the picture, with the options that the browser applies; and what no option of it says. */
export function commandOf(answer, state, space, log) {
  const usual = lookOf({}), look = lookOf(state), words = [], left = [];
  if (darkNow()) words.push("--theme=dark");
  if (space && look.camera) words.push(`--camera=${cameraText(look.camera)}`);
  const zoom = (state.zoom || "").split(",").map(Number);
  // Plotly gives the ends of a logarithmic axis by their logarithm, and a zoom of the command is in values.
  if (!space && zoom.length === 4 && zoom.every(Number.isFinite)) words.push(`--zoom=${zoom.map((end, k) => (log && k > 1 ? Number((10 ** end).toPrecision(6)) : end)).join(",")}`);
  if (!look.path) words.push("--no-path");
  if (look.pathColour !== usual.pathColour) words.push(`--path-colour='${look.pathColour}'`);
  if (look.pathWidth !== usual.pathWidth) words.push(`--path-width=${look.pathWidth}`);
  if (space && Object.keys(LIGHT).some(name => look.light[name] !== LIGHT[name])) left.push("light");
  if (look.opacity !== usual.opacity) left.push("opacity");
  if (state.step !== undefined) left.push("step");
  if (state.slice !== undefined) left.push("slice");
  return { command: [answer.command, ...words].join(" "), left };
}

export function role(trace) {
  return (trace.meta && trace.meta.role) || "";
}

/** Changes the traces and the layout in place to the given look. */
export function apply(figure, look) {
  const { data, layout } = figure;
  for (const trace of data) {
    const what = role(trace);
    // In an overlay each path keeps the colour of its landscape.
    if (["path", "end", "path key"].includes(what) && trace.meta.item === undefined) paint(trace, look, what);
    if (what === "field" && look.opacity < 1 && (trace.type === "surface" || trace.type === "contour" || trace.type === "volume" || trace.type === "mesh3d"))
      trace.opacity = look.opacity;
    if (trace.type === "surface") {
      trace.lighting = { ...trace.lighting, ...look.light };
      if (look.lightFrom) trace.lightposition = look.lightFrom;
    }
  }
  if (!look.path) {
    figure.data = data.filter(trace => !["path", "end", "path key"].includes(role(trace)));
    layout.annotations = (layout.annotations || []).filter(note => note.name !== "step");
    if (layout.scene) layout.scene.annotations = [];
  }
  if (layout.scene && look.camera) layout.scene.camera = { ...layout.scene.camera, ...look.camera };
}

function paint(trace, look, what) {
  const space = trace.type === "scatter3d";
  const halo = (trace.line && trace.line.color === "#ffffff") || (what === "path" && trace.marker && trace.marker.color === "#ffffff");
  const named = trace.meta.path !== undefined; // with several runs, each has its own colour
  const wider = look.pathWidth / PATH.width;
  if (what === "path key" && !trace.line) return; // an entry that several paths share
  if (trace.line && what !== "end") {
    trace.line = { ...trace.line, width: halo ? look.pathWidth + 3 : (trace.line.width || 1) * wider };
    if (!halo && !named) trace.line.color = look.pathColour;
  }
  if (!trace.marker || named) return;
  trace.marker = { ...trace.marker, line: { ...trace.marker.line } };
  if (halo) return;
  // Snapshots filled with the colour of their own loss have an edge in the path's colour, like starts.
  const filled = Array.isArray(trace.marker.color) || (!space && trace.marker.symbol === "circle" && what === "end");
  if (filled) trace.marker.line.color = look.pathColour;
  else trace.marker.color = look.pathColour;
}

let space = null;
/** Whether this browser draws in three dimensions. */
export function drawsSpace() {
  if (space === null) {
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("webgl2") || canvas.getContext("webgl");
    space = Boolean(context);
    context?.getExtension("WEBGL_lose_context")?.loseContext();
  }
  return space;
}
