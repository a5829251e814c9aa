// The table: a row a model, sortable; a click chooses models for the charts.

import { address } from "./api.js";
import { announce, fill, h, name, svg } from "./dom.js";
import { rows, WORDS } from "./figures.js";
import { copyText } from "./header.js";
import { explain, TERMS } from "./terms.js";
import { DASH, difference, differenceRange, loss, parameters, percent, percentRange, shareText } from "./numbers.js";
import { hue, live, models, reference, state, threshold, unit, update } from "./state.js";

const MOST = 7; // colours

// The words of `argap.reports.tables.result`.
const LEVEL = "level with the reference: the interval of ΔNLL contains 0, so there is nothing to take a share of";
const AGAINST = "behind here though ahead overall: by the paper's rule 100%";
const ABOVE = "above 100%: all other tokens go the other way; the paper's rule caps it at 100%";

/** The notes that a row's share needs. */
function reasons(row) {
  const { share, reason, paper_rule: rule } = row.ar_hits;
  if (row.pending) return [];
  if (row.direction === "level") return [LEVEL];
  const found = rule === 1 && share !== null && share !== 1 ? [share > 1 ? ABOVE : AGAINST] : [];
  return reason ? [...found, `in parentheses, not to be claimed: ${reason}`] : found;
}

const COLUMNS = [
  ["model", "Model", (row) => row.model],
  ["parameters", "Params", (row) => row.parameters ?? null],
  ["overall", "Overall", (row) => row.overall.nll],
  ["ar_hits", "AR hits", (row) => row.ar_hits.nll],
  ["other", "Other tokens", (row) => row.other.nll],
  ["delta", "ΔNLL, nats", (row) => row.overall.delta],
  ["part", "on AR hits", (row) => row.ar_hits.contribution],
  ["due", "Share", (row) => row.ar_hits.share],
];

/** The class of columns that a phone does not show. */
const wide = (column) => ["parameters", "overall", "ar_hits", "other", "part"].includes(column) && "wide";

export function table(overview) {
  const body = h("tbody");
  const head = h("tr");
  const notes = h("div.notes");
  const element = h("section", { "aria-labelledby": "table-title" },
    h("div.heading", {}, h("h2", { id: "table-title" }, "Models"), keepers("table", () => ({}))),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Table of the models" }, h("table.models", {}, h("thead", {}, head), body)),
    notes);
  return {
    element,
    draw(made) {
      drawHead(head, overview);
      body.classList.toggle("waiting", !made);
      if (!made) return;
      const used = [...new Set(made.flatMap(reasons))];
      const marks = new Map(used.map((reason, k) => [reason, "abcdefghij"[k]]));
      fill(body, sorted(made).map((row) => line(row, marks)));
      fill(notes, h("p", {}, `${unit() === "token" ? "Perplexity (NLL in nats)" : "Bits per byte (NLL in nats per byte)"}; lower is better.`, h("span.on-screen", {}, " A click on a model shows or hides it in the charts.")),
        overview.notes.map((note) => h("p", {}, note)),
        used.map((reason) => h("p", {}, h("sup", {}, marks.get(reason)), " ", reason.replaceAll("AR hits", overview.hits), ".")));
    },
  };
}

function drawHead(head, overview) {
  const [key, direction] = sorting();
  const titles = { other: `Other ${unit()}s`, ar_hits: overview.hits === "AR hits" ? "AR hits" : "Repeated", part: `on ${overview.hits}`, due: `% of ${gapWord(overview)}` };
  fill(head, COLUMNS.map(([name_, title]) => h("th", { scope: "col", class: name_ === "model" ? "left" : wide(name_), "aria-sort": name_ === key ? (direction > 0 ? "ascending" : "descending") : null },
    h("button.sort", { type: "button", title: explain(name_, overview), "data-key": name_, onclick: () => sortBy(name_) }, titles[name_] ?? title, h("span.arrow", { "aria-hidden": "true" }, name_ === key ? (direction > 0 ? "↑" : "↓") : "")))),
    h("td"), h("th.interval", { scope: "col", title: TERMS.interval }, "95% interval"));
}

function sorting() {
  const [key, order] = (state().sort ?? "").split(".");
  return COLUMNS.some(([each]) => each === key) ? [key, order === "down" ? -1 : 1] : [null, 1];
}

function sortBy(key) {
  const [now, direction] = sorting();
  const first = key === "model" || key === "parameters" ? 1 : -1;
  const next = now !== key ? first : direction === first ? -first : 0;
  update({ sort: next ? `${key}.${next > 0 ? "up" : "down"}` : null }, { replace: true });
}

