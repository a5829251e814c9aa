// A window as running text: every token an element of its own, so that it can be looked at with mouse, finger or keys.

import { h, svg } from "./dom.js";

const DRAWN = 6000; // tokens in the page at once; longer windows are shown in parts

/**
 * `moved(pos)`: another token is current. `looked(pos)`: show this one in detail (null: the current one again).
 * `leave(step, wanted)`: go on in the window before or after; `wanted`: "first" or "last" hit.
 */
export function text({ moved, looked, leave }) {
  const flow = h("div.flow", { role: "group", "aria-label": "Text of the window; arrow keys move by token" });
  const arcs = svg("svg.arcs", { "aria-hidden": "true" });
  const element = h("div.text", {}, flow, arcs);
  let window = null;
  let hits = [];
  let elements = [];
  let current = null;
  let seen = null; // the token shown in detail: the current one, or that under the pointer
  let start = 0;
  const trail = [];

  const at = (pos) => elements[pos - start];
  const end = () => Math.min(start + DRAWN, window.tokens.length);

  function drawPart(from) {
    start = Math.max(0, Math.min(from, window.tokens.length - 1));
    const [own, other] = [window.models[0], window.models.at(-1)];
    elements = window.tokens.slice(start, start + DRAWN).map((token, k) => {
      const pos = start + k;
      const nll = own.nll[pos];
      const delta = nll === null || own === other ? null : nll - other.nll[pos];
      const classes = ["t", pos === 0 ? "context" : `d${shade(delta)}`, hits[pos] && "hit", pos in window.cut && "cut"];
      const made = h("bdi", { class: classes.filter(Boolean).join(" "), tabindex: -1 }, token === "" ? "∅" : token);
      made.pos = pos;
      return made;
    });
    flow.replaceChildren(
      ...(start > 0 ? [more("Show the text before", start - DRAWN)] : []),
      ...elements,
      ...(end() < window.tokens.length ? [more("Show the text after", end())] : []));
  }

  const more = (title, from) => h("button.more", { type: "button", onclick: () => (drawPart(Math.max(from, 0)), go(Math.max(from, 0), {})) }, title);

  flow.addEventListener("pointerover", (event) => event.pointerType === "mouse" && look(event.target.closest("bdi")?.pos ?? null));
  flow.addEventListener("pointerleave", () => look(null));
  flow.addEventListener("click", (event) => {
    const pos = event.target.closest("bdi")?.pos;
    if (pos !== undefined) go(pos, { focus: true });
  });
  flow.addEventListener("focusin", (event) => event.target.pos !== undefined && event.target.pos !== current && go(event.target.pos, {}));

  new ResizeObserver(() => connect(seen)).observe(flow);

  function look(pos) {
    seen = pos ?? current;
    looked(seen);
    connect(seen);
  }

  /** A line from a token to the earlier occurrence of its bigram, and both bigrams ringed. */
  function connect(pos) {
    for (const ringed of flow.querySelectorAll(".bigram, .earlier")) ringed.classList.remove("bigram", "earlier");
    arcs.replaceChildren();
    if (pos === null || !window?.repeated[pos]) return;
    const back = pos - window.distance[pos];
    [pos - 1, pos].forEach((k) => at(k)?.classList.add("bigram"));
    [back - 1, back].forEach((k) => at(k)?.classList.add("earlier"));
    const [from, to] = [box(at(pos)), box(at(back))];
    if (!from || !to) return;
    const rise = Math.min(26, 8 + Math.abs(from.x - to.x) / 12);
    const bend = Math.min(24, Math.abs(from.y - to.foot) / 2);
    const level = Math.min(from.y, to.y) - rise;
    const line = from.y === to.y ? `M${from.x} ${from.y} C${from.x} ${level} ${to.x} ${level} ${to.x} ${to.y}` : `M${from.x} ${from.y} C${from.x} ${from.y - bend} ${to.x} ${to.foot + bend} ${to.x} ${to.foot}`;
    arcs.append(svg("path", { d: line }), svg("circle", { cx: to.x, cy: from.y === to.y ? to.y : to.foot, r: 3 }));
  }

  function box(token) {
    const rect = token?.getClientRects()[0];
    if (!rect) return null;
    const origin = element.getBoundingClientRect();
    return { x: rect.left + Math.min(rect.width, 60) / 2 - origin.left, y: rect.top - origin.top, foot: rect.bottom - origin.top };
  }

  function go(pos, { focus = false, remember = false, quiet = false } = {}) {
    if (!window) return;
    const target = Math.max(0, Math.min(Number.isFinite(pos) ? pos : 0, window.tokens.length - 1));
    if (remember && current !== null) trail.push(current);
    if (target < start || target >= end()) drawPart(Math.floor(target / DRAWN) * DRAWN);
    if (current !== null) at(current)?.setAttribute("tabindex", -1);
    at(current)?.classList.remove("current");
    const changed = current !== target;
    current = target;
    at(target).setAttribute("tabindex", 0);
    at(target).classList.add("current");
    if (focus || flow.contains(document.activeElement) || remember) at(target).focus({ preventScroll: true });
    reveal(at(target), quiet && !changed);
    look(target);
    if (changed && !quiet) moved(target);
  }

  function reveal(token, skip) {
    if (skip) return;
    const rect = token.getBoundingClientRect();
    const top = document.getElementById("header").getBoundingClientRect().bottom + 60;
    const card = document.querySelector(".inspector");
    const bottom = card && getComputedStyle(card).bottom === "0px" ? innerHeight - card.offsetHeight : innerHeight;
    if (rect.top < top || rect.bottom > bottom - 40) scrollBy({ top: rect.top - (top + bottom) / 2 + 30, behavior: "instant" });
  }

  function nextHit(step) {
    for (let pos = (current ?? 0) + step; pos > 0 && pos < window.tokens.length; pos += step) {
      if (hits[pos]) return go(pos, { focus: true });
    }
    return leave(step, step > 0 ? "first" : "last");
  }

  /** The token on the line above or below that is nearest. */
  function lineStep(step) {
    const from = box(at(current));
    let best = null;
    for (let pos = current + step; at(pos); pos += step) {
      const there = box(at(pos));
      if (Math.abs(there.y - from.y) < 4) continue;
      if (best && Math.abs(there.y - best.y) > 4) break;
      if (!best || Math.abs(there.x - from.x) < Math.abs(best.x - from.x)) best = { ...there, pos };
    }
    if (best) go(best.pos, { focus: true });
  }

  const KEYS = {
    ArrowRight: () => go(current + 1, { focus: true }),
    ArrowLeft: () => go(current - 1, { focus: true }),
    ArrowDown: () => lineStep(1),
    ArrowUp: () => lineStep(-1),
    Home: () => go(0, { focus: true }),
    End: () => go(window.tokens.length - 1, { focus: true }),
    n: () => nextHit(1),
    p: () => nextHit(-1),
    Enter: () => window.repeated[current] && go(current - window.distance[current], { focus: true, remember: true }),
    Backspace: () => trail.length && go(trail.pop(), { focus: true }),
  };

  return {
    element,
    key: null,
    pending: null,
    get window() {
      return window;
    },
    set(made, key) {
      window = made;
      this.key = key;
      current = seen = null;
      trail.length = 0;
      hits = [];
      start = 0;
      elements = [];
    },
    clear() {
      window = null;
      this.key = null;
      current = seen = null;
    },
    /** Underline the hits at a threshold. */
    mark(threshold) {
      hits = window.repeated.map((repeated, pos) => pos > 0 && repeated && (threshold === null || !window.train_count || window.train_count[pos] <= threshold));
      if (!elements.length) drawPart(start);
      else elements.forEach((token) => token.classList.toggle("hit", hits[token.pos]));
    },
    /** The first hit; the first scored token where there is none. `pending` may ask for the last one. */
    firstHit: () => Math.max(hits.indexOf(true), 0) || Math.min(1, window.tokens.length - 1),
    lastHit: () => hits.lastIndexOf(true),
    hit: (pos) => hits[pos],
    go,
    key_(event) {
      if (!window || !(event.key in KEYS)) return false;
      const inside = flow.contains(document.activeElement);
      if (!inside && !["n", "p"].includes(event.key)) return false;
      KEYS[event.key]();
      return true;
    },
  };
}

/** Nats between the shades. */
export const STEPS = [0.25, 0.75, 1.5, 3];

/** The shade of a difference, −4 (better) … 4 (worse). */
export function shade(delta) {
  if (delta === null) return 0;
  const steps = STEPS.filter((step) => Math.abs(delta) >= step).length;
  return delta < 0 ? -steps : steps;
}

/** What a shade stands for, in words. */
export function range(k) {
  if (k === 0) return `less than ${STEPS[0]} nats`;
  const [from, to] = [STEPS[Math.abs(k) - 1], STEPS[Math.abs(k)]];
  return `${k < 0 ? "better" : "worse"} by ${to ? `${from} to ${to}` : `${from} or more`} nats`;
}
