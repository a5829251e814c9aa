// Slices: the recorded and the bundled ones, and a box for a condition in SQL. A row for each slice and model.

import { ask, send, stop, Superseded } from "./api.js";
import { completion, quoteWindow } from "./complete.js";
import { announce, fill, h, name } from "./dom.js";
import { difference, differenceRange, loss, lossName, percent, percentRange, shareText, whole, DASH } from "./numbers.js";
import { hue, link, live, model, models, reference, state, threshold, unit, update, Units } from "./state.js";
import { keepers } from "./table.js";
import { TERMS } from "./terms.js";

const KEPT = 12;
const OWN = /^slice( \d+)?$/; // names of slices that were typed here

export function slicesView(overview) {
  const results = h("div");
  const heading = (...more) => h("div.heading", {}, h("h1", { id: "slices-title" }, "Slices of the tokens"), more);
  const attributes = { "aria-labelledby": "slices-title" };
  if (overview.no_tokens || !live()) {
    const words = overview.no_tokens ?? `This copy of the result has slices against ${overview.gap.reference}, and their AR hits at its own τ. Others take argap view RESULT.`;
    return {
      element: h("section.slices", attributes, heading(), h("p.empty", {}, overview.no_tokens && "No slice can be computed here: ", words), results),
      show: () => fill(results, sliceTable(recorded(overview, []), overview)),
    };
  }
  const asked = new Map(); // condition -> {name, where, result, key}
  let begun = false;
  const box = h("textarea", { id: "sql", rows: 2, spellcheck: "false", autocomplete: "off", "aria-describedby": "sql-words", placeholder: "repeated AND train_count < 10" });
  const complete = completion(box, overview.columns);
  const run = h("button.primary", { type: "submit" }, "Run");
  const halt = h("button", { type: "button", hidden: true, onclick: () => stop("slices") }, "Stop");
  const words = h("p.caption", { id: "sql-words", role: "status" });
  const found = discovery(overview, { use: (where) => ((box.value = where), box.focus()) });
  const form = h("form.slice-form", { onsubmit: (event) => (event.preventDefault(), submit()) },
    h("label", { for: "sql" }, "Tokens where"), h("div.completing", {}, box, complete.element), h("div.row", {}, run, halt, found.button, words));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    }
  });
  const element = h("section.slices", attributes, heading(keepers("slices", kept)), form, columnList(overview, complete.insert), found.element, results);

  function say(text, wrong = false) {
    words.textContent = text;
    words.classList.toggle("alert", wrong);
  }

  function submit() {
    const where = quoteWindow(box.value.trim());
    box.value = where;
    if (!where) return say("Write a condition, such as repeated AND train_count < 10.");
    if (state().sql === where) return compute([["slice", where]]);
    return update({ sql: where });
  }

  async function compute(named, empty = false) {
    halt.hidden = false;
    run.disabled = true;
    say(`Reading ${whole(overview.gap.evaluation.tokens)} tokens …`);
    const started = performance.now();
    try {
      const made = await ask("slices", { name: named.map(([each]) => each), where: named.map(([, where]) => where), model: models(), ...setting(), empty }, "slices");
      made.forEach((result, k) => {
        const [title, where] = named[k];
        asked.delete(where);
        asked.set(where, { name: title, where, result, key: key() });
      });
      while (asked.size > KEPT + overview.library.length) asked.delete(asked.keys().next().value);
      say(`${((performance.now() - started) / 1000).toFixed(1)} s`);
    } catch (error) {
      if (error instanceof Superseded) say("Stopped.");
      else say(error.message, true);
    }
    halt.hidden = true;
    run.disabled = false;
    draw();
  }

  const setting = () => ({ threshold: threshold(), reference: reference() });
  const key = () => JSON.stringify([setting(), models()]);

  function kept() {
    const good = [...asked.values()];
    return good.length ? { name: good.map((each, k) => (OWN.test(each.name) ? `slice ${k + 1}` : each.name)), where: good.map((each) => each.where), model: models(), empty: true } : null;
  }

  function draw() {
    const all = [...asked.values()];
    const shown = [...all.filter((each) => OWN.test(each.name)).reverse(), ...all.filter((each) => !OWN.test(each.name))];
    fill(results, sliceTable([...shown, ...recorded(overview, shown)], overview, own() ? { record } : {}));
  }

  const own = () => threshold() === overview.gap.threshold && reference() === overview.gap.reference;

  /** Store a slice in the result, under a name. */
  async function record(where, name) {
    try {
      overview.gap.slices = await send("record", { name, where });
      asked.delete(where);
      announce(`${name} is recorded; argap report writes the report with it`);
    } catch (error) {
      say(error.message, true);
    }
    draw();
  }

  /** What to compute on coming here: the condition of the address, the bundled slices at first, and what is stale. */
  function due() {
    const stale = [...asked.values()].filter((each) => each.key !== key()).map((each) => [each.name, each.where]);
    const typed = state().sql && !asked.has(state().sql) ? [["slice", state().sql]] : [];
    const bundled = begun || typed.length ? [] : overview.library.map((each) => [each.name, each.where]);
    return [...typed, ...stale, ...bundled.filter(([, where]) => !asked.has(where))];
  }

  return {
    element,
    show() {
      if (document.activeElement !== box) box.value = state().sql ?? box.value;
      const wanted = due();
      const lone = wanted.length === 1;
      begun = true;
      if (wanted.length) compute(wanted.map(([title, where], k) => [OWN.test(title) && !lone ? `slice ${k + 1}` : title, where]), !lone);
      else draw();
    },
  };
}

