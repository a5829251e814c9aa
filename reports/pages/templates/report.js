// What the page does beyond showing itself: τ, sorting, and values in figures. All of it is text that Python wrote: at
// each τ the cells, notes and sentences, and for each figure its points in fractions of their panel.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const MOST = 8; // lines of a tooltip
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);

  function build(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  /** Items of a list of notes; what stands in backticks is code, as `_note` of page.py sets it. */
  function noteItems(notes) {
    return notes.map((note) => build("li", {}, ...note.split(/`([^`]+)`/).map((text, k) => (k % 2 ? build("code", {}, text) : text))));
  }

  // ── sorting ──

  const UNITS = { k: 1e3, M: 1e6, B: 1e9 };

  /** The number that a cell begins with: of `(73.1%)`, `6.9 M`, `11.01 (2.40)`; null for a dash. */
  function numberOf(text) {
    if (text.startsWith("> ")) return Infinity;
    const found = text.match(/^\(?([−+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)(?: ([kMB])\b)?/);
    return found && Number(found[1].replace("−", "-").replaceAll(",", "")) * (UNITS[found[2]] ?? 1);
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    let column = null, direction = 1;

    function sort() {
      const order = (a, b) => {
        if (column === null) return a.dataset.row - b.dataset.row;
        const [x, y] = [a, b].map((row) => row.cells[column].textContent);
        if (column === 0) return direction * x.localeCompare(y);
        const [m, n] = [numberOf(x), numberOf(y)];
        if (m === null || n === null) return (m === null) - (n === null) || a.dataset.row - b.dataset.row;
        return direction * (m - n) || a.dataset.row - b.dataset.row;
      };
      const rows = [...body.rows];
      const fixed = rows.filter((row) => row.hasAttribute("data-reference"));
      body.append(...fixed, ...rows.filter((row) => !fixed.includes(row)).sort(order));
      heads.forEach((head, k) => {
        if (k === column) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
        else head.removeAttribute("aria-sort");
      });
    }

    heads.forEach((head, k) => {
      const button = build("button", { type: "button", class: "sort", title: "Sort" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        if (column !== k) [column, direction] = [k, 1];
        else if (direction > 0) direction = -1;
        else column = null;
        sort();
      });
    });
    return sort;
  }

  const sorts = [...document.querySelectorAll("table.sortable")].map(sortable);

  // ── the threshold ──

  const slider = byId("tau");
  const lines = []; // functions that move the line at τ in a figure, and colour its bars

  function showTau() {
    const state = data.states[slider.value];
    slider.setAttribute("aria-valuetext", state.tau);
    byId("tau-at").textContent = state.tau;
    byId("tau-share").textContent = `${state.share} of ${data.unit}s are ${data.hits}`;
    for (const each of document.querySelectorAll("[data-state]")) each.textContent = state[each.dataset.state];
    const moved = Number(slider.value) !== data.own;
    byId("tau-back").disabled = !moved;
    byId("tau-bar").classList.toggle("moved", moved);
    for (const [k, made] of state.tables.entries()) showTable(k, made);
    byId("finding")?.replaceChildren(...state.headlines.map(([number, unit, sentence, numbers], k) => build("div", { class: "finding" },
      build("p", { class: "number" }, build("b", {}, number), ` ${unit}`),
      build("div", {}, build(k ? "p" : "h1", k ? { class: "lead" } : {}, sentence), build("p", { class: "detail" }, numbers)))));
    byId("sentences")?.replaceChildren(...state.headlines.map(([, , sentence, numbers]) => build("li", {}, `${sentence} ${numbers}`)));
    for (const each of document.querySelectorAll("[data-count]")) showHit(each, Number(each.dataset.count) <= state.most);
    if (state.slices) showSlices(state.slices);
    if (state.overview) showOverview(state.overview);
    for (const move of lines) move(state);
    for (const sort of sorts) sort();
  }

  /** A token of an example window, or its cell in the table below: whether it is a hit, in its look and in words. */
  function showHit(element, hit) {
    const said = (text) => text.replace(/^(AR hit|repeated)/, hit ? "AR hit" : "repeated");
    if (element.matches("td")) element.textContent = said(element.textContent);
    else {
      element.classList.toggle("hit", hit);
      element.title = said(element.title);
      if (element.matches(".focus")) element.closest("article").classList.toggle("off", !hit);
    }
  }

  function showTable(k, made) {
    const table = document.querySelector(`table[data-table="${k}"]`);
    for (const row of table.tBodies[0].rows) {
      const cells = made.rows[row.dataset.row];
      cells.forEach((text, j) => j && (row.cells[j].textContent = text));
    }
    byId(`notes-${k}`).replaceChildren(...noteItems(made.notes));
    for (const cell of table.querySelectorAll(".best")) cell.classList.remove("best");
    const rows = new Map([...table.tBodies[0].rows].map((row) => [Number(row.dataset.row), row]));
    for (const [row, column] of made.best) rows.get(row).cells[column].classList.add("best");
  }

  function showSlices(made) {
    const rows = document.querySelectorAll("#slices tbody tr:not(.group)");
    made.rows.forEach((cells, k) => cells.forEach((text, j) => {
      const [value, interval] = text.split("\n");
      if (j) rows[k].cells[j].replaceChildren(value, ...(interval ? [build("br", {}), build("small", {}, interval)] : []));
    }));
    document.querySelector("#slices .notes").replaceChildren(...noteItems(made.notes));
  }

  function showOverview(made) {
    byId("overview-sentences").textContent = made.sentences.join(" ");
    const rows = document.querySelectorAll(".overview li:not(.head)");
    made.bars.forEach((bar, k) => {
      const set = (part, left, width) => {
        const style = rows[k].querySelector(`.${part}`).style;
        style.left = `${left}%`;
        if (width !== undefined) style.width = `${width}%`;
      };
      set("hits", ...bar.hits);
      set("other", ...bar.other);
      set("zero", made.zero);
      set("total", bar.total);
      rows[k].lastElementChild.textContent = bar.share;
    });
  }

  // ── values in figures ──

  const tip = build("div", { class: "tip", role: "status", hidden: "" });
  let putTip = () => {}; // to its point, wherever that is now
  document.body.append(tip);

  function drawn(parent, tag, name) {
    const element = document.createElementNS(SVG, tag);
    element.setAttribute("class", name);
    element.style.display = "none";
    return parent.appendChild(element);
  }

  function place(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.style.display = "";
  }

  /** A figure whose points are shown under the pointer, and by the arrow keys once it has the focus. */
  function figure(name, panels) {
    const svg = byId(`figure-${name}`).querySelector("svg");
    const frames = panels.map((panel) => byId(`${name}-axes_${panel.axes}`).querySelector("path"));
    const series = panels.flatMap((panel, p) => panel.series.map((each) => ({ panel, p, ...each })));
    const guide = drawn(svg, "line", "guide");
    const ring = drawn(svg, "circle", "ring");
    let current = { s: 0, k: series[0].across.findIndex((each) => each !== null) };

    const box = (p) => frames[p].getBBox();
    const at = (p, fx, fy) => {
      const { x, y, width, height } = box(p);
      return { x: x + fx * width, y: y + (1 - fy) * height };
    };
    const where = ({ s, k }) => {
      const { panel, p, across } = series[s];
      return panel.along === "x" ? at(p, panel.at[k], across[k]) : at(p, across[k], panel.at[k]);
    };

    function hide() {
      ring.style.display = guide.style.display = "none";
      tip.hidden = true;
    }

    function show(point) {
      current = point;
      const { panel, p } = series[point.s];
      const { x, y } = where(point);
      place(ring, { cx: x, cy: y, r: 3.6 });
      const { x: left, y: top, width, height } = box(p);
      if (panel.guide === false) guide.style.display = "none";
      else if (panel.along === "x") place(guide, { x1: x, x2: x, y1: top, y2: top + height });
      else place(guide, { x1: left, x2: left + width, y1: y, y2: y });
      tip.replaceChildren(...together(point), build("small", {}, panel.heads[point.k]));
      tip.hidden = false;
      putTip = () => {
        const spot = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
        const { width: wide, height: high } = tip.getBoundingClientRect();
        tip.style.left = `${Math.max(6, Math.min(spot.x + 14, innerWidth - wide - 6))}px`;
        tip.style.top = `${spot.y - high - 12 < 6 ? spot.y + 14 : spot.y - high - 12}px`;
      };
      putTip();
    }

    /** All series at the bin of a point, in its panel or in others: a line each, the point's own in bold. */
    function together({ s, k }) {
      const head = series[s].panel.heads[k];
      const found = series.flatMap((each, other) => {
        const at = each.panel === series[s].panel ? k : each.panel.heads.indexOf(head);
        return each.texts[at] ? [build("span", other === s ? { class: "now" } : {}, `${each.name} ${each.texts[at]}`)] : [];
      });
      const own = found.findIndex((line) => line.className === "now");
      return found.length > MOST ? found.slice(Math.max(0, Math.min(own - MOST / 2, found.length - MOST)), Math.max(0, own - MOST / 2) + MOST) : found;
    }

    /** The point nearest to an event: first along the axis of the bins, then across. */
    function nearest(event) {
      const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const p = frames.findIndex((_, k) => {
        const { x: left, y: top, width, height } = box(k);
        return x > left - 6 && x < left + width + 6 && y > top - 6 && y < top + height + 6;
      });
      if (p < 0) return null;
      const { x: left, y: top, width, height } = box(p);
      const [fx, fy] = [(x - left) / width, 1 - (y - top) / height];
      const [along, across] = panels[p].along === "x" ? [fx, fy] : [fy, fx];
      let best = null, least = [Infinity, Infinity];
      series.forEach((each, s) => each.p === p && each.across.forEach((value, k) => {
        const far = value === null ? null : [Math.abs(panels[p].at[k] - along), Math.abs(value - across)];
        if (far && (far[0] < least[0] || (far[0] === least[0] && far[1] < least[1]))) [best, least] = [{ s, k }, far];
      }));
      return best;
    }

    function step(by) {
      const { across } = series[current.s];
      for (let k = current.k + by; k >= 0 && k < across.length; k += by) if (across[k] !== null) return { s: current.s, k };
      return current;
    }

    function other(by) {
      const s = (current.s + by + series.length) % series.length;
      const known = series[s].across.flatMap((value, k) => (value === null ? [] : [k]));
      if (!known.length) return current;
      return { s, k: known.reduce((best, k) => (Math.abs(k - current.k) < Math.abs(best - current.k) ? k : best)) };
    }

    const moves = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowUp: () => other(-1), ArrowDown: () => other(1) };
    const under = (event) => {
      const point = nearest(event);
      if (point) show(point);
      else hide();
      return point;
    };
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-roledescription", "figure; the arrow keys move between its values");
    svg.parentElement.removeAttribute("tabindex");
    svg.addEventListener("pointermove", under);
    svg.addEventListener("pointerdown", under);
    svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
    svg.addEventListener("focus", () => svg.matches(":focus-visible") && current.k >= 0 && show(current));
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!(event.key in moves) || current.k < 0) return;
      event.preventDefault();
      show(moves[event.key]());
    });
    if (slider) markTau(svg, panels, at);
    if (slider) rewrite(svg, panels, at);
    if (slider) panels.forEach((panel, p) => panel.bars && shadeBars(panel, frames[p]));
    if (name === "share_by_threshold" && slider) thresholds(svg, panels, at, under, () => current, series);
  }

  /** Bars of AR hits have their model's colour, those beyond τ its pale one. A figure that is hidden has no boxes. */
  function shadeBars({ bars: [full, pale], ends }, frame) {
    const bars = [...frame.closest("[id*=axes_]").querySelectorAll("path")].filter(({ style }) => [full, pale].includes(style.fill));
    let bins = null;
    lines.push(({ bin }) => {
      const { x: left, width } = frame.getBBox();
      if (!width) return;
      bins ??= bars.map((bar) => {
        const { x, width: wide } = bar.getBBox();
        return ends.findIndex((end) => end > (x + wide / 2 - left) / width);
      });
      bars.forEach((bar, k) => (bar.style.fill = bins[k] <= bin ? full : pale));
    });
  }

  function upright(mark, at, p, fraction) {
    const [low, high] = [at(p, fraction, 0), at(p, fraction, 1)];
    place(mark, { x1: low.x, x2: low.x, y1: low.y, y2: high.y });
  }

  /** In panels by training frequency a line stands at τ: after the last bin of hits. */
  function markTau(svg, panels, at) {
    panels.forEach(({ ends }, p) => {
      if (!ends?.length) return;
      const mark = drawn(svg, "line", "at-tau");
      lines.push(({ bin }) => (ends[bin] >= 0 && ends[bin] <= 1 ? upright(mark, at, p, ends[bin]) : (mark.style.display = "none")));
    });
  }

  /** The figure's own text is paths. Where τ has moved, text of the page takes its place: τ at its line, or a title's share. */
  function rewrite(svg, panels, at) {
    const shares = [...svg.querySelectorAll(".own-share")];
    for (const group of svg.querySelectorAll(".own-tau, .own-share")) {
      const [{ matrix: { e: x, f: y } }, { matrix: { a: size } }] = group.transform.baseVal;
      const text = drawn(svg, "text", group.matches(".own-tau") ? "now-tau" : "now-share");
      text.style.fontSize = `${100 * size}px`;
      const line = (p, bin) => at(p, Math.min(1, panels[p].ends[bin]), 0).x;
      lines.push((state) => {
        const moved = Number(slider.value) !== data.own;
        group.style.display = moved ? "none" : "";
        text.style.display = moved ? "" : "none";
        if (!moved || !svg.getBoundingClientRect().width) return; // a hidden figure has no boxes
        if (group.matches(".own-share")) {
          const { gap, share } = state.overview.bars[shares.indexOf(group)];
          text.textContent = `${gap}, ${share}`;
          return place(text, { x, y });
        }
        // Its panel: of those at its height, the one whose line at the result's τ is next to its right.
        const beside = panels.map((panel, p) => (panel.ends?.length && at(p, 0, 1).y - 12 < y && y < at(p, 0, 0).y + 12 ? line(p, data.states[data.own].bin) - x : -1));
        const p = beside.indexOf(Math.min(...beside.filter((far) => far > 0)));
        text.textContent = `AR hits ◂ τ = ${state.tau}`;
        place(text, { x: Math.max(line(p, state.bin) - 4, at(p, 0, 0).x + text.getBBox().width), y, "text-anchor": "end" });
      });
    }
  }

  /** In the figure of thresholds a line stands at τ, and a click or Enter moves τ. */
  function thresholds(svg, panels, at, under, current, series) {
    const marks = panels.map(() => drawn(svg, "line", "at-tau"));
    lines.push(({ point }) => marks.forEach((mark, p) => upright(mark, at, p, panels[p].at[point])));
    const choose = (k) => {
      const far = (state) => Math.abs(panels[0].at[state.point] - panels[0].at[k]);
      slider.value = data.states.reduce((best, state, s) => (far(state) < far(data.states[best]) ? s : best), 0);
      showTau();
    };
    svg.classList.add("choosable");
    svg.addEventListener("pointerdown", (event) => {
      const point = under(event);
      if (point) choose(point.k);
    });
    svg.addEventListener("pointermove", (event) => event.buttons && event.pointerType === "mouse" && choose(current().k));
    svg.addEventListener("keydown", (event) => event.key === "Enter" && choose(current().k));
  }

  for (const [name, panels] of Object.entries(data.figures)) figure(name, panels);
  for (const moved of ["scroll", "resize"]) addEventListener(moved, () => tip.hidden || putTip(), { passive: true, capture: true });
  if (slider) {
    byId("tau-bar").hidden = false;
    slider.addEventListener("input", showTau);
    byId("own-scales")?.addEventListener("change", showTau);
    byId("tau-back").addEventListener("click", () => {
      slider.value = data.own;
      showTau();
    });
    showTau();
  }
})();
