// The figures of all models at the chosen τ and reference: at first those of gap.json, then those of every τ.

import { ask, Superseded } from "./api.js";
import { reference, threshold } from "./state.js";

const known = new Map();

/** Every τ against a reference: first without intervals, then with; `changed` is called for each. Errors go to `failed`. */
export async function loadThresholds(changed, failed) {
  const wanted = reference();
  for (const intervals of [false, true]) {
    if (known.get(wanted)?.intervals === true || known.get(wanted)?.intervals === intervals) continue;
    try {
      const made = await ask("thresholds", { reference: wanted, intervals }, `thresholds ${intervals}`);
      if (!known.get(wanted)?.intervals) known.set(wanted, made);
    } catch (error) {
      if (!(error instanceof Superseded)) failed(error);
      return;
    }
    if (reference() === wanted) changed();
  }
  changed();
}

/** What `loadThresholds` got for the reference, or undefined. */
export const thresholds = () => known.get(reference());

/** The estimate of a model on a part. */
export const of = (part, model) => part.models.find((each) => each.model === model);

/** Whether a model is behind, ahead or level, as `argap.metric.share`; null for the reference, and without a finite ΔNLL. */
export function directionOf(whole) {
  if (whole.delta === null) return null;
  const ends = whole.delta_ci95;
  if (whole.delta === 0 || (ends && ends[0] <= 0 && ends[1] >= 0)) return "level";
  return whole.delta > 0 ? "behind" : "ahead";
}

/** What the ΔNLL of a model is called. */
export const WORDS = { behind: "gap", ahead: "lead", level: "difference", null: "difference" };

/**
 * The rows of the table: {model, reference, parameters, direction, overall, ar_hits, other, share, n, total, pending}.
 * null: not known yet.
 */
export function rows(overview) {
  const { gap } = overview;
  const parameters = new Map(gap.rows.map((row) => [row.model, row.parameters]));
  const own = threshold() === gap.threshold && reference() === gap.reference;
  const all = thresholds();
  const [whole, at, pending] = own ? [gap.all, gap, false] : [all?.whole, all?.at.find((each) => each.threshold === threshold()), all && !all.intervals];
  if (!at) return null;
  return whole.models.map((overall) => ({
    model: overall.model, reference: overall.model === reference(), parameters: parameters.get(overall.model), direction: directionOf(overall), overall,
    ar_hits: of(at.ar_hits, overall.model), other: of(at.other, overall.model), share: at.ar_hits.share_of_tokens, n: at.ar_hits.n, total: whole.n, pending,
  }));
}
