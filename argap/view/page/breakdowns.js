// ΔNLL broken down: a row for each bin, a bar with its interval for each chosen model. A row leads to its tokens.

import { ask, Superseded } from "./api.js";
import { scale } from "./chart.js";
import { fill, h, name, svg } from "./dom.js";
import { of } from "./figures.js";
import { difference, differenceRange, nats, percent, whole } from "./numbers.js";
import { hue, link, models, natsPer, reference, state, threshold, unit, Units, update } from "./state.js";
import { keepers } from "./table.js";

const BY = [["frequency", "Training frequency"], ["distance", "Distance"], ["position", "Position"], ["domain", "Domain"], ["copy", "Copies"], ["induction", "Induction"], ["slice", "AR hits"]];
const TITLES = {
  frequency: "Where the difference lies, by how often training saw the bigram",
  distance: "Where the difference lies, by tokens back to the earlier occurrence",
  position: "Where the difference lies, by position in the window",
  domain: "Where the difference lies, by domain of the text",
  copy: "Where the difference lies, by what can be copied from the window",
  induction: "Where the difference lies, by whether copying after the longest repeated context is right",
};
const HEADS = { frequency: "Seen in training", distance: "Tokens back", position: "Position", domain: "Domain", copy: "What can be copied", induction: "The copy is", slice: "Tokens" };
const ROOM = 760; // pixels for the bars of all models

export function breakdownsView(overview) {
  const tabs = h("div.tabs", { role: "tablist", "aria-label": "Broken down by" });
  const title = h("h1", { id: "breakdown-title" });
  const body = h("div");
  const element = h("section.breakdowns", { "aria-labelledby": "breakdown-title" }, tabs,
    h("div.heading", {}, title, keepers("breakdown", () => ({ by: by(), model: models() }))), body);
  let asked = null;

  async function load() {
    drawTabs(tabs, overview);
    title.textContent = by() === "slice" ? `Where the difference lies: ${overview.hits} and other tokens` : TITLES[by()] ?? `Where the difference lies, by ${by()}`;
    const request = { by: by(), threshold: threshold(), reference: reference() };
    const key = JSON.stringify([request, models(), state().scale]);
    if (key === asked) return;
    asked = key;
    body.classList.add("waiting");
    try {
      draw(body, await ask("breakdown", request, "breakdown"), overview);
    } catch (error) {
      if (error instanceof Superseded) return;
      asked = null;
      fill(body, h("div.empty", { role: "alert" }, h("p", {}, "No breakdown here: ", error.message)));
    }
    body.classList.remove("waiting");
  }
  return { element, show: load };
}

const by = () => state().by ?? "frequency";

function drawTabs(tabs, overview) {
  const had = tabs.contains(document.activeElement);
  const known = [...BY.filter(([each]) => overview.partitions.includes(each)), ...overview.grouped.map((each) => [each, each])];
  fill(tabs, known.map(([each, title]) => h("button", {
    type: "button", role: "tab", "aria-selected": String(by() === each), tabindex: by() === each ? 0 : -1, onclick: () => update({ by: each }),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const k = known.findIndex(([one]) => one === by());
      update({ by: known[(k + step + known.length) % known.length][0] });
    },
  }, each === "slice" ? (overview.hits === "AR hits" ? title : "Repeated") : title)));
  if (had) tabs.querySelector("[aria-selected=true]")?.focus();
}

