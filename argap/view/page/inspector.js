// One token in detail.

import { fill, h, name } from "./dom.js";
import { DASH, chance, nats, plural, signed, times, whole } from "./numbers.js";
import { threshold } from "./state.js";

export function inspector({ jump }) {
  const element = h("aside.inspector", { "aria-label": "Token", "aria-live": "off" });
  const said = h("p.hidden", { role: "status" });
  let last = null;
  return {
    element,
    draw(window, pos) {
      if (!window || pos === null) {
        fill(element, h("p.empty", {}, "Point at a token, or move to it with the arrow keys."));
        return;
      }
      if (last?.window === window && last.pos === pos && last.tau === threshold()) return;
      last = { window, pos, tau: threshold() };
      fill(element, card(window, pos, jump), said);
    },
  };
}

function card(window, pos, jump) {
  const [own, other] = [window.models[0], window.models.at(-1)];
  const nll = own.nll[pos];
  const count = window.train_count?.[pos];
  const repeated = window.repeated[pos];
  const hit = pos > 0 && repeated && (threshold() === null || !window.train_count || count <= threshold());
  const pair = h("p.pair", {}, pos > 0 && h("bdi.before", {}, inline(window.tokens[pos - 1])), h("bdi.this", {}, inline(window.tokens[pos]) || "∅"));
  const length = window.cut[pos] && h("p.faint", {}, `The first 400 of ${plural(window.cut[pos], "character")}.`);
  if (pos === 0) {
    return [pair, length, h("p", {}, "First token of the window: context only, not scored."), h("p.faint", {}, `position 0 · id ${window.ids[pos]}`)];
  }
  const single = own === other;
  const shown = single ? [own] : [own, other];
  const ranked = shown.some((each) => each.rank);
  return [
    pair,
    length,
    h("p.badges", {}, hit ? h("span.badge.is-hit", {}, threshold() === null ? "repeated" : "AR hit") : h("span.badge", {}, repeated ? "repeated, not a hit" : "not repeated")),
    h("table.pairwise", {},
      h("thead", {}, h("tr", {}, h("td"), h("th", { scope: "col" }, "NLL"), h("th", { scope: "col" }, "prob."), ranked && h("th", { scope: "col" }, "rank"), h("th.left", { scope: "col" }, "top-1"))),
      h("tbody", {}, shown.map((each) => h("tr", {}, h("th.left", { scope: "row" }, name(each.model)), h("td", {}, nats(each.nll[pos], 2)), h("td", {}, chance(each.nll[pos])), ranked && h("td.rank", {}, each.rank ? whole(each.rank[pos]) : DASH), h("td.left", {}, each.right[pos] ? h("span.right", {}, "right") : h("bdi.wrong", { title: "its most likely token" }, inline(each.top1[pos]) || "∅"))))),
      !single && h("tfoot", {}, h("tr", {}, h("th.left", { scope: "row" }, "Δ NLL"), h("td", {}, signed(nll - other.nll[pos])), h("td.left", { colspan: ranked ? 3 : 2 }, "nats")))),
    h("dl.labels", {},
      h("dt", {}, "earlier in the window"), h("dd", {}, repeated ? [plural(window.distance[pos], "token"), " back", window.occurrences[pos] > 1 ? `, ${times(window.occurrences[pos])} in all` : ""] : "no"),
      h("dt", {}, "seen in training"), h("dd", {}, count === undefined ? "not counted" : times(count)),
      h("dt", {}, "position"), h("dd", {}, `${whole(pos)} of ${whole(window.tokens.length - 1)}`),
      h("dt", {}, "token id"), h("dd", {}, window.ids[pos]),
      shown.flatMap((each) => [["KL", each.kl], ["entropy", each.entropy]].filter(([, values]) => values).map(([what, values]) => [h("dt", {}, `${what}, `, name(each.model)), h("dd", {}, nats(values[pos], 3))])),
      Object.entries(window.kept).filter(([, values]) => values[pos]).map(([column, values]) => [h("dt", {}, name(column)), h("dd", {}, name(values[pos]))])),
    repeated && h("p", {}, h("button", { type: "button", onclick: () => jump(pos - window.distance[pos]) }, "To the earlier occurrence ", h("kbd", {}, "Enter"))),
  ];
}

const inline = (text) => text.replaceAll("\n", "");
