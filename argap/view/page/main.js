// The page: asks for the overview, then shows one of four views of it. Each view is a module with `show(changed)`.

import { ask } from "./api.js";
import { drawHeader } from "./header.js";
import { breakdownsView } from "./breakdowns.js";
import { announce, fill, h, name } from "./dom.js";
import { installKeys } from "./keys.js";
import { listen, setOverview, state, unit } from "./state.js";
import { overviewView } from "./overview.js";
import { slicesView } from "./slices.js";
import { tokensView } from "./tokens.js";
import { extent, plural, whole } from "./numbers.js";

const VIEWS = { overview: overviewView, breakdowns: breakdownsView, slices: slicesView, tokens: tokensView };

async function start() {
  const main = document.getElementById("main");
  let overview;
  try {
    overview = await ask("overview");
  } catch (error) {
    fill(main, h("div.empty", { role: "alert" }, h("h1", {}, "The result is not here"), h("p", {}, error.message)));
    return;
  }
  document.title = `${overview.name} · argap view`;
  setOverview(overview);
  drawHeader(overview);
  drawFooter(overview);
  const made = new Map();
  const show = (changed) => {
    const wanted = VIEWS[state().view] ? state().view : "overview";
    const fresh = changed === null || changed.has("view");
    if (!made.has(wanted)) made.set(wanted, VIEWS[wanted](overview));
    const view = made.get(wanted);
    if (fresh) fill(main, view.element);
    view.show(changed ?? new Set());
    if (changed?.has("view")) {
      main.focus({ preventScroll: true });
      if (!view.keepsScroll) scrollTo(0, 0);
    }
  };
  show(null);
  listen(show);
  installKeys(overview, () => made.get(state().view));
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
}

const passes = (count) => (count === 1 ? "once" : `${Number(count.toPrecision(4))} times`);

function drawFooter(overview) {
  const { gap } = overview;
  const { evaluation, index } = gap;
  const facts = [
    `${extent(evaluation.tokens, gap.all.n, unit())}, in ${plural(evaluation.windows, "window")} of up to ${whole(evaluation.seq_len)}`,
    `${plural(gap.documents ?? evaluation.documents, "document")}`,
    index ? `training counts of ${whole(index.tokens)} tokens${index.proxy ? " (proxy)" : ""}, read ${passes(index.passes ?? 1)}` : "no training counts",
    `${gap.date.slice(0, 10)}, argap ${overview.version}`,
  ];
  fill(document.getElementById("footer"), facts.map((fact) => h("span", {}, fact)), h("span", {}, "text ", name((evaluation.data ?? []).join(", ") || "unnamed")));
}

addEventListener("unhandledrejection", (event) => {
  if (event.reason?.constructor?.name === "Superseded") event.preventDefault();
  else announce(event.reason?.message ?? "something went wrong");
});

start();