function draw(body, made, overview) {
  const chosen = models();
  const groups = made.by === "frequency" ? [["repeated in the window", (bar) => bar.part.repeated], ["not repeated", (bar) => !bar.part.repeated]] : [[null, () => true]];
  const phone = innerWidth < 760;
  const width = Math.round(Math.min(360, Math.max(phone ? 60 : 110, (phone ? innerWidth - 20 : ROOM) / chosen.length - (phone ? 210 / chosen.length : 100))));
  const endsOf = (some) => made.bars.flatMap(({ part }) => some.flatMap((model) => [of(part, model).contribution ?? 0, ...(of(part, model).contribution_ci95 ?? [])]));
  const fitted = (ends) => scale([Math.min(0, ...ends), Math.max(0, ...ends, Math.min(...ends) < 0 ? 0 : 1e-9)], [4, width - 4]);
  const own = state().scale === "own" && chosen.length > 1;
  const x = chosen.map((model) => fitted(endsOf(own ? [model] : chosen)));
  const total = new Map(chosen.map((model) => [model, made.bars.reduce((sum, { part }) => sum + (of(part, model).contribution ?? 0), 0)]));
  const others = chosen.length === 1 ? [reference(), ...chosen] : [];
  const head = h("thead", {},
    h("tr", {}, h("th.left", { scope: "col" }, HEADS[made.by] ?? made.by), h("th.wide", { scope: "col" }, Units()), h("th", { scope: "col" }, `% of ${unit()}s`),
      others.map((model) => h("th.wide", { scope: "col" }, "NLL, ", name(model))),
      chosen.map((model) => h("th.bar-head", { scope: "col", colspan: 2 }, h("span.clip", { title: model }, h("span.swatch", { class: hue(model) }), name(model)), h("span.faint", {}, `, ${natsPer()}`)))));
  const rows = groups.map(([title, belongs]) => h("tbody", {},
    title && h("tr.group", {}, h("th.left", { scope: "rowgroup", colspan: 3 + others.length + 2 * chosen.length }, title)),
    made.bars.filter(belongs).map((bar) => row(bar, made, chosen, others, x, width, overview))));
  const foot = h("tfoot", {}, h("tr", {}, h("th.left", { scope: "row" }, "all"), h("td.wide", {}, whole(made.bars.reduce((sum, { part }) => sum + part.n, 0))), h("td", {}, "100%"), others.map(() => h("td.wide")), chosen.map((model) => [h("td"), h("td.value", {}, difference(total.get(model)))])));
  fill(body,
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Table of the parts" }, h("table.parts", {}, head, rows, foot)),
    chosen.length > 1 && h("p.row.own-scale", {}, h("label", {}, h("input", { type: "checkbox", checked: own, onchange: (event) => update({ scale: event.target.checked ? "own" : null }, { replace: true }) }), " a scale of its own for each model")),
    h("p.caption", {}, own && "Bars of different models have different scales. ", "A bar is a bin’s share of the tokens times ΔNLL: to the right the model is behind, to the left ahead; a model’s bars add up to its ΔNLL. Whiskers are 95% intervals. In parentheses: percent of that.",
      h("span.on-screen", {}, overview.no_tokens ? " The tokens behind the bins are not here." : " A bin leads to its tokens.")));
}

function row(bar, made, chosen, others, x, width, overview) {
  const { part } = bar;
  const hit = made.by !== "frequency" || (part.repeated && isHit(bar));
  const to = { view: "tokens", list: "losses", where: bar.where, window: null, pos: null };
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    update(to);
  };
  const title = part.partition !== "slice" ? part.bin : part.bin === "ar_hits" ? overview.hits : `other ${unit()}s`;
  const label = overview.no_tokens ? name(title) : h("a", { href: link(to), onclick: follow, title: bar.where }, name(title));
  return h("tr", { class: !overview.no_tokens && "linked", "data-key": !overview.no_tokens && part.bin, onclick: overview.no_tokens ? null : (event) => !event.target.closest("a") && follow(event) },
    h("th.left", { scope: "row" }, label), h("td.wide", {}, whole(part.n)), h("td", {}, percent(part.share_of_tokens)),
    others.map((model) => h("td.wide", {}, nats(of(part, model).nll, 2))),
    chosen.map((model, k) => [of(part, model), x[k]]).map(([each, x]) => [
      h("td.bar", {}, drawBar(each, x, width, hit)),
      h("td.value", { title: each.contribution_ci95 && `95% interval ${differenceRange(each.contribution_ci95)}` }, difference(each.contribution), h("span.faint", {}, each.share === null ? "" : ` (${percent(each.share, 0)})`))]));
}

const isHit = (bar) => threshold() !== null && Number(bar.where.match(/(\d+)\D*$/)[1]) <= threshold() && !bar.where.includes(">=");

function drawBar(each, x, width, hit) {
  const value = each.contribution ?? 0;
  const ends = each.contribution_ci95;
  return svg("svg", { viewBox: `0 0 ${width} 18`, width, height: 18, "aria-hidden": "true", class: hue(each.model) },
    svg("rect", { class: hit ? "full" : "pale", x: Math.min(x(0), x(value)), width: Math.abs(x(value) - x(0)), y: 3, height: 12 }),
    svg("line.zero", { x1: x(0), x2: x(0), y1: 0, y2: 18 }),
    ends && svg("line.whisk", { x1: x(ends[0]), x2: x(ends[1]), y1: 9, y2: 9 }));
}
