// Discover: conditions that explain a model's gap, found by a tree on half of the documents, with figures of the others.

import { ask, stop, Superseded } from "./api.js";
import { fill, h, name } from "./dom.js";
import { difference, differenceRange, percent, shareText } from "./numbers.js";
import { model, reference } from "./state.js";

/** The button, and the element of what was found; `use(where)`: put a condition into the box. */
export function discovery(overview, { use }) {
  const element = h("div");
  const button = h("button", { type: "button", title: "Find conditions that explain the gap of the first model", onclick: run }, "Discover");

  async function run() {
    const of = model();
    if (of === reference()) return fill(element, h("p.empty", {}, "Nothing to discover: no other model to compare."));
    button.disabled = true;
    fill(element, h("p.caption", { role: "status" }, "Growing trees on half of the documents … ", h("button", { type: "button", onclick: () => stop("discover") }, "Stop")));
    try {
      draw(of, await ask("discover", { model: of, reference: reference() }, "discover"));
    } catch (error) {
      fill(element, h("p.caption", { role: "status", class: error instanceof Superseded ? null : "alert" }, error instanceof Superseded ? "Stopped." : error.message));
    }
    button.disabled = false;
    return undefined;
  }

  function draw(of, made) {
    const row = (part) => {
      const each = part.models.find((one) => one.model === of);
      return h("tr", {}, h("th.left", { scope: "row" }, h("code", {}, part.where)), h("td", {}, percent(part.share_of_tokens)),
        h("td", {}, difference(each.contribution), each.contribution_ci95 && h("span.ends", {}, differenceRange(each.contribution_ci95))), h("td", {}, h("b", {}, shareText(each))),
        h("td", {}, made.stability[part.name]?.toFixed(2)), h("td", {}, h("button.quiet", { type: "button", onclick: () => use(part.where) }, "use")));
    };
    fill(element, h("section.found", { "aria-labelledby": "found-title" },
      h("div.heading", {}, h("h2", { id: "found-title" }, "Discovered for ", name(of)), h("button.quiet", { type: "button", onclick: () => fill(element) }, "Close")),
      h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Table of what was found" }, h("table.parts", {},
        h("thead", {}, h("tr", {}, h("th.left", { scope: "col" }, "Condition"), h("th", { scope: "col" }, "% of tokens"), h("th", { scope: "col" }, "Contribution"), h("th", { scope: "col" }, "Share"), h("th", { scope: "col", title: "overlap with the most similar leaf of trees grown on other halves; 1: the same" }, "Stability"), h("td"))),
        h("tbody", {}, made.parts.map(row)))),
      h("p.caption", {}, `Found in one half of the documents; figures of the other half. ${made.note}`)));
  }
  return { button, element };
}
