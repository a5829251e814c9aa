// The gap without each source of the text: a row for each source, two columns for each chosen model.

import { ask, Superseded } from "./api.js";
import { fill, h, name } from "./dom.js";
import { rows, WORDS } from "./figures.js";
import { DASH, differenceRange, percent, percentRange, plural, shareText } from "./numbers.js";
import { hue, models, reference, threshold, unit } from "./state.js";

export function sources(overview) {
  const title = h("h2", { id: "sources-title" });
  const body = h("div");
  const element = h("section", { "aria-labelledby": "sources-title" }, h("div.heading", {}, title), body);
  let asked = null;
  let made = null;
  const redraw = () => made && draw(title, body, made, overview);
  return {
    element,
    /** Follow the directions of the models, which may become known after the sources. */
    follow: () => body.classList.contains("waiting") || redraw(),
    async show() {
      element.hidden = overview.gap.rows.length < 2;
      const setting = { threshold: threshold(), reference: reference() };
      const key = JSON.stringify(setting);
      if (element.hidden || key === asked) return redraw();
      asked = key;
      title.textContent ||= "Without each source";
      body.classList.add("waiting");
      try {
        made = await ask("sources", setting, "sources");
        element.hidden = made.by === "domain" && !overview.partitions.includes("domain"); // one domain alone
        redraw();
      } catch (error) {
        if (error instanceof Superseded) return undefined;
        [asked, made] = [null, null];
        fill(body, h("p.empty", { role: "alert" }, error.message));
      }
      body.classList.remove("waiting");
      return undefined;
    },
  };
}

function draw(title, body, made, overview) {
  title.textContent = `Without each ${made.by}`;
  if (made.reason) return fill(body, h("p.empty", {}, made.reason));
  const chosen = models();
  const of = (row) => chosen.map((model) => row.find((each) => each.model === model));
  const directions = new Map((rows(overview) ?? []).map((row) => [row.model, row.direction]));
  const word = (model) => WORDS[directions.get(model) ?? null];
  const head = h("thead", {},
    h("tr", {}, h("td"), h("td.wide"), chosen.map((model) => h("th.bar-head", { scope: "colgroup", colspan: 2 }, h("span.clip", { title: model }, h("span.swatch", { class: hue(model) }), name(model))))),
    h("tr", {}, h("th.left", { scope: "col" }, made.by === "source" ? "Source" : "Domain"), h("th.wide", { scope: "col" }, `% of ${unit()}s`),
      chosen.map((model) => [h("th", { scope: "col" }, `% of ${word(model)}`), h("th", { scope: "col" }, `Share on ${overview.hits} without it`)])));
  const line = (title, share, row) => h("tr", {}, h("th.left", { scope: "row" }, title), h("td.wide", {}, percent(share)), of(row).map((each) => cells(each)));
  const parts = made.sources.map((source) => line(h("span", { title: plural(source.documents, "document") }, name(source.name)), source.share_of_tokens, source.models));
  const shown = made.sources.flatMap((source) => of(source.models)).filter((each) => each.part !== null);
  const doubts = new Set(shown.filter((each) => each.hits !== null && each.reason).map((each) => each.reason));
  const number = made.sources.length + made.smaller;
  const over = chosen.map((model) => made.over.find((each) => each.model === model)).filter((each) => each?.delta_ci95);
  const intervals = ({ model, delta_ci95: ends, share_ci95: share }, k) =>
    [k > 0 && "; ", `${differenceRange(ends)} for `, name(model), share && ` (${percentRange(share)} of it on ${overview.hits})`];
  return fill(body,
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Table of what is left out" },
      h("table.parts.sources", {}, head, h("tbody", {}, parts), h("tfoot", {}, line("all", 1, made.hits)))),
    h("p.caption", {}, `Each ${made.by} is left out in turn: its share of the gap or lead, and the share on ${overview.hits} in all other ${made.by}s; in the last row, in the whole text.`,
      shown.length < chosen.length * made.sources.length && " A model that is level has no share.",
      shown.some((each) => each.hits === null) && ` Level: without that ${made.by} the model has no gap or lead.`,
      doubts.size > 0 && ` In parentheses, not to be claimed: ${[...doubts].join("; or ")}.`,
      made.by === "source" && made.over.length === 0 && ` The ${plural(number, "source")} count as ${Math.round(made.worth)} of equal size, too few to be the units of intervals: what holds of them need not hold of others.`,
      over.length > 0 && [` With the ${plural(number, "source")}, not the documents, as units, ΔNLL is `, over.map(intervals), "."],
      made.smaller > 0 && ` ${plural(made.smaller, `further ${made.by}`)} not shown.`));
}

/** A source's part of the gap or lead, and the share on the hits without it. */
function cells(each) {
  if (each.part === null) return [h("td", {}, DASH), h("td", {}, DASH)];
  return [h("td", {}, percent(each.part)), h("td", {}, each.hits === null ? "level" : shareText({ share: each.hits, reason: each.reason }))];
}
