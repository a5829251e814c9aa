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

/** Replace all children. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

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
