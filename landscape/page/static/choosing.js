// Which landscapes of ticked runs are compared: those of one name where all have it, else each run's last, as in MindInsight.
export const LAST = ""; // in place of a name

/** The names of the runs' landscapes, the usual one first: the more runs have it, then at the end of training, then of one number of axes. */
export function namesOf(runs) {
  const found = new Map();
  for (const run of runs) for (const one of run.landscapes) found.set(one.name, [...found.get(one.name) || [], one]);
  const names = [...found].map(([name, all]) => ({ name, count: all.length, atEnd: all.every(one => one.at_end), alike: new Set(all.map(axesOf)).size === 1 }));
  return names.sort((one, other) => other.count - one.count || other.atEnd - one.atEnd || other.alike - one.alike); // stable: in the order of the jobs
}

/** The name that all runs have, or that each run's last landscape is taken. */
export function usualName(runs) {
  const [first] = namesOf(runs);
  return first?.count === runs.length ? first.name : LAST;
}

/** A landscape of each run, as RUN|LANDSCAPE: that of the name, or the run's last. */
export function itemsOf(runs, name) {
  return runs.map(run => `${run.id}|${(run.landscapes.find(one => one.name === name) || run.landscapes.at(-1)).name}`);
}

/** The name by which one landscape of each of these runs was chosen; undefined if they were not chosen by a name. */
export function nameBehind(items, runs) {
  const same = name => itemsOf(runs, name).every(item => items.includes(item));
  if (items.length !== runs.length) return undefined;
  const names = namesOf(runs), whole = names.filter(one => one.count === runs.length).map(one => one.name);
  return [...whole, LAST, ...names.map(one => one.name)].find(same);
}

const axesOf = one => one.size?.length || one.axes?.length || 0;
