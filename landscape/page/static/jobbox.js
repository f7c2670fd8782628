// Actions for a box: the commands that refine the landscape there, and a separate job for it, with their costs.
import { ask } from "./api.js";
import { copyText, el, fill } from "./dom.js";
import { WORDS } from "./words.js";

export async function jobDialog(run, landscape, ranges) {
  const body = el("div", {}, el("p", { class: "quiet" }, WORDS.loading));
  const dialog = openDialog(WORDS.jobTitle, body);
  try {
    const job = await ask("job", { run: run.id, landscape: landscape.name, box: ranges.flat().map(value => Number(Number(value).toPrecision(6))).join(",") });
    const copyButton = text => el("button", { type: "button", class: "single", onclick: async event => {
      fill(event.target, await copyText(text) ? WORDS.copied : WORDS.notCopied);
    } }, WORDS.copy);
    const finer = step => [el("p", {}, WORDS.finer(step.factor), " ", step.command ? WORDS.finerCost(step.points, step.seconds, step.covers.map((ends, k) => [landscape.axes[k].name, ...ends])) : ""),
      step.command ? [el("pre", { tabindex: "0" }, step.command), copyButton(step.command)]
        : el("p", {}, el("button", { type: "button", class: "single", disabled: true }, WORDS.copy), " ", el("span", { class: "quiet" }, WORDS.notFiner(step.reason)))];
    fill(body,
      el("h3", {}, WORDS.finerTitle), el("p", { class: "quiet" }, WORDS.finerHint), el("div", { class: "finer" }, job.finer.map(finer)), el("h3", {}, WORDS.newJob),
      job.note ? el("p", { class: "sentence" }, job.note) : null,
      el("p", {}, Number.isFinite(job.seconds) ? WORDS.jobCost(WORDS.seconds(job.seconds)) : WORDS.jobNoCost),
      job.yaml ? [el("pre", { tabindex: "0" }, job.yaml), copyButton(job.yaml)] : null,
      job.command ? [el("pre", { tabindex: "0" }, job.command), copyButton(job.command)] : null);
  } catch (error) {
    fill(body, el("p", { class: "sentence", role: "alert" }, error.message));
  }
  return dialog;
}

/** A dialog with a title and a button that closes it; the focus goes back to where it was. */
export function openDialog(title, ...content) {
  const dialog = el("dialog", { "aria-label": title }, el("h2", {}, title), content,
    el("p", {}, el("button", { type: "button", class: "single", onclick: () => dialog.close() }, WORDS.close)));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