/** The slices of the result, at its own reference and τ, which a copy does not compute again; without those shown already. */
function recorded(overview, shown) {
  if ((live() && threshold() !== overview.gap.threshold) || reference() !== overview.gap.reference) return [];
  return overview.gap.slices.filter((each) => !shown.some((one) => one.where === each.where)).map((result) => ({ name: result.title || result.name, where: result.where, result, recorded: live() }));
}

function columnList(overview, insert) {
  return h("details", {}, h("summary", {}, "Columns"),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Columns" }, h("table.columns", {}, h("tbody", {}, overview.columns.map((each) => h("tr", {},
      h("th.left", { scope: "row" }, h("button.quiet", { type: "button", title: `Insert ${each.sql}`, onclick: () => insert(each.sql) }, h("code", {}, each.name))),
      h("td.faint", {}, each.type), h("td", {}, each.meaning)))))));
}

/** The button, and the element of what was found; `use(where)`: put a condition into the box. */
function discovery(overview, { use }) {
  const element = h("div");
  const button = h("button", { type: "button", title: "Find conditions that explain the gap of the first model", onclick: run }, "Discover");

  async function run() {
    const of = model();
    if (of === reference()) return fill(element, h("p.empty", {}, "Nothing to discover: no other model to compare."));
    button.disabled = true;
    fill(element, h("p.caption", { role: "status" }, "Growing trees on half of the documents … ", h("button", { type: "button", onclick: () => stop("discover") }, "Stop")));
    try {
      draw(of, await ask("discover", { model: of, reference: reference() }, "discover"));
    } catch (error) {
      fill(element, h("p.caption", { role: "status", class: error instanceof Superseded ? null : "alert" }, error instanceof Superseded ? "Stopped." : error.message));
    }
    button.disabled = false;
    return undefined;
  }

  function draw(of, made) {
    const row = (part) => {
      const each = part.models.find((one) => one.model === of);
      return h("tr", {}, h("th.left", { scope: "row" }, h("code", {}, part.where)), h("td", {}, percent(part.share_of_tokens)),
        h("td", {}, difference(each.contribution), each.contribution_ci95 && h("span.ends", {}, differenceRange(each.contribution_ci95))), h("td", {}, h("b", {}, shareText(each))),
        h("td", {}, made.stability[part.name]?.toFixed(2)), h("td", {}, h("button.quiet", { type: "button", onclick: () => use(part.where) }, "use")));
    };
    fill(element, h("section.found", { "aria-labelledby": "found-title" },
      h("div.heading", {}, h("h2", { id: "found-title" }, "Discovered for ", name(of)), h("button.quiet", { type: "button", onclick: () => fill(element) }, "Close")),
      h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Table of what was found" }, h("table.parts", {},
        h("thead", {}, h("tr", {}, h("th.left", { scope: "col" }, "Condition"), h("th", { scope: "col" }, "% of tokens"), h("th", { scope: "col" }, "Contribution"), h("th", { scope: "col" }, "Share"), h("th", { scope: "col", title: "overlap with the most similar leaf of trees grown on other halves; 1: the same" }, "Stability"), h("td"))),
        h("tbody", {}, made.parts.map(row)))),
      h("p.caption", {}, `Found in one half of the documents; figures of the other half. ${made.note}`)));
  }
  return { button, element };
}

