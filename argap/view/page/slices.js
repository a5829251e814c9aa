// Slices: the recorded and the bundled ones, and a box for a condition in SQL. A row for each slice and model.

import { ask, send, stop, Superseded } from "./api.js";
import { completion, quoteWindow } from "./complete.js";
import { discovery } from "./discovery.js";
import { announce, fill, h } from "./dom.js";
import { whole } from "./numbers.js";
import { sliceTable } from "./slicetable.js";
import { live, models, reference, state, threshold, update } from "./state.js";
import { keepers } from "./table.js";

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
