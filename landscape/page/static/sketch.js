// The first picture: the field of a flat figure, its path and its frame on a canvas, until plotly draws them a second later.
import { numbers } from "./api.js";
import { role } from "./look.js";

/** Draws a fitted figure on a canvas of its size; null for a figure that is not one flat plot. */
export function sketch(figure, template) {
  const { data, layout } = figure, { width, height, margin, meta } = layout, xaxis = layout.xaxis, yaxis = layout.yaxis;
  const field = data.find(trace => role(trace) === "field");
  if (!field || meta.space || layout.xaxis2 || layout.yaxis2 || !xaxis?.range || !yaxis?.range) return null;
  const canvas = document.createElement("canvas"), pixels = devicePixelRatio || 1, context = canvas.getContext("2d");
  Object.assign(canvas, { width: Math.round(width * pixels), height: Math.round(height * pixels), className: "sketch" });
  canvas.style.width = `${width}px`;
  canvas.setAttribute("aria-hidden", "true");
  const box = { left: margin.l, top: margin.t, width: width - margin.l - margin.r, height: height - margin.t - margin.b };
  if (box.width < 1 || box.height < 1) return null;
  const place = {
    x: value => box.left + (onAxis(value, xaxis) - xaxis.range[0]) / (xaxis.range[1] - xaxis.range[0]) * box.width,
    y: value => box.top + (yaxis.range[1] - onAxis(value, yaxis)) / (yaxis.range[1] - yaxis.range[0]) * box.height,
  };
  const look = template.layout || {};
  if (field.type === "contour" || field.type === "heatmap") {
    const image = paintField(field, box, pixels, xaxis.range, yaxis.range);
    const part = document.createElement("canvas");
    Object.assign(part, { width: image.width, height: image.height });
    part.getContext("2d").putImageData(image, 0, 0);
    context.drawImage(part, Math.round(box.left * pixels), Math.round(box.top * pixels));
  }
  context.scale(pixels, pixels);
  context.save();
  context.beginPath();
  context.rect(box.left, box.top, box.width, box.height);
  context.clip();
  for (const trace of data) if (trace.type === "scatter" && trace.visible !== false) drawLine(context, trace, place);
  context.restore();
  context.strokeStyle = look.xaxis?.linecolor || "#888";
  context.strokeRect(box.left, box.top, box.width, box.height);
  context.fillStyle = look.font?.color || "#666";
  context.font = `13px ${look.font?.family || "sans-serif"}`;
  context.textAlign = "center";
  context.fillText(plain(xaxis.title?.text), box.left + box.width / 2, box.top + box.height + 38);
  context.translate(box.left - 38, box.top + box.height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(plain(yaxis.title?.text), 0, 0);
  return canvas;
}

function onAxis(value, axis) {
  return axis.type === "log" ? Math.log10(value) : value;
}

function plain(text) {
  return (text || "").replace(/<[^>]*>/g, "");
}

/** The pixels of a field: interpolated bilinearly, in bands or lines at its levels, or shaded. */
function paintField(field, box, pixels, xrange, yrange) {
  const { values, shape: [rows, cells] } = numbers(field.z), width = Math.round(box.width * pixels), height = Math.round(box.height * pixels);
  const across = weights(numbers(field.x).values, width, xrange[0], xrange[1]), down = weights(numbers(field.y).values, height, yrange[1], yrange[0]);
  const image = new ImageData(width, height), { contours = {}, zmin, zmax } = field, { start, end, size = 1 } = contours;
  const style = field.type === "heatmap" ? "heatmap" : contours.coloring || "fill", extra = style === "fill" ? 0.5 : 0;
  const [low, high] = style === "heatmap" ? [zmin, zmax] : [start - extra * size, end + extra * size];
  const colour = table(field.colorscale), line = Math.max(1, (field.line?.width ?? 1) * pixels) / 2;
  const counted = new Float32Array(width * height); // the value of each pixel, in levels
  for (let j = 0; j < height; j++) {
    const v = down[2 * j], base = down[2 * j + 1];
    for (let i = 0; i < width; i++) {
      const u = across[2 * i], k = base * cells + across[2 * i + 1], right = u > 0 ? 1 : 0, below = v > 0 ? cells : 0;
      const value = base < 0 || across[2 * i + 1] < 0 ? NaN : (values[k] * (1 - u) + values[k + right] * u) * (1 - v) + (values[k + below] * (1 - u) + values[k + below + right] * u) * v;
      counted[j * width + i] = style === "heatmap" ? value : (value - start) / size;
    }
  }
  for (let j = 0, n = 0; j < height; j++) for (let i = 0; i < width; i++, n++) {
    const at = counted[n];
    if (!(at === at)) continue;
    if (style === "lines") {
      const level = Math.min(Math.max(Math.round(at), 0), Math.round((end - start) / size));
      const slope = Math.hypot(counted[n + (i + 1 < width ? 1 : -1)] - at, counted[n + (j + 1 < height ? width : -width)] - at) || 1e-9;
      const opacity = Math.min(1, line + 0.5 - Math.abs(at - level) / slope);
      if (opacity > 0) put(image.data, n, colour((start + level * size - low) / (high - low)), opacity);
    } else {
      const share = style === "heatmap" ? (at - low) / (high - low) : (start + (Math.floor(at) + 0.5) * size - low) / (high - low);
      put(image.data, n, colour(share), 1);
    }
  }
  return image;
}

/** For each of `count` pixels from `first` to `last`: the index of the point before it (-1 outside), and the share of the next. */
function weights(points, count, first, last) {
  const result = new Float32Array(2 * count);
  for (let pixel = 0; pixel < count; pixel++) {
    const at = first + (pixel + 0.5) / count * (last - first);
    let k = points.findIndex((point, n) => point <= at && at <= points[n + 1]);
    if (k < 0 && points.length && at === points[points.length - 1]) k = points.length - 1;
    result[2 * pixel] = k < 0 ? 0 : (at - points[k]) / (points[k + 1] - points[k] || 1);
    result[2 * pixel + 1] = k;
  }
  return result;
}

/** A colour scale as a function of a share from 0 to 1. */
function table(scale) {
  const parse = text => text.startsWith("#") ? [1, 3, 5].map(k => parseInt(text.slice(k, k + 2), 16)) : text.match(/[\d.]+/g).slice(0, 3).map(Number);
  const stops = scale.map(([at, text]) => [at, parse(text)]);
  const colours = Array.from({ length: 256 }, (_, n) => {
    const at = n / 255, upper = Math.max(1, stops.findIndex(([position]) => position >= at)), [low, one] = stops[upper - 1], [high, other] = stops[upper];
    return one.map((value, k) => value + (at - low) / (high - low || 1) * (other[k] - value));
  });
  return share => colours[Math.max(0, Math.min(255, Math.round(share * 255)))];
}

function put(data, pixel, [red, green, blue], opacity) {
  data[4 * pixel] = red;
  data[4 * pixel + 1] = green;
  data[4 * pixel + 2] = blue;
  data[4 * pixel + 3] = 255 * opacity;
}

function drawLine(context, trace, place) {
  const x = numbers(trace.x).values, y = numbers(trace.y).values, marker = trace.marker || {};
  context.globalAlpha = trace.opacity ?? 1;
  if ((trace.mode || "lines").includes("lines")) {
    context.strokeStyle = trace.line?.color || "#444";
    context.lineWidth = trace.line?.width ?? 2;
    context.beginPath();
    let pen = false;
    for (let k = 0; k < x.length; k++) {
      if (!Number.isFinite(x[k]) || !Number.isFinite(y[k])) pen = false;
      else if (pen) context.lineTo(place.x(x[k]), place.y(y[k]));
      else { context.moveTo(place.x(x[k]), place.y(y[k])); pen = true; }
    }
    context.stroke();
  }
  const of = (value, k) => (Array.isArray(value) ? value[k] : value);
  if ((trace.mode || "").includes("markers") && !/cross/.test(of(marker.symbol, 0) || "")) for (let k = 0; k < x.length; k++) {
    const colour = of(marker.color, k), { color: edge, width = 0 } = marker.line || {};
    context.beginPath();
    context.arc(place.x(x[k]), place.y(y[k]), (of(marker.size, k) || 6) / 2, 0, 2 * Math.PI);
    context.fillStyle = typeof colour === "string" ? colour : "#444";
    context.fill();
    if (!width || typeof edge !== "string") continue;
    context.strokeStyle = edge;
    context.lineWidth = width;
    context.stroke();
  }
  context.globalAlpha = 1;
}
