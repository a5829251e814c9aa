// What the whole window adds over a short context, for results that have such passes. Chosen models in colour, others grey.

import { scale, path, ticks, widthOf } from "./chart.js";
import { spread } from "./curve.js";
import { fill, h, name, svg } from "./dom.js";
import { DASH, difference, differenceRange, nats, whole } from "./numbers.js";
import { models } from "./state.js";

const MARGIN = { left: 52, right: 24, top: 14 };
const HEIGHT = 200;
const PAPER = 680; // pixels between the margins of an A4 page

export function contextUse(overview) {
  const drawing = h("div.chart");
  const numbers = h("div.scroll", { tabindex: 0, role: "region", "aria-labelledby": "context-title" });
  const points = overview.gap.context;
  const element = h("section", { "aria-labelledby": "context-title", hidden: !points.length },
    h("div.heading", {}, h("h2", { id: "context-title" }, "What more context adds")), drawing,
    points.length > 0 && h("p.caption", {}, `Nats per token by which the whole window lowers the NLL of a short context, on the ${whole(points[0].n)} tokens with at least ${whole(Math.max(...points.map((each) => each.context ?? 0)))} before them. Bands are 95% intervals over documents.`),
    h("details", {}, h("summary", {}, "The numbers"), numbers));
  const redraw = (width = widthOf(drawing)) => points.length && draw(drawing, overview, width);
  new ResizeObserver(() => redraw()).observe(drawing);
  addEventListener("beforeprint", () => redraw(PAPER));
  addEventListener("afterprint", () => redraw());
  if (points.length) fill(numbers, table(points));
  return { element, draw: () => redraw() };
}

/** The points of each model, by name. */
function curves(overview) {
  const made = new Map(overview.gap.context.map((each) => [each.model, []]));
  for (const each of overview.gap.context) made.get(each.model).push(each);
  return made;
}

function draw(element, overview, width) {
  const seen = overview.gap.context.map((each) => each.context ?? overview.gap.evaluation.seq_len);
  const x = scale([Math.log2(Math.min(...seen)), Math.log2(Math.max(...seen))], [MARGIN.left, width - MARGIN.right]);
  const at = (each) => x(Math.log2(each.context ?? overview.gap.evaluation.seq_len));
  const ends = overview.gap.context.flatMap((each) => [each.gain ?? 0, ...(each.gain_ci95 ?? [])]);
  const [low, high] = [Math.min(0, ...ends), Math.max(0.01, ...ends)];
  const y = scale([low, high], [MARGIN.top + HEIGHT, MARGIN.top]);
  const chosen = models();
  const drawn = { others: [], chosen: [], labels: [] };
  for (const [model, points] of curves(overview)) {
    const k = chosen.indexOf(model);
    const line = path(points.map((each) => [at(each), each.context !== null && each.gain === null ? null : y(each.gain ?? 0)]));
    drawn.labels.push({ y: y(points[0].gain ?? 0), at: at(points[0]), text: model, k });
    if (k < 0) {
      drawn.others.push(svg("path.other", { d: line }, svg("title", {}, model)));
      continue;
    }
    const band = points.filter((each) => each.gain_ci95);
    const corners = [...band.map((each) => `${at(each)},${y(each.gain_ci95[1])}`), ...band.map((each) => `${at(each)},${y(each.gain_ci95[0])}`).reverse()];
    if (band.length > 1) drawn.chosen.push(svg("polygon.band", { class: `m${k}`, points: corners.join(" ") }));
    drawn.chosen.push(svg("path.line", { class: `m${k}`, d: line }));
  }
  spread(drawn.labels, 15, MARGIN.top, MARGIN.top + HEIGHT);
  const foot = MARGIN.top + HEIGHT;
  fill(element, svg("svg", { viewBox: `0 0 ${width} ${foot + 26}`, width, height: foot + 26, role: "img", "aria-label": "What the whole window adds over each short context; the numbers are below." },
    ticks(low, high, 4).map((value) => [svg("line.grid", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }), svg("text.tick", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, nats(value, 2))]),
    svg("line.axis", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(0), y2: y(0) }),
    drawn.others, drawn.chosen,
    drawn.labels.map((each) => svg(each.k < 0 ? "text.tick" : "text.label", { class: each.k < 0 ? null : `m${each.k}`, x: each.at + 8, y: each.y - 4 }, each.text.slice(0, 24))),
    [...new Set(seen)].map((value) => svg("text.tick", { x: x(Math.log2(value)), y: foot + 18, "text-anchor": "middle" }, whole(value)))));
}

function table(points) {
  const shown = (value, ends) => (value === null ? DASH : [difference(value), ends && h("span.faint", {}, ` ${differenceRange(ends)}`)]);
  return h("table.parts", {},
    h("thead", {}, h("tr", {}, h("th.left", { scope: "col" }, "Model"), h("th.left", { scope: "col" }, "Context"), ["NLL", "Gain", "ΔNLL"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, points.map((each) => h("tr", {}, h("th.left", { scope: "row" }, name(each.model)), h("td.left", {}, each.context === null ? "whole window" : `${whole(each.context)} tokens`),
      h("td", {}, nats(each.nll, 2)), h("td", {}, shown(each.gain, each.gain_ci95)), h("td", {}, shown(each.delta, each.delta_ci95))))));
}
