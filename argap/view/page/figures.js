// The figures of all models at the chosen τ and reference: at first those of gap.json, then those of every τ.

import { ask, Superseded } from "./api.js";
import { reference, threshold } from "./state.js";

const known = new Map();
const INFINITE = "a log-prob is −∞";
const NOT_RESOLVED = "gap not resolved";

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

/** The share of the gap of an estimate, with the case that it falls under; null for the reference. */
export function dueOf(each) {
  const { share: raw, share_ci95: ci95, paper_rule: value, reason } = each;
  if (each.contribution === null && reason === null) return null;
  const kind = reason === INFINITE ? "infinite" : value === null ? "no_gap" : raw === null || (raw < 0 && value > 0) ? "recall_only" : raw < 0 ? "reversed" : "explained";
  return { value, raw, ci95, reason, case: kind, unresolved: kind === "infinite" || (value !== null && reason !== NOT_RESOLVED) ? reason : null };
}

/** ΔNLL or a contribution with its interval; null for the reference. */
export const difference = (each, name_ = "contribution") => (each[name_] === null ? null : { nll: each[name_], ci95: each[`${name_}_ci95`] });

/**
 * The rows of the table: {model, reference, parameters, overall, ar_hits, other, share, gap, part, due, pending}.
 * null: not known yet.
 */
export function rows(overview) {
  const { gap } = overview;
  const parameters = new Map(gap.rows.map((row) => [row.model, row.parameters]));
  const own = threshold() === gap.threshold && reference() === gap.reference;
  const all = thresholds();
  const [whole, at, pending] = own ? [gap.all, gap, false] : [all?.whole, all?.at.find((each) => each.threshold === threshold()), all && !all.intervals];
  if (!at) return null;
  return whole.models.map((overall) => {
    const hits = of(at.ar_hits, overall.model);
    return {
      model: overall.model, reference: overall.model === reference(), parameters: parameters.get(overall.model), overall, ar_hits: hits,
      other: of(at.other, overall.model), share: at.ar_hits.share_of_tokens, n: at.ar_hits.n, total: whole.n,
      gap: difference(overall), part: difference(hits), due: dueOf(hits), pending,
    };
  });
}
