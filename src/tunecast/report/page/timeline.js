// The page is whole without this script; it adds what the pointer tells and the zoom to one step.
const data = JSON.parse(document.getElementById('data').textContent);
const view = document.querySelector('.window');
const inner = document.querySelector('.inner');
const across = document.querySelector('.across');
const cursor = document.querySelector('.cursor');
const running = (deltas, unit = 1) => { let sum = 0; return deltas.map(delta => sum += delta * unit); };
const event = running(data.event);
const roles = data.roles.map(deltas => running(deltas, data.unit));
const reserved = running(data.reserved, data.unit);
let first = 0, last = data.events, at = data.peak;

function size(bytes) {
  for (const [unit, name] of [[2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']])
    if (bytes >= unit) return (bytes / unit).toFixed(2) + ' ' + name;
  return bytes + ' B';
}
function put(name, text) {
  const cell = document.querySelector(`[data-show="${name}"]`);
  if (cell) cell.textContent = text;
  return cell;
}
function show(index, pointed) {
  at = index;
  const band = data.bands.find(([, , begin, end]) => begin <= event[index] && event[index] < end);
  put('title', pointed ? `At event ${event[index].toLocaleString('en')} of ${data.events.toLocaleString('en')}` : 'At the peak');
  put('phase', band ? band[4] : '');
  for (const name of ['op', 'module', 'source']) put(name, data.text[data[name][index]]);
  let allocated = 0;
  roles.forEach((bytes, role) => {
    allocated += bytes[index];
    put('role' + role, size(bytes[index])).parentNode.classList.toggle('none', !bytes[index]);
  });
  put('allocated', size(allocated));
  put('reserved', size(reserved[index]));
  cursor.classList.toggle('on', pointed);
  cursor.style.left = 100 * (event[index] - first) / (last - first) + '%';
}
function latest(position) {
  let low = 0, high = event.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (event[middle] <= position) low = middle; else high = middle - 1;
  }
  return low;
}
if (event.length) {
  view.addEventListener('pointermove', move => {
    const box = view.getBoundingClientRect();
    show(latest(first + (move.clientX - box.left) / box.width * (last - first)), true);
  });
  view.addEventListener('pointerleave', () => show(data.peak, false));
  view.addEventListener('keydown', press => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[press.key];
    if (!way) return;
    show(Math.min(event.length - 1, Math.max(0, at + way)), true);
    press.preventDefault();
  });
}
for (const button of document.querySelectorAll('.zoom button')) button.addEventListener('click', () => {
  [first, last] = [Number(button.dataset.begin), Number(button.dataset.end)];
  inner.style.width = 100 * data.events / (last - first) + '%';
  inner.style.left = -100 * first / (last - first) + '%';
  across.firstChild.textContent = 'event ' + first.toLocaleString('en');
  across.lastChild.textContent = last.toLocaleString('en');
  for (const other of button.parentNode.children) other.setAttribute('aria-pressed', other === button);
  show(data.peak, false);
});
