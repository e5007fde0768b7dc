// What a dot is, at once: a browser shows an SVG's own title only after a while. Its text stays, as the dot's name.
const plot = document.querySelector('.pareto .plot');
if (plot) {
  const tip = plot.querySelector('.tip');
  for (const dot of plot.querySelectorAll('.dot')) {
    const title = dot.querySelector('title');
    const text = title.textContent.trim();
    dot.setAttribute('aria-label', text.replaceAll('\n', ', '));
    title.remove();
    const show = () => {
      tip.textContent = text;
      tip.hidden = false;
      const [box, at] = [plot.getBoundingClientRect(), dot.querySelector('circle').getBoundingClientRect()];
      const left = at.left - box.left + at.width / 2, top = at.top - box.top;
      tip.style.left = Math.max(0, Math.min(left - tip.offsetWidth / 2, box.width - tip.offsetWidth)) + 'px';
      tip.style.top = (top > tip.offsetHeight + 8 ? top - tip.offsetHeight - 8 : top + at.height + 8) + 'px';
    };
    const hide = () => { tip.hidden = true; };
    for (const name of ['pointerenter', 'focus']) dot.addEventListener(name, show);
    for (const name of ['pointerleave', 'blur']) dot.addEventListener(name, hide);
  }
  document.addEventListener('keydown', press => { if (press.key === 'Escape') tip.hidden = true; });
}
