// The first view: the finding in a sentence, the table, and the curve over τ.

import { fill, h, name } from "./dom.js";
import { curve } from "./curve.js";
import { loadThresholds, rows, thresholds } from "./figures.js";
import { nats, natsRange, percent, percentRange, whole } from "./numbers.js";
import { model, natsA, reference, threshold, unit } from "./state.js";
import { table } from "./table.js";

export function overviewView(overview) {
  const finding = h("section.finding", { "aria-label": "Finding" });
  const tablePart = table(overview);
  const curvePart = curve(overview);
  const note = h("p.note", { role: "alert", hidden: true });
  const element = h("div.overview", {}, finding, note, tablePart.element, curvePart.element);
  const draw = () => {
    const made = rows(overview);
    drawFinding(finding, made, overview);
    tablePart.draw(made);
    curvePart.draw(thresholds());
  };
  return {
    element,
    show(changed) {
      draw();
      if (changed.size === 0 || changed.has("ref") || changed.has("view")) {
        loadThresholds(draw, (error) => {
          note.hidden = false;
          note.textContent = `τ and the reference cannot be changed: ${error.message}`;
          curvePart.fail(error);
        });
      }
    },
  };
}

function drawFinding(element, made, overview) {
  const row = made?.find((each) => each.model === model());
  const hits = overview.hits;
  if (!made) {
    fill(element, h("h1", {}, "Adding up the cells …"));
    return;
  }
  if (made.length === 1) {
    fill(element, h("h1", {}, "One model, nothing to compare it with"), h("p.detail", {}, "Score a second one, or compare this run with another: argap compare RUN… --ref RUN."));
    return;
  }
  const facts = [
    ["gap", row.gap && nats(row.gap.nll), natsA(), row.gap?.ci95 && natsRange(row.gap.ci95)],
    [`of it on ${hits}`, row.part && nats(row.part.nll), natsA(), row.part?.ci95 && natsRange(row.part.ci95)],
    [hits, percent(row.share), `of the ${unit()}s`, `${whole(row.n)} of ${whole(row.total)}`],
  ];
  fill(
    element,
    h("h1", {}, sentence(row, hits)),
    h("dl.facts", {}, facts.filter(([, value]) => value).map(([title, value, unit, range]) => h("div", {}, h("dt", {}, title), h("dd", {}, h("b", {}, value), ` ${unit}`), h("dd.faint", {}, range ?? "\u00a0")))),
  );
}

function sentence(row, hits) {
  const [own, other] = [name(row.model), name(reference())];
  const due = row.due;
  const share = percent(row.share);
  if (row.n === 0) return ["No token here is ", hits === "AR hits" ? "an AR hit" : "a repeated bigram", ": none of ", own, "’s gap to ", other, " can be associative recall."];
  if (!due || due.case === "no_gap" || due.value === null) return [own, " has no gap to ", other, `: it is at least as good overall and on the ${hits}.`];
  if (due.unresolved && !row.pending) return ["How much of ", own, "’s gap to ", other, ` sits on the ${hits} is not resolved: ${due.unresolved}.`];
  if (due.case === "recall_only") return [own, " is at least as good as ", other, ` overall, but worse on the ${share} of ${unit()}s that are ${hits}.`];
  if (due.case === "reversed") return [own, " is worse than ", other, ` overall, but better on the ${share} of ${unit()}s that are ${hits}.`];
  const within = due.ci95 ? [" (95% interval ", h("span.nowrap", {}, percentRange(due.ci95)), ")"] : "";
  return [h("strong", {}, due.value < 1 ? percent(due.value, 0) : "All"), " of ", own, "’s gap to ", other, within, ` sits on the ${share} of ${unit()}s that are ${hits}${threshold() === null ? "" : ` at τ = ${whole(threshold())}`}.`];
}
