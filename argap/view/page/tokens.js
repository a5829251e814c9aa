// The token browser: a list of windows or tokens worth looking at, a window as running text, and one token in detail.

import { ask, stop, Superseded } from "./api.js";
import { fill, h, name } from "./dom.js";
import { lists } from "./lists.js";
import { chance, nats, plural, signed, times, whole, DASH } from "./numbers.js";
import { against, compared, link, listen, model, natsPer, reference, state, threshold, update, windowAfter } from "./state.js";
import { range, text, STEPS } from "./text.js";

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

function inspector({ jump }) {
  const element = h("aside.inspector", { "aria-label": "Token", "aria-live": "off" });
  const said = h("p.hidden", { role: "status" });
  let last = null;
  return {
    element,
    draw(window, pos) {
      if (!window || pos === null) {
        fill(element, h("p.empty", {}, "Point at a token, or move to it with the arrow keys."));
        return;
      }
      if (last?.window === window && last.pos === pos && last.tau === threshold()) return;
      last = { window, pos, tau: threshold() };
      fill(element, card(window, pos, jump), said);
    },
  };
}

function card(window, pos, jump) {
  const [own, other] = [window.models[0], window.models.at(-1)];
  const nll = own.nll[pos];
  const count = window.train_count?.[pos];
  const repeated = window.repeated[pos];
  const hit = pos > 0 && repeated && (threshold() === null || !window.train_count || count <= threshold());
  const pair = h("p.pair", {}, pos > 0 && h("bdi.before", {}, inline(window.tokens[pos - 1])), h("bdi.this", {}, inline(window.tokens[pos]) || "∅"));
  const length = window.cut[pos] && h("p.faint", {}, `The first 400 of ${plural(window.cut[pos], "character")}.`);
  if (pos === 0) {
    return [pair, length, h("p", {}, "First token of the window: context only, not scored."), h("p.faint", {}, `position 0 · id ${window.ids[pos]}`)];
  }
  const single = own === other;
  const shown = single ? [own] : [own, other];
  const ranked = shown.some((each) => each.rank);
  return [
    pair,
    length,
    h("p.badges", {}, hit ? h("span.badge.is-hit", {}, threshold() === null ? "repeated" : "AR hit") : h("span.badge", {}, repeated ? "repeated, not a hit" : "not repeated")),
    h("table.pairwise", {},
      h("thead", {}, h("tr", {}, h("td"), h("th", { scope: "col" }, "NLL"), h("th", { scope: "col" }, "prob."), ranked && h("th", { scope: "col" }, "rank"), h("th.left", { scope: "col" }, "top-1"))),
      h("tbody", {}, shown.map((each) => h("tr", {}, h("th.left", { scope: "row" }, name(each.model)), h("td", {}, nats(each.nll[pos], 2)), h("td", {}, chance(each.nll[pos])), ranked && h("td.rank", {}, each.rank ? whole(each.rank[pos]) : DASH), h("td.left", {}, each.right[pos] ? h("span.right", {}, "right") : h("bdi.wrong", { title: "its most likely token" }, inline(each.top1[pos]) || "∅"))))),
      !single && h("tfoot", {}, h("tr", {}, h("th.left", { scope: "row" }, "Δ NLL"), h("td", {}, signed(nll - other.nll[pos])), h("td.left", { colspan: ranked ? 3 : 2 }, "nats")))),
    h("dl.labels", {},
      h("dt", {}, "earlier in the window"), h("dd", {}, repeated ? [plural(window.distance[pos], "token"), " back", window.occurrences[pos] > 1 ? `, ${times(window.occurrences[pos])} in all` : ""] : "no"),
      h("dt", {}, "seen in training"), h("dd", {}, count === undefined ? "not counted" : times(count)),
      h("dt", {}, "position"), h("dd", {}, `${whole(pos)} of ${whole(window.tokens.length - 1)}`),
      h("dt", {}, "token id"), h("dd", {}, window.ids[pos]),
      shown.flatMap((each) => [["KL", each.kl], ["entropy", each.entropy]].filter(([, values]) => values).map(([what, values]) => [h("dt", {}, `${what}, `, name(each.model)), h("dd", {}, nats(values[pos], 3))])),
      Object.entries(window.kept).filter(([, values]) => values[pos]).map(([column, values]) => [h("dt", {}, name(column)), h("dd", {}, name(values[pos]))])),
    repeated && h("p", {}, h("button", { type: "button", onclick: () => jump(pos - window.distance[pos]) }, "To the earlier occurrence ", h("kbd", {}, "Enter"))),
  ];
}

const inline = (text) => text.replaceAll("\n", "");