/** `shown`: {name, where, result}; `record(where, name)`: stores a slice, where that is possible. */
function sliceTable(shown, overview, { record = null } = {}) {
  if (!shown.length) return h("p.empty", {}, "No slices yet.");
  const several = models().length > 1;
  const heads = [[Units(), null, "wide"], [`% of ${unit()}s`, null, "wide"], [overview.hits, "share of the slice that are hits", "wide"], [lossName(unit()), TERMS.overall, "wide"], ["ΔNLL", "NLL minus the reference’s on the slice", "wide"], ["Contribution", "share of the tokens times ΔNLL on them", ""], ["Share", "of the whole ΔNLL", ""]];
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Slices" }, h("table.parts.slice-table", {},
    h("thead", {}, h("tr", {}, h("th.left", { scope: "col" }, "Slice"), several && h("th.left", { scope: "col" }, "Model"), heads.map(([each, title, className]) => h("th", { scope: "col", title, class: className }, each)), !overview.no_tokens && h("td"))),
    shown.map((each) => body(each, several, overview, record))));
}

/** A slice: what it selects beside a row for each chosen model. */
function body(each, several, overview, record) {
  const { result } = each;
  const chosen = models().map((model) => result.models.find((one) => one.model === model)).filter(Boolean);
  const rows = chosen.length ? chosen : result.models;
  const title = /^slice( \d+)?$/.test(each.name) ? null : each.name === "ar_hits" ? overview.hits : overview.library.find((one) => one.name === each.name)?.title || each.name;
  const head = h("th.left", { scope: "rowgroup", rowspan: rows.length }, title && h("span.slice-name", {}, title), each.where && h("code", {}, each.where));
  const links = !overview.no_tokens && h("td.links", { rowspan: rows.length }, result.n > 0 && tokens(each), record && !each.recorded && recorder(each, record), each.recorded && h("span.faint", {}, "recorded"));
  return h("tbody", {}, rows.map((one, k) => h("tr", {},
    k === 0 && head, several && h("th.left.of", { scope: "row" }, h("span.swatch", { class: hue(one.model) }), name(one.model)),
    k === 0 && [h("td.n.wide", { rowspan: rows.length }, whole(result.n)), h("td.share.wide", { rowspan: rows.length }, percent(result.share_of_tokens)), h("td.hits.wide", { rowspan: rows.length }, percent(result.ar_hits))],
    h("td.ppl.wide", {}, loss(one, unit())),
    h("td.delta-nll.wide", {}, result.n ? difference(one.delta) : DASH),
    h("td.part", {}, difference(one.contribution), one.contribution_ci95 && h("span.ends", {}, differenceRange(one.contribution_ci95))),
    h("td.due", { title: one.reason }, h("b", {}, shareText(one)), one.share_ci95 ? one.share_ci95[0] !== one.share_ci95[1] && h("span.ends", {}, percentRange(one.share_ci95)) : one.reason && h("span.ends.why", {}, one.reason)),
    k === 0 && links)));
}

function tokens(each) {
  const to = { view: "tokens", list: "losses", where: each.where ?? "ar_hits", window: null, pos: null };
  return h("a", { href: link(to), onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    update(to);
  } }, "tokens");
}

/** A button that becomes a field for a name; Enter records, Escape gives up. */
function recorder(each, record) {
  const place = h("span.recorder");
  const button = h("button.quiet", { type: "button", title: "Store this slice in the result", onclick: () => {
    const input = h("input", { type: "text", "aria-label": "Name of the slice", placeholder: "name", value: /^slice( \d+)?$/.test(each.name) ? "" : each.name, onkeydown: (event) => event.key === "Escape" && (event.stopPropagation(), fill(place, button), button.focus()) });
    fill(place, h("form.row", { onsubmit: (event) => (event.preventDefault(), input.value.trim() && record(each.where, input.value.trim())) }, input, h("button", {}, "Record")));
    input.focus();
  } }, "record");
  place.append(button);
  return place;
}
