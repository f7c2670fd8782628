// What the pointer reads at a grid point, in a sentence, with the snapshot of the path that lies beside it.
import { valueAt } from "./sections.js";
import { WORDS } from "./words.js";

const NEAR = 0.04; // of the axes' spans

export function reading(field, j, i, landscape) {
  const { value, error, rise, riseError } = valueAt(field, j, i);
  const places = [[landscape.axes[0].name, field.x[i]], [landscape.axes[1].name, field.y[j]]];
  const words = WORDS.reading(places, value, error, rise, riseError);
  const near = snapshotNear(landscape, field.x[i], field.y[j]);
  return near === null ? words : words + WORDS.nearPath(landscape.path.unit, landscape.path.numbers[near], landscape.path.distance[near] ?? NaN);
}

/** The index of the snapshot nearest to a point of the plane; null where none is near. */
export function snapshotNear(landscape, x, y) {
  const { path, axes } = landscape;
  if (!path || !path.places[axes[1].name]) return null;
  const spans = axes.map(axis => axis.high - axis.low || 1);
  let best = null, least = NEAR;
  path.numbers.forEach((_, k) => {
    const away = Math.hypot((path.places[axes[0].name][k] - x) / spans[0], (path.places[axes[1].name][k] - y) / spans[1]);
    if (away <= least) { best = k; least = away; }
  });
  return best;
}
