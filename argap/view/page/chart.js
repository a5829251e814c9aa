// The little that charts need: linear scales, round ticks, paths.

/** A linear map of `domain` to `range`. */
export function scale([a, b], [low, high]) {
  const span = b - a || 1;
  return (value) => low + ((value - a) / span) * (high - low);
}

/** Round numbers between two ends, about `count` of them. */
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => (first + k) * step);
}

/** A path through [x, y]; a null y breaks it. */
export function path(points) {
  let drawing = false;
  return points.map(([x, y]) => {
    if (y === null) {
      drawing = false;
      return "";
    }
    const command = drawing ? "L" : "M";
    drawing = true;
    return `${command}${x.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
}

/** The room of an element, in whole pixels. */
export const widthOf = (element) => Math.max(Math.floor(element.clientWidth), 280);
