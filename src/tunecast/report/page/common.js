'use strict';
// Pages are whole without scripts; this adds buttons that copy, and tables sorted by a click on a column's name.
for (const button of document.querySelectorAll('.copyable .copy')) {
  button.hidden = false;
  button.addEventListener('click', async () => {
    const text = button.parentNode.querySelector('pre');
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    let done = true;
    try { await navigator.clipboard.writeText(text.textContent.trimEnd()); } catch { done = document.execCommand('copy'); }
    button.textContent = done ? 'Copied' : 'Press Ctrl+C';
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });
}
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener('click', () => {
      const up = head.getAttribute('aria-sort') !== 'ascending';
      const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
      const numbers = rows.every(([value]) => value === '' || !Number.isNaN(Number(value)));
      rows.sort(([one], [other]) => (up ? 1 : -1) * (numbers ? one - other : one.localeCompare(other, 'en', { numeric: true })));
      table.tBodies[0].append(...rows.map(([, row]) => row));
      for (const each of heads) each.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    });
  });
}
