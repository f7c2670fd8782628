// Questions about the path of training over a plane.

const NEAR = 0.04; // of the axes' spans

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