/** The reference stays first; rows without a number come last. */
function sorted(made) {
  const [key, direction] = sorting();
  if (!key) return made;
  const value = COLUMNS.find(([each]) => each === key)[2];
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    return direction * (typeof x === "string" ? x.localeCompare(y) : x - y);
  };
  return [...made.filter((row) => row.reference), ...made.filter((row) => !row.reference).sort(order)];
}

/** What all models' ΔNLLs are called together. */
function gapWord(overview) {
  const known = new Set((rows(overview) ?? []).map((row) => row.direction).filter((each) => each && each !== "level"));
  return known.size === 1 ? WORDS[[...known][0]] : known.size ? "gap or lead" : "difference";
}

function line(row, marks) {
  const chosen = models().indexOf(row.model);
  const { share, share_ci95: ends } = row.ar_hits;
  const title = row.reference
    ? [name(row.model), h("span.tag", {}, "reference")]
    : h("button.model", { type: "button", "aria-pressed": String(chosen >= 0), onclick: (event) => (event.stopPropagation(), choose(row.model)) }, h("span.swatch", { class: chosen >= 0 && hue(row.model) }), name(row.model));
  return h("tr", { class: [row.reference && "reference", chosen >= 0 && "chosen"].filter(Boolean).join(" "), "data-key": !row.reference && row.model, onclick: row.reference ? null : () => choose(row.model) },
    h("th.left", { scope: "row" }, title),
    h("td", { class: wide("parameters") }, parameters(row.parameters)),
    ["overall", "ar_hits", "other"].map((part) => h("td", { class: wide(part) }, loss(row[part], unit()))),
    h("td", { class: wide("delta") }, difference(row.overall.delta), below(row.overall.delta_ci95)),
    h("td", { class: wide("part") }, difference(row.ar_hits.contribution), below(row.ar_hits.contribution_ci95)),
    h("td.due", {}, row.pending && share !== null ? percent(share) : shareText(row.ar_hits), h("sup", {}, reasons(row).map((reason) => marks.get(reason)))),
    h("td.whisk", {}, ends && whisker(share, ends)),
    h("td.interval", {}, row.pending && share !== null ? "…" : ends ? percentRange(ends) : DASH));
}

/** An interval in small print below its figure. */
const below = (ends) => ends && h("span.ends", {}, differenceRange(ends));

/** A share and its interval between 0 and 100%. */
function whisker(share, ends) {
  const x = (value) => 4 + 60 * Math.min(Math.max(value, 0), 1);
  return svg("svg.whisker", { viewBox: "0 0 68 12", width: 68, height: 12, "aria-hidden": "true" },
    svg("line.track", { x1: 4, x2: 64, y1: 6, y2: 6 }),
    svg("line.range", { x1: x(ends[0]), x2: x(ends[1]), y1: 6, y2: 6 }),
    svg("circle", { cx: x(share), cy: 6, r: 3 }));
}

function choose(model) {
  const now = models();
  if (!now.includes(model)) {
    if (now.length === MOST) announce(`At most ${MOST} models have a colour; click one to free it`);
    else update({ models: [...now, model] });
  } else if (now.length > 1) {
    update({ models: now.filter((each) => each !== model) });
  } else {
    announce("One model stays chosen");
  }
}

/** Buttons that copy or download a part of the page; `more`: parameters beside τ and the reference, or null for none now. */
export function keepers(kind, more, formats = ["md", "tex", "csv", "parquet"]) {
  if (!live()) return null;
  const titles = { md: "Markdown", tex: "LaTeX", csv: "CSV", parquet: "Parquet" };
  const parameters_ = (format) => ({ format, threshold: threshold(), reference: reference(), ...more() });
  const act = async (format) => {
    if (more() === null) return announce("Nothing to keep yet");
    if (format === "csv" || format === "parquet") {
      const anchor = h("a", { href: address(`keep/${kind}`, parameters_(format)), download: "" });
      anchor.click();
      return undefined;
    }
    const response = await fetch(address(`keep/${kind}`, parameters_(format)));
    const text = await response.text();
    if (!response.ok) return announce(JSON.parse(text).error);
    return copyText(text, `${titles[format]} copied`);
  };
  const verb = (format) => (format === "md" || format === "tex" ? "Copy as" : "Download as");
  return h("div.keepers", { role: "group", "aria-label": "Copy or download" },
    formats.map((format) => [
      (format === "md" || format === "csv") && h("span.faint", { "aria-hidden": "true" }, format === "md" ? "Copy" : "Download"),
      h("button.quiet", { type: "button", "aria-label": `${verb(format)} ${titles[format]}`, onclick: () => act(format) }, titles[format]),
    ]));
}
