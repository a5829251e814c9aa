// Texts with a contrast below WCAG's 4.5 : 1 to the ground that they stand on.
(() => {
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [.2126, .7152, .0722][k], 0);
  const colour = (text) => text.match(/[\d.]+/g).map(Number);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = colour(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] === 1) return c; } };
  const bad = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility({visibilityProperty: true}) || e.closest('noscript, :disabled, option')) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(colour(e.closest('svg') ? style.fill : style.color)), light(ground(e) ?? [255, 255, 255])];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.add(`${e.tagName} ${e.getAttribute('class')} ${walker.currentNode.data.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return [...bad];
})()
