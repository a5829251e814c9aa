// The table of slices: a row for each slice and model.

import { fill, h, name } from "./dom.js";
import { DASH, difference, differenceRange, loss, lossName, percent, percentRange, shareText, whole } from "./numbers.js";
import { hue, link, models, unit, Units, update } from "./state.js";
import { TERMS } from "./terms.js";

/** `shown`: {name, where, result}; `record(where, name)`: stores a slice, where that is possible. */
export function sliceTable(shown, overview, { record = null } = {}) {
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
