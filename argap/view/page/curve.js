// The share of the gap or lead over τ: the chosen models in colour with their intervals, all others grey. Below it, the hits.

import { fill, h, name, svg } from "./dom.js";
import { of } from "./figures.js";
import { logPosition, usefulThresholds } from "./header.js";
import { percent, percentRange, plural, short, whole } from "./numbers.js";
import { hue, models, reference, threshold, update } from "./state.js";
import { path, scale, ticks, widthOf } from "./chart.js";

const MARGIN = { left: 44, right: 132, top: 14 };
const HEIGHT = 260;
const SHARE = 70;
const PAPER = 680; // pixels between the margins of an A4 page

export function curve(overview) {
  const drawing = h("div.chart");
  const words = h("p.caption");
  const element = h("section", { "aria-labelledby": "curve-title" },
    h("div.heading", {}, h("h2", { id: "curve-title" }, `Share of the gap or lead on the ${overview.hits}, over the threshold τ`)), drawing, words);
  let made = null;
  const redraw = (width = widthOf(drawing)) => made && draw(drawing, words, made, overview, width);
  new ResizeObserver(() => redraw()).observe(drawing);
  addEventListener("beforeprint", () => redraw(PAPER));
  addEventListener("afterprint", () => redraw());
  return {
    element,
    draw(thresholds) {
      element.hidden = overview.gap.rows.length < 2;
      if (!overview.thresholds.length) {
        fill(drawing, h("p.empty", {}, "No curve: this result has no training counts. ", h("code", {}, "argap label RESULT --index DIR"), " adds them without running a model."));
        words.textContent = "";
      } else if (thresholds) {
        made = thresholds;
        redraw();
      } else if (!drawing.firstChild) {
        fill(drawing, h("p.empty", {}, "Adding up the cells …"));
      }
    },
    fail(error) {
      fill(drawing, h("p.empty", {}, "No curve: ", error.message));
    },
  };
}

