// The token browser: a list of windows or tokens worth looking at, a window as running text, and one token in detail.

import { ask, stop, Superseded } from "./api.js";
import { fill, h, name } from "./dom.js";
import { lists } from "./lists.js";
import { inspector } from "./inspector.js";
import { nats, plural, whole } from "./numbers.js";
import { against, compared, link, listen, model, natsPer, reference, state, threshold, update, windowAfter } from "./state.js";
import { STEPS, range } from "./shade.js";
import { text } from "./text.js";

export function tokensView(overview) {
  if (overview.no_tokens) {
    return { element: h("div.empty", {}, h("h1", {}, "No tokens to look at"), h("p", {}, overview.no_tokens)), show() {} };
  }
  const title = h("div.window-title");
  const shown = text({ moved: (pos) => update({ pos: String(pos) }, { replace: true }), looked: (pos) => card.draw(shown.window, pos), leave: (step, wanted) => openBeside(step, wanted) });
  const card = inspector({ jump: (pos) => shown.go(pos, { remember: true }) });
  const list = lists(overview, { open: (window, pos) => update({ window: String(window), pos: pos === null ? null : String(pos) }) });
  const body = h("div.window-body", {}, h("p.empty", { role: "status" }, "Reading the window …"));
  const element = h("div.tokens", {},
    list.element,
    h("section.window", { "aria-labelledby": "window-title" }, title, legend(overview), body),
    card.element);

  /** The window of the address; without one that of a token in the address, or the one that loses most. */
  async function chosenWindow() {
    const first = String(overview.bundled?.[0] ?? 0);
    if (state().window !== null || state().pos !== null || model() === against()) return state().window ?? first;
    try {
      const worst = await ask("windows", { model: model(), reference: against() }, "worst");
      return String(worst[0]?.window ?? first);
    } catch (error) {
      if (error instanceof Superseded) throw error;
      return first;
    }
  }

  async function load() {
    let number;
    try {
      number = await chosenWindow();
    } catch (error) {
      if (error instanceof Superseded) return;
      throw error;
    }
    const setting = { window: number, model: [model()], reference: against() };
    const key = JSON.stringify(setting);
    if (shown.key === key) {
      stop("window"); // of another one, which was left before it came
    } else {
      body.classList.add("waiting");
      try {
        const made = await ask("window", setting, "window");
        shown.set(made, key);
        fill(body, shown.element);
      } catch (error) {
        if (error instanceof Superseded) return;
        shown.clear();
        card.draw(null, null);
        fill(title, h("h1", { id: "window-title" }, `Window ${number}`));
        fill(body, h("div.empty", { role: "alert" }, h("p", {}, error.message), h("p", {}, h("a", { href: link({ window: null, pos: null }) }, "Open the window that loses most"))));
        return;
      } finally {
        body.classList.remove("waiting");
      }
    }
    list.here(number);
    shown.mark(threshold());
    drawTitle(title, shown.window, overview, beside);
    const wanted = shown.pending === "last" ? shown.lastHit() : shown.firstHit();
    const asked = state().pos === null ? wanted : Number(state().pos);
    shown.pending = null;
    shown.go(asked, { quiet: true });
  }

  function beside(step) {
    const number = windowAfter(state().window === null ? shown.window?.window ?? 0 : Number(state().window), step);
    if (number === null) return false;
    update({ window: String(number), pos: null });
    return true;
  }

  function openBeside(step, wanted) {
    shown.pending = wanted;
    if (!beside(step)) shown.pending = null;
  }

  return {
    element,
    keepsScroll: false,
    show(changed) {
      list.show(changed);
      load();
    },
    key(event) {
      if (event.key === "/") return list.search(), true;
      if (event.key === "w" || event.key === "l") return list.focus(event.key === "w" ? "windows" : "losses"), true;
      if (event.key === "j" || event.key === "k") return beside(event.key === "j" ? 1 : -1), true;
      return shown.key_(event);
    },
  };
}

function drawTitle(element, window, overview, beside) {
  const [own] = window.models;
  const scored = own.nll.filter((value) => value !== null).length;
  const other = window.models.at(-1);
  const lost = own.nll.reduce((sum, value, k) => sum + (value === null ? 0 : value - other.nll[k]), 0) / Math.max(scored, 1);
  fill(element,
    h("div.heading", {},
      h("h1", { id: "window-title" }, `Window ${whole(window.window)}`, h("span.faint", { title: "numbered from 0, as the column window" }, ` of ${whole(overview.gap.evaluation.windows)}`, overview.bundled && `, ${whole(overview.bundled.length)} of them here`)),
      h("div.steps", {},
        h("button", { type: "button", disabled: windowAfter(window.window, -1) === null, onclick: () => beside(-1), "aria-label": "Window before (k)" }, "←"),
        h("button", { type: "button", disabled: windowAfter(window.window, 1) === null, onclick: () => beside(1), "aria-label": "Next window (j)" }, "→"),
        h("button.to-lists", { type: "button", onclick: () => document.querySelector(".lists").scrollIntoView() }, "Others ↓"))),
    h("p.detail", {}, name(window.domain), " · ", name(window.source), ` · document ${whole(window.document)} · ${plural(window.tokens.length, "token")} · `,
      own.model === other.model ? `NLL ${nats(own.nll.reduce((sum, value) => sum + (value ?? 0), 0) / Math.max(scored, 1), 2)}` : [name(own.model), ` loses ${nats(lost, 3)} ${natsPer()} to `, name(other.model)]));
}

function legend(overview) {
  const pair = h("span");
  const select = h("select", { "aria-label": "Shaded against", onchange: () => update({ against: select.value === reference() ? null : select.value }) });
  const swatches = [-4, -3, -2, -1, 0, 1, 2, 3, 4].map((k) => h("span", { class: `d${k}`, title: range(k) }, k === 0 ? "0" : Math.abs(k) === 4 ? `${k < 0 ? "−" : "+"}${STEPS[3]}` : ""));
  const element = h("div.legend", {}, h("span.scale", {}, h("span.end", {}), ...swatches, h("span.end", {})), h("span", {}, h("span.sample.hit", {}, overview.hits), h("span.faint", {}, " underlined")), h("label", {}, "shaded against ", select));
  const draw = () => {
    element.classList.toggle("single", model() === against());
    fill(select, [reference(), ...compared()].filter((each) => each !== model()).map((each) => h("option", {}, each)));
    select.value = against();
    const [left, right] = element.querySelectorAll(".end");
    fill(left, name(model()), " better");
    fill(right, "worse, nats");
  };
  draw();
  listen(draw);
  return element;
}
