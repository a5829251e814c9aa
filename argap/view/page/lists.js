// What to look at: the windows that lose most, the tokens that lose most, a search, or the tokens of a slice.

import { ask, Superseded } from "./api.js";
import { announce, fill, h, name } from "./dom.js";
import { signed, whole } from "./numbers.js";
import { shade } from "./text.js";
import { against, link, live, model, natsPer, state, threshold, update } from "./state.js";
import { keepers } from "./table.js";

const ALL = [["windows", "Worst windows"], ["losses", "Largest losses"], ["search", "Search"]];

export function lists(overview, { open }) {
  const TABS = live() ? ALL : ALL.slice(0, 2); // a search reads the whole text
  let open_ = null; // the window that is shown
  const tabs = h("div.tabs", { role: "tablist", "aria-label": "What to look at" });
  const form = h("div.list-form");
  const items = h("ol.items");
  const words = h("p.caption", { role: "status" });
  const element = h("section.lists", { "aria-label": "Where to look" }, tabs, form, words, items);
  let asked = null;

  const input = h("input", { type: "search", "aria-label": "Search in the text", placeholder: "text, as it stands", autocomplete: "off", spellcheck: "false" });
  const searching = h("form.row", { role: "search", onsubmit: (event) => (event.preventDefault(), update({ q: input.value || null })) }, input, h("button", {}, "Search"));
  const where = h("input", { type: "text", "aria-label": "Tokens of a slice: a condition in SQL", autocomplete: "off", spellcheck: "false" });
  const order = h("select", { "aria-label": "Order", onchange: () => update({ order: order.value }, { replace: true }) }, h("option", { value: "loss" }, "largest loss first"), h("option", { value: "text" }, "in the order of the text"));
  const choosing = h("form", { onsubmit: (event) => (event.preventDefault(), update({ where: where.value.trim() || "ar_hits" })) }, h("div.row", {}, where, h("button", {}, "Show")), live() && h("div.row", {}, order, keepers("tokens", () => ({ where: state().where ?? "ar_hits", model: [model(), against()] }), ["csv", "parquet"])));

  function drawTabs() {
    const had = tabs.contains(document.activeElement);
    fill(tabs, TABS.map(([list, title]) => h("button", {
      type: "button", role: "tab", "aria-selected": String(state().list === list), tabindex: state().list === list ? 0 : -1, onclick: () => update({ list }),
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const k = TABS.findIndex(([each]) => each === state().list);
        update({ list: TABS[(k + step + TABS.length) % TABS.length][0] });
      },
    }, title)));
    if (had) tabs.querySelector("[aria-selected=true]")?.focus();
  }

  async function load() {
    const kind = TABS.some(([list]) => list === state().list) ? state().list : "windows";
    fill(form, kind === "search" ? searching : kind === "losses" ? choosing : null);
    if (kind === "search" && document.activeElement !== input) input.value = state().q ?? "";
    if (kind === "losses" && document.activeElement !== where) where.value = (state().where ?? "ar_hits") === "ar_hits" ? "" : state().where;
    where.placeholder = overview.hits;
    order.value = state().order;
    const request = requestOf(kind);
    const key = JSON.stringify(request);
    if (key === asked) return mark();
    asked = key;
    if (!request) {
      fill(items);
      words.textContent = kind === "search" ? "Type a text; small letters match capitals too." : "This list needs a second model to compare with.";
      return undefined;
    }
    words.textContent = "Reading …";
    items.classList.add("waiting");
    try {
      const made = await ask(...request, "list");
      if (kind === "windows") drawWindows(made);
      else drawMatches(made, kind);
    } catch (error) {
      if (error instanceof Superseded) return undefined;
      fill(items);
      words.textContent = error.message[0].toUpperCase() + error.message.slice(1);
    }
    items.classList.remove("waiting");
    return mark();
  }

  function requestOf(kind) {
    if (kind === "search") return state().q ? ["search", { text: state().q }] : null;
    if (model() === against()) return null;
    if (kind === "windows") return ["windows", { model: model(), reference: against() }];
    return ["losses", { where: state().where ?? "ar_hits", model: model(), reference: against(), threshold: threshold(), in_order: state().order === "text" }];
  }

  function drawWindows(made) {
    words.textContent = made.length ? "" : "No windows.";
    fill(words, made.length && [name(model()), " loses most to ", name(against()), `, ${natsPer()}`]);
    fill(items, made.map((each) => item(each.window, null, h("span.what", {}, h("b", {}, `Window ${whole(each.window)}`), h("span.faint", {}, name(each.domain), " · ", h("span", { title: each.source }, name(each.source.split("/").slice(-2).join("/"))))), each.delta)));
  }

  function drawMatches(made, kind) {
    const found = made.matches.length;
    const many = made.more ? `the first ${whole(found)}` : whole(found);
    words.textContent = !found ? (kind === "search" ? `“${state().q}” is not in the text.` : live() ? "No token is in this slice." : "No token of the windows in this copy is in this slice.") : kind === "search" ? `${many} found` : `${many}${live() ? "" : " in these windows"}, ΔNLL in nats`;
    fill(items, made.matches.map((each) => item(each.window, each.pos, h("span.what", {}, h("span.context", {}, h("bdi", {}, each.before.slice(-14)), h("bdi.this", {}, each.text), h("bdi", {}, each.after)), h("span.faint", {}, `window ${whole(each.window)}, position ${whole(each.pos)}`)), each.nll && each.nll[0] - each.nll[1])));
  }

  const item = (window, pos, what, delta) => h("li", { "data-window": window, "data-pos": pos },
    h("a", { href: link({ window: String(window), pos: pos === null ? null : String(pos) }), onclick: (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      open(window, pos);
    } }, what, delta !== null && delta !== undefined && h("span.delta", { class: `d${shade(delta)}` }, signed(delta))));

  function mark() {
    for (const each of items.children) {
      const here = each.dataset.window === (state().window ?? open_) && (each.dataset.pos === undefined || each.dataset.pos === state().pos);
      each.firstChild.toggleAttribute("aria-current", here);
    }
  }

  return {
    element,
    /** Which window is shown, where the address names none. */
    here(number) {
      open_ = number;
      mark();
    },
    show() {
      drawTabs();
      load();
    },
    search() {
      if (!live()) return announce("A copy of a result has no search; argap view RESULT has");
      update({ list: "search" }, { replace: true });
      input.focus();
      return input.select();
    },
    focus(list) {
      update({ list }, { replace: true });
      tabs.querySelector("[aria-selected=true]").focus();
      announce(ALL.find(([each]) => each === list)[1]);
    },
  };
}
