// Elements built one by one: nothing that comes from a result is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("a.name", {href: "#", onclick: f}, "text", child)`. Empty children (null, false) are skipped. */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag.split(".")[0]), tag, attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag.split(".")[0]), tag, attributes, children);
}

function build(element, tag, attributes, children) {
  const classes = tag.split(".").slice(1);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", [...classes, value].filter(Boolean).join(" "));
    else if (name === "value" && "value" in element) element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replace all children. The focus stays on the control that had it, if that is drawn anew. */
export function fill(element, ...children) {
  const focused = element.contains(document.activeElement) && identity(document.activeElement);
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  if (focused && !element.contains(document.activeElement)) {
    [...element.querySelectorAll(CONTROL)].find((each) => identity(each) === focused)?.focus({ preventScroll: true });
  }
  return element;
}

const CONTROL = "a, button, [data-key]";

/** What a control is known by when it is drawn anew. */
const identity = (control) => [control.tagName, control.dataset.key ?? control.getAttribute("href") ?? control.getAttribute("aria-label") ?? control.textContent].join(" ");

// An answer may come while the mouse is held down, and its figures be drawn in new elements. The browser then knows of
// no click: the new element gets it.
let pressed = null;
addEventListener("pointerdown", (event) => (pressed = event.button === 0 && event.pointerType === "mouse" ? event.target.closest?.(CONTROL) : null), true);
addEventListener("pointerup", (event) => {
  const released = event.target.closest?.(CONTROL);
  const lost = released && pressed && !pressed.isConnected && identity(pressed) === identity(released);
  pressed = null;
  if (lost) released.dispatchEvent(new MouseEvent("click", event));
}, true);

/** A name that a user chose: isolated, so that its direction changes nothing around it. */
export const name = (text) => h("bdi", {}, text);

let timer = 0;
/** Say something to everybody, screen readers included, for a few seconds. */
export function announce(text) {
  const status = document.getElementById("status");
  status.textContent = text;
  status.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => status.classList.remove("shown"), 2600);
}
