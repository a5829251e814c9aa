// The first view: the finding in a sentence, the table, the curve over τ, and the gap without each source.

import { fill, h, name } from "./dom.js";
import { contextUse } from "./context.js";
import { curve } from "./curve.js";
import { loadThresholds, rows, thresholds, WORDS } from "./figures.js";
import { difference, differenceRange, nats, percent, percentRange, shareText, whole } from "./numbers.js";
import { sources } from "./sources.js";
import { model, natsPer, reference, threshold, unit } from "./state.js";
import { table } from "./table.js";
import { box } from "./terms.js";

export function overviewView(overview) {
  const finding = h("section.finding", { "aria-label": "Finding" });
  const tablePart = table(overview);
  const curvePart = curve(overview);
  const sourcesPart = sources(overview);
  const contextPart = contextUse(overview);
  const note = h("p.note", { role: "alert", hidden: true });
  const terms = h("div");
  const parts = [note, tablePart.element, curvePart.element, contextPart.element, sourcesPart.element];
  const element = h("div.overview", {}, h("div", {}, finding, terms), ...parts);
  const draw = () => {
    const made = rows(overview);
    drawFinding(finding, made, overview);
    const open = terms.firstChild?.open ?? false;
    fill(terms, box(overview, made?.[0]?.share ?? null));
    terms.firstChild.open = open;
    tablePart.draw(made);
    curvePart.draw(thresholds());
    contextPart.draw();
    sourcesPart.follow();
  };
  return {
    element,
    show(changed) {
      draw();
      sourcesPart.show();
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
  const { overall, ar_hits: part } = row;
  const shared = part.share === null ? null : `${shareText(part, 0)} of the ${WORDS[row.direction]}`;
  const facts = [
    ["ΔNLL", overall.delta !== null && difference(overall.delta), natsPer(), overall.delta_ci95 && differenceRange(overall.delta_ci95)],
    [`on ${hits}`, part.contribution !== null && difference(part.contribution), natsPer(), part.contribution_ci95 && differenceRange(part.contribution_ci95)],
    ["that is", shared && shared.split(" of ")[0], `of the ${WORDS[row.direction]}`, part.reason ? `not to be claimed: ${part.reason}` : part.share_ci95 && percentRange(part.share_ci95)],
    [hits, percent(row.share), `of the ${unit()}s`, `${whole(row.n)} of ${whole(row.total)}`],
  ];
  fill(
    element,
    h("h1", {}, sentence(row, hits)),
    h("dl.facts", {}, facts.filter(([, value]) => value).map(([title, value, unit, range]) => h("div", {}, h("dt", {}, title), h("dd", {}, h("b", {}, value), ` ${unit}`), h("dd.faint", {}, range ?? "\u00a0")))),
  );
}

/** The words of `argap.reports.tables.sentences.headline`. */
function sentence(row, hits) {
  const [own, other] = [name(row.model), name(reference())];
  const { overall, direction } = row;
  if (direction === null) return ["ΔNLL of ", own, " to ", other, ` is not finite: ${overall.reason}.`];
  if (direction === "level") return [own, " is level with ", other, `: ΔNLL is ${difference(overall.delta)} nats per ${unit()}`, apart(row, hits), "."];
  const start = [own, " is ", h("strong", {}, `${nats(Math.abs(overall.delta))} nats per ${unit()} ${direction}`), direction === "ahead" ? " of " : " ", other];
  if (row.n === 0) return [...start, `. No token here is ${hits === "AR hits" ? "an AR hit" : "a repeated bigram"}: none of it can be associative recall.`];
  const at = threshold() === null ? "" : ` at τ = ${whole(threshold())}`;
  const those = `the ${percent(row.share)} of ${unit()}s that are ${hits}${at}`;
  const parts = [[those, row.ar_hits.contribution], ["the rest", row.other.contribution]];
  const against = parts.find(([, value]) => value * overall.delta < 0 && nats(Math.abs(value)) !== nats(0));
  if (!against) return [...start, `, ${nats(Math.abs(parts[0][1]))} of it on ${those}.`];
  const [kept, most] = parts.find((part) => part !== against);
  return [...start, `: ${nats(Math.abs(most))} on ${kept}, ${direction === "behind" ? "ahead" : "behind"} by ${nats(Math.abs(against[1]))} on ${against[0]}.`];
}

/** Where a model that is level is behind or ahead on the hits, beyond the interval. */
function apart(row, hits) {
  const { contribution, contribution_ci95: ends } = row.ar_hits;
  if (!ends || (ends[0] <= 0 && ends[1] >= 0)) return "";
  const [way, back] = contribution > 0 ? ["behind", "ahead"] : ["ahead", "behind"];
  return `, ${way} by ${nats(Math.abs(contribution))} on the ${hits} and ${back} on the rest`;
}
