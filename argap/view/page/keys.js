// Keys, and the dialog that lists them. Single keys can be switched off there (WCAG 2.1.4).

import { announce, h } from "./dom.js";
import { copyLink } from "./header.js";
import { update } from "./state.js";

const VIEWS = ["overview", "breakdowns", "slices", "tokens"];
const LISTED = [
  ["1 2 3 4", "Overview, Breakdowns, Slices, Tokens"],
  ["c", "copy a link to what is shown"],
  ["?", "these keys"],
  null,
  ["← →", "token before, token after"],
  ["↑ ↓", "line above, line below"],
  ["n p", "next hit, hit before, across windows"],
  ["Enter", "to the earlier occurrence; Backspace: back"],
  ["j k", "next window, window before"],
  ["w", "worst windows"],
  ["l", "largest losses"],
  ["/", "search in the text"],
];
const SWITCH = "argap single keys";
let dialog = null;

/** Storage is forbidden to a page in another site's frame. */
function enabled() {
  try {
    return localStorage.getItem(SWITCH) !== "off";
  } catch {
    return true;
  }
}

function enable(on) {
  try {
    localStorage.setItem(SWITCH, on ? "on" : "off");
    announce(`Single keys ${on ? "on" : "off"}`);
  } catch {
    announce("The browser does not let the page remember that");
  }
}

/** Listen to keys; `current()` is the view that is shown, whose own `key(event)` comes first. */
export function installKeys(overview, current) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest?.("input, textarea, select, dialog")) return;
    const single = event.key.length === 1;
    if (single && !enabled()) return;
    if (current()?.key?.(event)) {
      event.preventDefault();
      return;
    }
    const view = VIEWS[Number(event.key) - 1];
    if (view) update({ view });
    else if (event.key === "c") copyLink();
    else if (event.key === "?") showHelp();
    else if (event.key === "w" || event.key === "l") update({ view: "tokens", list: event.key === "w" ? "windows" : "losses", where: "ar_hits" });
    else if (event.key === "/") update({ view: "tokens", list: "search" });
    else return;
    event.preventDefault();
  });
}

export function showHelp() {
  if (!dialog) {
    const box = h("input", { type: "checkbox", id: "single-keys", onchange: () => enable(box.checked) });
    box.checked = enabled();
    dialog = h("dialog", { "aria-labelledby": "keys-title" },
      h("h2", { id: "keys-title" }, "Keys"),
      h("dl.keys", {}, LISTED.map((each) => (each ? [h("dt", {}, each[0].split(" ").map((key) => [h("kbd", {}, key), " "])), h("dd", {}, each[1])] : [h("dt.rule"), h("dd.rule", {}, "In Tokens")]))),
      h("p", {}, h("label", {}, box, " single keys are shortcuts")),
      h("form", { method: "dialog" }, h("button", {}, "Close")));
    document.body.append(dialog);
  }
  dialog.showModal();
}