function draw(element, words, made, overview, width) {
  const right = width < 560 ? 16 : MARGIN.right;
  const known = usefulThresholds(overview);
  const points = made.at.filter((each) => known.includes(each.threshold));
  const x = scale([logPosition(known[0]), logPosition(known.at(-1))], [MARGIN.left, width - right]);
  const at = (value) => x(logPosition(value));
  const series = made.whole.models.filter((each) => each.model !== reference()).map(({ model }) => ({ model, due: points.map((point) => of(point.ar_hits, model)) }));
  const raw = (due) => due?.share ?? null;
  const chosen = models();
  const values = series.flatMap((each) => each.due.map(raw)).filter((value) => value !== null);
  const low = Math.min(0, ...values.map((value) => Math.max(value, -0.5)));
  const high = Math.max(1, ...values.map((value) => Math.min(value, 1.5)));
  const y = scale([low, high], [MARGIN.top + HEIGHT, MARGIN.top]);
  const layers = { grid: [], others: [], chosen: [], marks: [] };
  for (const value of ticks(low, high, 5)) {
    layers.grid.push(svg("line.grid", { x1: MARGIN.left, x2: width - right, y1: y(value), y2: y(value) }), svg("text.tick", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, percent(value, 0)));
  }
  const labels = [];
  for (const each of series) {
    const colour = hue(each.model);
    const line = path(points.map((point, i) => [at(point.threshold), raw(each.due[i]) === null ? null : y(raw(each.due[i]))]));
    if (!chosen.includes(each.model)) {
      layers.others.push(svg("path.other", { d: line }, svg("title", {}, each.model)));
      continue;
    }
    const band = points.map((point, i) => ({ x: at(point.threshold), ends: each.due[i]?.share_ci95, value: raw(each.due[i]) })).filter((p) => p.ends && p.value !== null);
    if (band.length) {
      const top = band.map((p) => `${p.x},${y(p.ends[1])}`);
      const bottom = band.map((p) => `${p.x},${y(p.ends[0])}`).reverse();
      layers.chosen.push(svg("polygon.band", { class: colour, points: [...top, ...bottom].join(" ") }));
    }
    layers.chosen.push(svg("path.line", { class: colour, d: line }));
    const now = raw(each.due[points.findIndex((point) => point.threshold === threshold())] ?? null);
    if (now !== null) layers.marks.push(svg("circle.dot", { class: colour, cx: at(threshold()), cy: y(clamp(now, low, high)), r: 4.5 }));
    const last = each.due.map(raw).findLast((value) => value !== null);
    if (last !== undefined && right > 40) labels.push({ y: y(clamp(last, low, high)), text: each.model, colour });
  }
  spread(labels, 15, MARGIN.top, MARGIN.top + HEIGHT);
  const foot = MARGIN.top + HEIGHT + 34;
  const shareHigh = Math.max(...points.map((point) => point.ar_hits.share_of_tokens), 0.01);
  const s = scale([0, shareHigh], [foot + SHARE, foot + 8]);
  const share = path(points.map((point) => [at(point.threshold), s(point.ar_hits.share_of_tokens)]));
  const shareNow = points.find((point) => point.threshold === threshold())?.ar_hits.share_of_tokens;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${foot + SHARE + 26}`, width, height: foot + SHARE + 26, role: "img", "aria-label": describe(series, chosen, points, overview) },
    svg("clipPath", { id: "panel" }, svg("rect", { x: MARGIN.left, y: MARGIN.top, width: Math.max(width - right - MARGIN.left, 0), height: HEIGHT })),
    layers.grid, svg("g", { "clip-path": "url(#panel)" }, layers.others),
    overview.marks.filter((mark) => logPosition(mark.threshold) <= logPosition(known.at(-1))).map((mark) => svg("g.mark", {}, svg("line", { x1: at(mark.threshold), x2: at(mark.threshold), y1: MARGIN.top, y2: foot + SHARE }), svg("title", {}, `${mark.title}: τ = ${whole(mark.threshold)}`))),
    svg("line.now", { x1: at(threshold()), x2: at(threshold()), y1: MARGIN.top, y2: foot + SHARE }),
    svg("g", { "clip-path": "url(#panel)" }, layers.chosen), layers.marks,
    labels.map((each) => svg("text.label", { class: each.colour, x: width - right + 8, y: each.y + 4 }, clip(each.text))),
    svg("line.axis", { x1: MARGIN.left, x2: width - right, y1: y(0), y2: y(0) }),
    svg("text.tick", { x: MARGIN.left, y: foot - 2 }, `share of the tokens that are ${overview.hits}`),
    svg("text.tick", { x: MARGIN.left - 8, y: s(shareHigh) + 4, "text-anchor": "end" }, percent(shareHigh, 0)),
    svg("line.axis", { x1: MARGIN.left, x2: width - right, y1: s(0), y2: s(0) }),
    svg("path.share", { d: share }),
    shareNow !== undefined && [svg("circle.dot", { cx: at(threshold()), cy: s(shareNow), r: 3.5 }), svg("text.value", { x: at(threshold()) + (at(threshold()) > width - right - 60 ? -8 : 8), y: Math.max(s(shareNow) - 6, foot + 10), "text-anchor": at(threshold()) > width - right - 60 ? "end" : null }, percent(shareNow))],
    known.filter(isDecade).map((value) => svg("text.tick", { x: at(value), y: foot + SHARE + 18, "text-anchor": "middle" }, short(value))),
    width - right - at(known.at(-1)) > -1 && right > 40 && svg("text.tick", { x: width - right + 26, y: foot + SHARE + 18 }, "τ, exposures"),
    svg("rect.catch", {
      x: MARGIN.left, y: MARGIN.top, width: Math.max(width - right - MARGIN.left, 0), height: HEIGHT + SHARE + 30,
      onpointerdown: (event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        move(event);
      },
      onpointermove: (event) => (event.buttons ? move(event) : tell(event)),
      onpointerleave: () => (tip.hidden = true),
    }));
  const tip = h("div.tip", { hidden: true });
  const guide = drawn.appendChild(svg("line.guide", { y1: MARGIN.top, y2: foot + SHARE, visibility: "hidden" }));
  /** The figures of the chosen models at the τ under the pointer. */
  const tell = (event) => {
    if (event.pointerType !== "mouse") return;
    const px = event.clientX - element.getBoundingClientRect().left;
    const i = points.reduce((best, point, k) => (Math.abs(at(point.threshold) - px) < Math.abs(at(points[best].threshold) - px) ? k : best), 0);
    const place = at(points[i].threshold);
    fill(tip, h("b", {}, `τ = ${whole(points[i].threshold)}`), h("span.faint", {}, `${percent(points[i].ar_hits.share_of_tokens)} of the tokens`),
      series.filter((each) => chosen.includes(each.model)).map((each) => h("span", {}, h("span.swatch", { class: hue(each.model) }), " ", name(each.model), ` ${percent(raw(each.due[i]))}`, each.due[i]?.share_ci95 && h("span.faint", {}, ` (${percentRange(each.due[i].share_ci95)})`))));
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(place + 12, width - tip.offsetWidth - 4))}px`;
    for (const end of ["x1", "x2"]) guide.setAttribute(end, place);
    guide.setAttribute("visibility", "visible");
  };
  drawn.addEventListener("pointerleave", () => guide.setAttribute("visibility", "hidden"));
  const move = (event) => {
    const px = event.clientX - element.getBoundingClientRect().left;
    const value = known.reduce((best, each) => (Math.abs(at(each) - px) < Math.abs(at(best) - px) ? each : best));
    update({ tau: value === overview.gap.threshold ? null : String(value) }, { replace: true });
  };
  fill(element, drawn, tip);
  fill(words, made.intervals ? "Bands are 95% intervals. " : "Intervals are on their way. ", "τ moves in the steps of the cells’ bins; dashed lines are the published rules. ",
    overview.marks.map((mark, k) => [k ? "; " : "", `${whole(mark.threshold)}: ${mark.title}`]), overview.marks.length ? "." : "",
    series.length > chosen.length ? ` Grey: ${plural(series.length - chosen.length, "other model")}.` : "");
}

function describe(series, chosen, points, overview) {
  const i = points.findIndex((point) => point.threshold === threshold());
  const said = series.filter((each) => chosen.includes(each.model)).map((each) => {
    const due = each.due[i];
    return `${each.model} ${due?.share === null || !due ? "no number" : percent(due.share)}${due?.share_ci95 ? ` (${percentRange(due.share_ci95)})` : ""}`;
  });
  return `Share of the gap or lead on the ${overview.hits} over the threshold. At τ = ${whole(threshold())}: ${said.join("; ")}.`;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const isDecade = (value) => value === 0 || /^10*$/.test(String(value));
const clip = (text) => (text.length > 18 ? `${text.slice(0, 17)}…` : text);

/** Move labels apart, at least `gap` pixels. */
export function spread(labels, gap, top, bottom) {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((each, k) => (each.y = Math.max(each.y, k ? labels[k - 1].y + gap : top)));
  for (let k = labels.length - 1, limit = bottom; k >= 0; k--, limit -= gap) labels[k].y = Math.min(labels[k].y, limit);
}
