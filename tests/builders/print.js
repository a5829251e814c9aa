// What a printed page must not have: controls, what is cut off or repeated on each page, and a ground that is not white.
(() => {
  const bad = [];
  const style = (e, part) => getComputedStyle(e, part);
  const name = (e) => `${e.tagName.toLowerCase()}.${e.getAttribute('class')} ${e.innerText?.slice(0, 20) ?? ''}`;
  const all = (selector) => [...document.body.querySelectorAll(selector)].filter((e) => e.checkVisibility({visibilityProperty: true}));
  const clear = (colour) => /, 0\)$/.test(colour);
  for (const e of all('input, select, textarea, nav, summary, [role=tab], [role=slider]')) bad.push(`control ${name(e)}`);
  for (const e of all('button')) { // one that looks like the text around it is text
    const arrow = style(e, '::after');
    const marked = arrow.content !== 'none' && arrow.display !== 'none';
    if (marked || parseFloat(style(e).borderTopWidth) || !clear(style(e).backgroundColor)) bad.push(`button ${name(e)}`);
  }
  for (const e of all('table, svg, figure, section, p')) if (e.getBoundingClientRect().right > innerWidth + .5) bad.push(`cut off ${name(e)}`);
  for (const e of all('.scroll')) if (style(e).overflowX !== 'visible') bad.push(`scrolls ${name(e)}`);
  for (const e of all('tfoot')) if (style(e).display === 'table-footer-group') bad.push(`foot on each page ${name(e)}`);
  for (const e of all('figure, .chart, table tr')) if (style(e).breakInside !== 'avoid') bad.push(`parted ${name(e)}`);
  for (const e of all('body *')) if (['fixed', 'sticky'].includes(style(e).position)) bad.push(`${style(e).position} ${name(e)}`);
  if (style(document.body).backgroundColor !== 'rgb(255, 255, 255)') bad.push(`ground ${style(document.body).backgroundColor}`);
  return bad;
})()
