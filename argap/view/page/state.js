// The state of the page lives behind the # of its address, so that every view of it has a link. Only what differs from
// the defaults stands there.

const DEFAULTS = {
  against: null,
  view: "overview", models: null, ref: null, tau: null, by: "frequency", window: null, pos: null, list: "windows",
  where: null, q: null, sql: null, sort: null, order: "loss", scale: null,
};
const HUES = 14; // colours of view.css
const listeners = new Set();
let overview = null;
let current = { ...DEFAULTS };

/** The overview of the result; set once. */
export function setOverview(made) {
  overview = made;
  current = parse(location.hash);
}

function parse(hash) {
  const given = new URLSearchParams(hash.slice(1));
  const state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    if (name === "models" ? given.has("model") : given.has(name)) state[name] = name === "models" ? given.getAll("model") : given.get(name);
  }
  return state;
}

function format(state) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value === null || value === DEFAULTS[name]) continue;
    if (name === "models") value.forEach((model) => query.append("model", model));
    else query.set(name, value);
  }
  const text = query.toString();
  return text ? `#${text}` : "";
}

export const state = () => current;

/** What figures are a mean over: `nats per token`; bytes where models of several tokenizers are compared. */
export const natsPer = () => `nats per ${overview.gap.unit ?? "token"}`;
export const unit = () => overview.gap.unit ?? "token";
export const Units = () => (unit() === "token" ? "Tokens" : "Bytes");

/** Models other than the reference. */
export const compared = () => overview.gap.rows.map((row) => row.model).filter((model) => model !== reference());

export function reference() {
  const known = overview.gap.rows.some((row) => row.model === current.ref);
  return known && !overview.own_reference ? current.ref : overview.gap.reference;
}

/** The chosen models in the order of choice; the first is the one that sentences and tokens speak of. */
export function models() {
  const known = (current.models ?? []).filter((model) => compared().includes(model));
  if (known.length) return [...new Set(known)];
  return compared().length ? [widest()] : [];
}

/** The model with the largest gap: shown where none was chosen. */
function widest() {
  const gaps = new Map(overview.gap.all.models.map((each) => [each.model, each.delta ?? -Infinity]));
  return [...compared()].sort((a, b) => gaps.get(b) - gaps.get(a))[0];
}

/** The class of a model's colour: the same in every view, and in the report. */
export const hue = (model) => `m${overview.colours.indexOf(model) % HUES}`;

/** Whether a server answers; a bundle holds what it holds. */
export const live = () => !overview.bundled;

/** The window some steps after another, among those that are here; null beyond the first and the last. */
export function windowAfter(number, step) {
  const held = overview.bundled;
  if (!held) return number + step >= 0 && number + step < overview.gap.evaluation.windows ? number + step : null;
  const beyond = held.filter((each) => (step > 0 ? each > number : each < number));
  return (step > 0 ? beyond[0] : beyond.at(-1)) ?? null;
}

export const model = () => models()[0] ?? reference();

/** The model that the first one is shaded against: the reference, or another that was chosen. */
export const against = () => ([...compared(), reference()].includes(current.against) ? current.against : reference());

/** τ: one that the cells allow; null without training counts. */
export function threshold() {
  const asked = Number(current.tau);
  return current.tau !== null && overview.thresholds.includes(asked) ? asked : overview.gap.threshold;
}

/** Change the state. `replace`: without a new entry in the browser's history. */
export function update(changes, { replace = false } = {}) {
  const next = { ...current, ...changes };
  const hash = format(next);
  if (hash === format(current)) return;
  const before = current;
  current = next;
  history[replace ? "replaceState" : "pushState"](null, "", hash || location.pathname + location.search);
  tell(before);
}

function tell(before) {
  const changed = new Set(Object.keys(current).filter((name) => String(current[name]) !== String(before[name])));
  listeners.forEach((listener) => listener(changed));
}

/** Call `listener` with the names that changed. */
export const listen = (listener) => listeners.add(listener);

for (const event of ["popstate", "hashchange"]) {
  addEventListener(event, () => {
    if (!overview || format(parse(location.hash)) === format(current)) return;
    const before = current;
    current = parse(location.hash);
    tell(before);
  });
}

/** The link of what is shown now, or of a changed state. */
export const link = (changes = {}) => format({ ...current, ...changes }) || "#";
