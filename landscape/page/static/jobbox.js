// The job for a box that a user dragged: its file to copy, its cost, its command.
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
    fill(body,
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
