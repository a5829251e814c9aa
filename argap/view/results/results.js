// The list of the results in a folder. Two of them can be looked at side by side, each with its own page.

import { fill, h, name } from "./page/dom.js";
import { difference, shareText, whole } from "./page/numbers.js";

const main = document.getElementById("main");
const ENDS = 2; // models shown of those with the lowest ΔNLL, and of the others
const chosen = () => new URLSearchParams(location.hash.slice(1)).getAll("result").map(Number);

function draw(listed) {
  const now = chosen().filter((k) => listed[k] && !listed[k].error);
  document.body.classList.toggle("beside", now.length === 2);
  if (now.length === 2) return drawBeside(listed, now);
  const picked = new Set(now);
  const go = h("button.primary", { type: "button", disabled: picked.size !== 2 }, "Side by side");
  go.addEventListener("click", () => (location.hash = [...picked].map((k) => `result=${k}`).join("&")));
  const box = (k) => h("input", { type: "checkbox", "aria-label": `Choose ${listed[k].path}`, checked: picked.has(k), onchange: (event) => {
    if (event.target.checked) picked.add(k);
    else picked.delete(k);
    go.disabled = picked.size !== 2;
  } });
  return fill(main,
    h("div.heading", {}, h("h1", {}, `${listed.length} ${listed.length === 1 ? "result" : "results"}`), h("p.row", {}, h("span.faint", {}, "Choose two: "), go)),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Results" }, h("table.parts.list", {},
      h("thead", {}, h("tr", {}, h("td"), h("th.left", { scope: "col" }, "Result"), h("th.left", { scope: "col" }, "Model"), h("th", { scope: "col" }, "ΔNLL, nats"), h("th", { scope: "col" }, "Share on hits"), h("th.wide", { scope: "col" }, "Scored"), h("th.wide", { scope: "col" }, "τ"), h("th.wide", { scope: "col" }, "Date"))),
      listed.map((each, k) => rows(each, k, box)))));
}

function rows(each, k, box) {
  if (each.error) return h("tbody", {}, h("tr", {}, h("td"), h("th.left", { scope: "row" }, name(each.path)), h("td.left.faint", { colspan: 6 }, each.error)));
  const models = some(each.models.length ? each.models : [{ model: each.reference, delta: null, share: null }]);
  const span = { rowspan: models.length };
  return h("tbody", {}, models.map((one, i) => h("tr", {},
    i === 0 && [h("td", span, box(k)), h("th.left", { scope: "rowgroup", ...span }, h("a", { href: `r/${k}/` }, name(each.path)), h("span.ends", {}, "against ", name(each.reference)))],
    h("td.left", {}, name(one.model)), h("td", {}, difference(one.delta)), h("td", {}, shareText({ share: one.share ?? null, reason: one.reason })),
    i === 0 && [h("td.wide", span, `${whole(each.tokens)} ${each.unit}s`), h("td.wide", span, each.threshold === null ? "—" : whole(each.threshold)), h("td.wide", span, each.date)])));
}

/** Of many models those with the lowest and the highest ΔNLL. */
function some(models) {
  if (models.length <= 2 * ENDS + 1) return models;
  const sorted = [...models].sort((a, b) => (a.delta ?? Infinity) - (b.delta ?? Infinity));
  return [...sorted.slice(0, ENDS), { model: `… ${models.length - 2 * ENDS} between`, delta: null, share: null }, ...sorted.slice(-ENDS)];
}

function drawBeside(listed, now) {
  fill(main,
    h("p.row", {}, h("a", { href: "#" }, "← All results"), h("a", { href: `#result=${now[1]}&result=${now[0]}` }, "Swap")),
    h("h1.hidden", {}, "Two results side by side"),
    h("div.frames", {}, now.map((k) => h("iframe", { src: `r/${k}/`, title: listed[k].path }))));
}

async function start() {
  try {
    const response = await fetch("api/results", { credentials: "same-origin" });
    const listed = await response.json();
    if (listed.error) throw new Error(listed.error);
    draw(listed);
    addEventListener("hashchange", () => draw(listed));
  } catch (error) {
    fill(main, h("div.empty", { role: "alert" }, h("h1", {}, "The results are not here"), h("p", {}, error.message)));
  }
  document.getElementById("skip").addEventListener("click", (event) => (event.preventDefault(), main.focus()));
}

start();
