// The slice box: a condition in SQL, answered with its share, the gap on it and the interval; and the slices that ship.

import { ask, stop, Superseded } from "./api.js";
import { fill, h, name } from "./dom.js";
import { DASH, difference, differenceRange, loss, lossName, percent, percentRange, shareText, whole } from "./numbers.js";
import { link, models, reference, state, threshold, unit, Units, update } from "./state.js";
import { keepers } from "./table.js";

const KEPT = 12;

export function slicesView(overview) {
  const asked = new Map(); // condition -> {name, where, result | error}
  let shipped = false;
  const box = h("textarea", { id: "sql", rows: 2, spellcheck: "false", autocomplete: "off", "aria-describedby": "sql-words", placeholder: "repeated AND train_count < 10" });
  const run = h("button.primary", { type: "submit" }, "Run");
  const halt = h("button", { type: "button", hidden: true, onclick: () => stop("slices") }, "Stop");
  const words = h("p.caption", { id: "sql-words", role: "status" });
  const results = h("div");
  const all = h("button.quiet", { type: "button", onclick: () => runShipped() }, `Run the ${overview.library.length} slices that ship`);
  const form = h("form.slice-form", { onsubmit: (event) => (event.preventDefault(), submit()) },
    h("label", { for: "sql" }, "Tokens where"), box, h("div.row", {}, run, halt, all, words));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    }
  });
  const element = h("section.slices", { "aria-labelledby": "slices-title" },
    h("div.heading", {}, h("h1", { id: "slices-title" }, "Slices of the tokens"), overview.no_tokens ? null : keepers("slices", kept)),
    overview.no_tokens ? h("div.empty", { role: "note" }, h("p", {}, "No slice can be computed here. ", overview.no_tokens)) : [form, columns(overview)],
    results);

  function submit() {
    const where = box.value.trim();
    if (!where) {
      words.textContent = "An empty condition; write one, such as repeated AND train_count < 10.";
      return;
    }
    if (state().sql === where) compute([["slice", where]]);
    else update({ sql: where });
  }

  const runShipped = () => {
    shipped = true;
    compute(overview.library.map((each) => [each.name, each.where]), true);
  };

  async function compute(named, empty = false) {
    halt.hidden = false;
    run.disabled = true;
    words.textContent = "Reading the tokens …";
    const started = performance.now();
    try {
      const made = await ask("slices", { name: named.map(([each]) => each), where: named.map(([, where]) => where), model: models(), ...setting(), empty }, "slices");
      made.forEach((result, k) => {
        const [title, where] = named[k];
        asked.delete(where);
        asked.set(where, { name: title, where, result, key: key() });
      });
      while (asked.size > KEPT + overview.library.length) asked.delete(asked.keys().next().value);
      words.textContent = `${((performance.now() - started) / 1000).toFixed(1)} s`;
    } catch (error) {
      words.textContent = error instanceof Superseded ? "Stopped." : error.message;
      words.classList.toggle("alert", !(error instanceof Superseded));
    }
    if (!words.textContent.endsWith(" s")) words.classList.add("alert");
    else words.classList.remove("alert");
    halt.hidden = true;
    run.disabled = false;
    draw();
  }

  const setting = () => ({ threshold: threshold(), reference: reference() });
  const key = () => JSON.stringify([setting(), models()]);

  function kept() {
    const good = [...asked.values()];
    return good.length ? { name: good.map((each, k) => (each.name === "slice" ? `slice ${k + 1}` : each.name)), where: good.map((each) => each.where), model: models(), empty: true } : null;
  }

  function draw() {
    const all = [...asked.values()];
    const own = (each) => /^slice( \d+)?$/.test(each.name);
    const shown = [...all.filter(own).reverse(), ...all.filter((each) => !own(each))];
    const recorded = threshold() === overview.gap.threshold && reference() === overview.gap.reference ? overview.gap.slices : [];
    const others = recorded.filter((each) => !shown.some((one) => one.where === each.where)).map((result) => ({ name: result.title || result.name, where: result.where, result }));
    fill(results, !shown.length && !others.length ? null : sliceTable([...shown, ...others], overview));
  }

  return {
    element,
    show() {
      const where = state().sql;
      if (document.activeElement !== box) box.value = where ?? box.value;
      const stale = [...asked.values()].filter((each) => each.key !== key());
      if (overview.no_tokens) {
        draw();
      } else if (where && !asked.has(where)) {
        compute([["slice", where], ...stale.map((each) => [each.name, each.where])].map(unique));
      } else if (stale.length) {
        compute(stale.map((each) => [each.name, each.where]).map(unique), shipped);
      } else {
        draw();
      }
    },
  };
}

/** Names of one request differ. */
const unique = ([title, where], k) => [title === "slice" ? `slice ${k + 1}` : title, where];

function columns(overview) {
  const example = overview.gap.rows[0].model;
  return h("details", {}, h("summary", {}, "Columns and the slices that ship"),
    h("p.columns", {}, overview.columns.map((each) => [h("code", {}, each), " "]), h("span.faint", {}, ` nll and top1 have a field for each model: nll."${example}"`)),
    h("ul.shipped", {}, overview.library.map((each) => h("li", {}, h("button.quiet", { type: "button", onclick: () => {
      const box = document.getElementById("sql");
      box.value = each.where;
      box.focus();
    } }, each.title || each.name), " ", h("code", {}, each.where)))));
}

function sliceTable(shown, overview) {
  const chosen = models();
  const titles = [Units(), `% of ${unit()}s`, overview.hits, lossName(unit()), "ΔNLL", "Contribution", "95% interval", "Share", "95% interval"];
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Slices" }, h("table.parts.slice-table", {},
    h("thead", {}, h("tr", {}, h("th.left", { scope: "col" }, "Slice, model"), titles.map((each) => h("th", { scope: "col" }, each)))),
    shown.map((each) => body(each, chosen, overview))));
}

/** A slice: what it selects, then a row for each chosen model. */
function body(each, chosen, overview) {
  const { result } = each;
  const rows = result.models.filter((one) => chosen.includes(one.model));
  const to = { view: "tokens", list: "losses", where: each.where ?? "ar_hits", window: null, pos: null };
  const title = /^slice( \d+)?$/.test(each.name) ? null : each.name === "ar_hits" ? overview.hits : each.name;
  const tokens = h("a", { href: link(to), onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    update(to);
  } }, "its tokens");
  return h("tbody", {},
    h("tr.slice", {},
      h("th.left", { scope: "rowgroup" }, title && h("span.slice-name", {}, title), each.where && h("code", {}, each.where), !overview.no_tokens && result.n > 0 && tokens),
      h("td.n", {}, whole(result.n)), h("td.share", {}, percent(result.share_of_tokens)), h("td.hits", {}, percent(result.ar_hits)), h("td", { colspan: 6 })),
    (rows.length ? rows : result.models).map((one) => h("tr", {},
      h("th.left.of", { scope: "row" }, name(one.model)), h("td", { colspan: 3 }),
      h("td.ppl", {}, loss(one, unit())),
      h("td.delta-nll", {}, result.n ? difference(one.delta) : DASH),
      h("td.part", {}, difference(one.contribution)),
      h("td.part-ci.faint", {}, one.contribution_ci95 ? differenceRange(one.contribution_ci95) : DASH),
      h("td.due", {}, h("b", {}, shareText(one))),
      h("td.due-ci.faint", { title: one.reason }, one.share_ci95 ? percentRange(one.share_ci95) : one.reason ?? DASH))));
}
