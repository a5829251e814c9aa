// The shades of a difference of NLLs between two models.

/** Nats between the shades. */
export const STEPS = [0.25, 0.75, 1.5, 3];

/** The shade of a difference, −4 (better) … 4 (worse). */
export function shade(delta) {
  if (delta === null) return 0;
  const steps = STEPS.filter((step) => Math.abs(delta) >= step).length;
  return delta < 0 ? -steps : steps;
}

/** What a shade stands for, in words. */
export function range(k) {
  if (k === 0) return `less than ${STEPS[0]} nats`;
  const [from, to] = [STEPS[Math.abs(k) - 1], STEPS[Math.abs(k)]];
  return `${k < 0 ? "better" : "worse"} by ${to ? `${from} to ${to}` : `${from} or more`} nats`;
}
