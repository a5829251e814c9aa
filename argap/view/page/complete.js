// Completion of column names in a text box, with a list below it.

import { fill, h } from "./dom.js";

const WORDS = ["AND", "OR", "NOT", "BETWEEN", "IN", "IS NULL", "LIKE", "regexp_matches(piece, '')"];
const MOST = 8;

/** Complete the word before the cursor. `columns`: {name, type, meaning, sql}. Returns the list's element, and `insert(text)`. */
export function completion(box, columns) {
  const known = [...columns.map((each) => ({ name: each.name, sql: each.sql, says: `${each.type}: ${each.meaning}` })), ...WORDS.map((word) => ({ name: word, sql: word, says: "SQL" }))];
  const list = h("ul.completions", { id: "completions", role: "listbox", "aria-label": "Columns", hidden: true });
  let shown = [];
  let at = -1;
  for (const [name, value] of Object.entries({ "aria-autocomplete": "list", "aria-controls": "completions" })) box.setAttribute(name, value);

  const before = () => box.value.slice(0, box.selectionStart).match(/(?:^|[\s(=<>,])([A-Za-z_]\w*)$/)?.[1] ?? "";

  function insert(text, replaced = "") {
    const start = box.selectionStart - replaced.length;
    box.focus();
    box.setRangeText(text, start, box.selectionEnd, "end");
    close();
  }

  function close() {
    [shown, at] = [[], -1];
    list.hidden = true;
    box.removeAttribute("aria-activedescendant");
  }

  function draw() {
    fill(list, shown.map((each, k) => h("li", { id: `completion-${k}`, role: "option", "aria-selected": String(k === at), onpointerdown: (event) => (event.preventDefault(), insert(each.sql, before())) }, h("code", {}, each.name), h("span.faint", {}, each.says))));
    list.hidden = shown.length === 0;
    if (at >= 0) box.setAttribute("aria-activedescendant", `completion-${at}`);
    else box.removeAttribute("aria-activedescendant");
  }

  box.addEventListener("input", () => {
    const word = before().toLowerCase();
    shown = word ? known.filter((each) => each.name.toLowerCase().startsWith(word) && each.name.toLowerCase() !== word).slice(0, MOST) : [];
    at = -1;
    draw();
  });
  box.addEventListener("blur", close);
  box.addEventListener("keydown", (event) => {
    if (list.hidden || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") at = (at + (event.key === "ArrowDown" ? 1 : -1) + shown.length) % shown.length;
    else if (event.key === "Escape") return close();
    else if ((event.key === "Enter" || event.key === "Tab") && at >= 0) insert(shown[at].sql, before());
    else return;
    event.preventDefault();
    if (!list.hidden) draw();
  });
  return { element: list, insert };
}

/** A condition in which the column `window`, a word of SQL's own, is quoted. */
export const quoteWindow = (sql) => sql.replace(/'(?:[^']|'')*'|"(?:[^"]|"")*"|\bwindow\b/gi, (found) => (found.toLowerCase() === "window" ? '"window"' : found));
