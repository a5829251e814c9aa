// Numbers as argap's tables write them: true minus signs, and no number that rounds to minus zero.

export const DASH = "—";
const SHORT = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

const fixed = (value, digits) => {
  const text = value.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
};

export const whole = (value) => Math.round(value).toLocaleString("en-US");
export const percent = (fraction, digits = 1) => (fraction === null || fraction === undefined ? DASH : `${fixed(100 * fraction, digits)}%`);
export const nats = (value, digits = 3) => (value === null || value === undefined ? DASH : fixed(value, digits));
export const signed = (value, digits = 2) => (value > 0 && Number(value.toFixed(digits)) > 0 ? "+" : "") + fixed(value, digits);

/** `70.2–75.4%`, or `−3.0 to 4.1%`. */
export function percentRange([low, high]) {
  return low < 0 ? `${percent(low).replace("%", "")} to ${percent(high)}` : `${fixed(100 * low, 1)}–${percent(high)}`;
}

/** A difference in nats with its sign, and both ends of its interval. */
export const difference = (value) => (value === null || value === undefined ? DASH : signed(value, 3));
export const differenceRange = ([low, high]) => `${signed(low, 3)} to ${signed(high, 3)}`;

/** A share as tables print it: in parentheses where it must not be claimed. */
export const shareText = ({ share, reason }, digits = 1) => (share === null ? DASH : reason ? `(${percent(share, digits)})` : percent(share, digits));

/** How much text was read and how much of it scored, in the unit that is compared. */
export const extent = (tokens, scored, unit) => `${whole(tokens)} tokens, ${whole(scored)} ${unit === "byte" ? "bytes " : ""}scored`;

/** What `loss` writes. */
export const lossName = (unit) => (unit === "token" ? "PPL (NLL)" : "bits/byte (NLL)");

/** `11.01 (2.40)`: perplexity (NLL), ∞ where a token has probability 0; by bytes bits per byte, and the NLL per byte. */
export function loss(scores, unit) {
  if (scores.nll === null) return scores.n ? "∞" : DASH;
  if (unit === "byte") return `${(scores.nll / Math.LN2).toFixed(3)} (${scores.nll.toFixed(3)})`;
  const ppl = scores.ppl === null ? "> 1e308" : scores.ppl < 1000 ? scores.ppl.toFixed(2) : scores.ppl < 1e6 ? whole(scores.ppl) : scores.ppl.toExponential(1).replace(/\+(\d)$/, "+0$1");
  return `${ppl} (${scores.nll.toFixed(2)})`;
}

export function parameters(count) {
  if (!count) return DASH;
  for (const [size, unit] of SHORT) {
    if (count >= size) return `${(count / size).toFixed(count / size < 100 ? 1 : 0)} ${unit.replace("G", "B")}`;
  }
  return String(count);
}

/** A count for an axis: `1.5M`. */
export function short(value) {
  for (const [size, unit] of SHORT) {
    if (value >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(value);
}

/** A probability: `93%`, `0.4%`, `< 0.01%`. */
export function chance(nll) {
  const value = 100 * Math.exp(-nll);
  if (value < 0.01) return "< 0.01%";
  return `${value >= 10 ? value.toFixed(0) : Number(value.toPrecision(2))}%`;
}

export const times = (count) => (count === 0 ? "never" : count === 1 ? "once" : `${whole(count)} times`);
export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;
