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

/**
 * The rows of the table: {model, reference, parameters, overall, ar_hits, other, share, gap, part, due, pending}.
 * null: not known yet.
 */
export function rows(overview) {
  const { gap } = overview;
  const parameters = new Map(gap.rows.map((row) => [row.model, row.parameters]));
  // An older gap.json does not say which shares must not be claimed; the cells do.
  const recorded = gap.documents || !thresholds()?.intervals;
  if (recorded && threshold() === gap.threshold && reference() === gap.reference) {
    return gap.rows.map((row) => ({
      model: row.model, reference: row.reference, parameters: row.parameters, overall: row.overall, ar_hits: row.ar_hits,
      other: row.other, share: row.share_ar_hits, n: row.ar_hits.n, gap: row.delta, part: row.delta_ar, due: row.gap_due_to_ar, pending: false,
    }));
  }
  const all = thresholds();
  const at = all?.at.find((each) => each.threshold === threshold());
  if (!at) return null;
  const made = all.whole.models.map((whole, k) => ({
    model: whole.model, reference: whole.reference, parameters: parameters.get(whole.model), overall: whole,
    ar_hits: at.ar_hits.models[k], other: at.other.models[k], share: at.ar_hits.share, n: at.ar_hits.n,
    gap: whole.contribution, part: at.ar_hits.models[k].contribution, due: at.ar_hits.models[k].gap_due_to, pending: !all.intervals,
  }));
  return made.sort((a, b) => Number(b.reference) - Number(a.reference));
}
