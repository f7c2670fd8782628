// Finding snapshots on the training paths over a plane.

const NEAR = 0.04; // of the axes' spans

/** The path and the index of the snapshot nearest to a point of the plane; null if none is near. */
export function snapshotNear(landscape, x, y) {
  const { paths = [], axes } = landscape;
  const spans = axes.map(axis => axis.high - axis.low || 1);
  let best = null, least = NEAR;
  for (const path of paths) {
    const [across, up] = axes.map(axis => path.places[axis.name]);
    if (!across || !up) continue;
    path.numbers.forEach((_, k) => {
      const away = Math.hypot((across[k] - x) / spans[0], (up[k] - y) / spans[1]);
      if (away <= least) { best = { path, k }; least = away; }
    });
  }
  return best;
}

/** The path with the most snapshots; undefined without paths. */
export function longest(paths) {
  return paths.reduce((one, other) => (one && one.numbers.length >= other.numbers.length ? one : other), undefined);
}
