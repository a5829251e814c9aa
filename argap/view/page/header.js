// The bar at the top: the result's name, the four views, the models compared and τ.

import { announce, fill, h, name } from "./dom.js";
import { short, whole } from "./numbers.js";
import { compared, link, listen, model, models, reference, state, threshold, update } from "./state.js";
import { showHelp } from "./keys.js";

const VIEWS = [["overview", "Overview"], ["breakdowns", "Breakdowns"], ["slices", "Slices"], ["tokens", "Tokens"]];

export function drawHeader(overview) {
  const nav = h("nav", { "aria-label": "Views" });
  const controls = h("div.controls");
  const setting = h("p.setting"); // on paper, in place of the controls
  fill(
    document.getElementById("header"),
    h("div.bar", {},
      h("p.title", {}, location.pathname.startsWith("/r/") && window.parent === window ? h("a.mark", { href: "../../" }, "All results") : h("span.mark", {}, "argap"), " ", h("strong", {}, name(overview.name))),
      nav,
      h("div.tools", {},
        h("button.quiet", { type: "button", onclick: copyLink, title: "Copy a link to this view (c)" }, "Copy link"),
        h("button.quiet", { type: "button", onclick: showHelp, title: "Keys (?)", "aria-label": "Keys" }, "?")),
      setting),
    controls,
  );
  const draw = () => {
    fill(nav, VIEWS.map(([view, title]) => h("a", { href: link({ view }), "aria-current": state().view === view && "page" }, title)));
    fill(setting, models().map((each, k) => [k ? ", " : "", name(each)]), " against ", name(reference()), threshold() === null ? "" : `, τ ≤ ${whole(threshold())}`);
    nav.querySelectorAll("a").forEach((a, k) => a.addEventListener("click", (event) => follow(event, { view: VIEWS[k][0] })));
  };
  const parts = [chooseModel(), chooseReference(overview), chooseThreshold(overview)];
  fill(controls, parts.map((part) => part.element));
  const all = () => {
    draw();
    parts.forEach((part) => part.draw());
  };
  all();
  listen(all);
}

/** Links change the state in place; a new tab opens them as links. */
function follow(event, changes) {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  update(changes);
}

export async function copyLink() {
  await copyText(location.href, "Link copied");
}

/** Copy a text and say so. */
export async function copyText(text, said) {
  try {
    await navigator.clipboard.writeText(text);
    announce(said);
  } catch {
    announce("The browser does not let the page copy");
  }
}

function chooseModel() {
  const select = h("select", { onchange: () => update({ models: [select.value, ...models().filter((each) => each !== select.value)] }) });
  return {
    element: h("label.choice", {}, h("span", {}, "Model"), select),
    draw() {
      const known = compared();
      fill(select, known.length ? known.map((each) => h("option", {}, each)) : h("option", {}, "none to compare"));
      select.disabled = known.length === 0;
      if (known.length) select.value = model();
    },
  };
}

function chooseReference(overview) {
  const names = overview.gap.rows.map((row) => row.model);
  const select = h("select", { onchange: () => update({ ref: select.value === overview.gap.reference ? null : select.value }) }, names.map((each) => h("option", {}, each)));
  select.disabled = Boolean(overview.own_reference) || names.length < 2;
  return {
    element: h("label.choice", { title: overview.own_reference }, h("span", {}, "against"), select),
    draw() {
      select.value = reference();
    },
  };
}

/** Where a threshold lies on a logarithmic axis; 0 lies half a step before 1. */
export const logPosition = (value) => Math.log10(Math.max(value, 0.4));

/** The thresholds worth a step: up to the highest count that occurs here, and every marked one. */
export function usefulThresholds(overview) {
  const highest = Math.max(overview.counted ?? Infinity, overview.gap.threshold ?? 0, ...overview.marks.map((mark) => mark.threshold));
  return overview.thresholds.filter((each, k, all) => each <= highest || all[k - 1] < highest);
}

function chooseThreshold(overview) {
  const known = usefulThresholds(overview);
  if (!known.length) {
    const words = "no training counts: every repeated bigram is a hit";
    return { element: h("p.choice.tau", {}, h("span", {}, "τ"), h("span.faint", { title: "argap label RESULT --index DIR adds them" }, words)), draw() {} };
  }
  const [low, high] = [logPosition(known[0]), logPosition(known.at(-1))];
  const nearest = (position) => known.reduce((best, each) => (Math.abs(logPosition(each) - position) < Math.abs(logPosition(best) - position) ? each : best));
  const set = (value) => update({ tau: value === overview.gap.threshold ? null : String(value) }, { replace: true });
  const shown = h("output", { for: "tau" });
  const slider = h("input", {
    id: "tau", type: "range", min: low, max: high, step: "any", "aria-label": "Threshold τ, in exposures",
    oninput: () => {
      const value = nearest(Number(slider.value));
      slider.value = logPosition(value);
      set(value);
    },
    onkeydown: (event) => {
      const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -3, PageUp: 3, Home: -Infinity, End: Infinity };
      if (!(event.key in steps)) return;
      event.preventDefault();
      const k = Math.min(Math.max(known.indexOf(threshold()) + steps[event.key], 0), known.length - 1);
      set(known[k]);
    },
  });
  const marks = h("div.marks", {}, overview.marks.filter((mark) => logPosition(mark.threshold) <= high).map((mark) => {
    const fraction = (logPosition(mark.threshold) - low) / (high - low);
    const exact = known.includes(mark.threshold);
    const button = h("button.published", {
      type: "button", tabindex: -1,
      title: `τ = ${whole(mark.threshold)}: ${mark.title}${exact ? "" : `; the cells allow ${whole(nearest(logPosition(mark.threshold)))}`}`,
      "aria-label": `${mark.title}, ${whole(mark.threshold)}`,
      onclick: () => set(nearest(logPosition(mark.threshold))),
    }, mark.threshold < 10000 ? whole(mark.threshold) : short(mark.threshold));
    button.style.setProperty("--at", fraction);
    return button;
  }));
  return {
    element: h("div.choice.tau", {}, h("label", { for: "tau" }, "τ ≤"), shown, h("div.slider", {}, slider, marks)),
    draw() {
      slider.value = logPosition(threshold());
      slider.setAttribute("aria-valuetext", `${whole(threshold())} exposures`);
      shown.textContent = whole(threshold());
    },
  };
}
