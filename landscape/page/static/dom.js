// Making elements. Text is always set as text, so nothing in a run's files is parsed as HTML.

/** An element: attributes by name, `on…` as listeners, booleans as present or absent; strings and nodes as children. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

/** Runs `work` at most once per frame, with the latest arguments. */
export function perFrame(work) {
  let latest = null, waiting = false;
  return (...given) => {
    latest = given;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; work(...latest); });
  };
}

/** Runs `work` after `milliseconds` without a further call. */
export function settled(work, milliseconds) {
  let timer = 0;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), milliseconds); };
}

/** A table of two columns: names and values. */
export function facts(rows, caption) {
  return el("table", { class: "facts" }, caption ? el("caption", {}, caption) : null,
    el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))));
}

/** Buttons of which one is pressed. `choices` are [value, name] pairs. */
export function choice(label, choices, chosen, choose) {
  const group = el("span", { class: "choice", role: "group", "aria-label": label });
  fill(group, choices.map(([value, name, title]) => el("button", {
    type: "button", "aria-pressed": String(value === chosen), "data-value": value, title,
    onclick: () => {
      for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
      choose(value);
    } }, name)));
  return group;
}

/** Copies a text to the clipboard. Returns whether that succeeded. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { /* over plain HTTP, only pages of this machine have this clipboard */ }
  const area = el("textarea", { value: text, style: "position: fixed; opacity: 0" });
  (document.querySelector("dialog[open]") || document.body).append(area); // beside an open dialog nothing can be selected
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

/** A labelled control; the label and the control belong together for a screen reader. */
export function labelled(name, control, more) {
  return el("label", { class: "field" }, el("span", { class: "name" }, name), control, more);
}
