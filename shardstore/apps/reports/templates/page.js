"use strict";
for (const hidden of document.querySelectorAll(".controls, .zoom")) hidden.hidden = false;

for (const figure of document.querySelectorAll(".picture")) {
  const { rows, columns, down, across, nameDown, nameAcross } = figure.dataset;
  const frame = figure.querySelector(".frame"), picture = frame.querySelector("img"), shown = figure.querySelector("output");
  // A picture of few cells begins as large as one can see them.
  let scale = Math.max(1, Math.min(32, Math.floor(256 / Math.max(rows, columns))));
  function zoom(by, x, y) {
    const next = Math.min(64, Math.max(0.25, scale * by)), ratio = next / scale;
    scale = next;
    picture.style.width = `${columns * scale}px`;
    picture.style.height = `${rows * scale}px`;
    frame.scrollLeft = (frame.scrollLeft + x) * ratio - x;
    frame.scrollTop = (frame.scrollTop + y) * ratio - y;
  }
  zoom(1, 0, 0);
  for (const button of figure.querySelectorAll("button"))
    button.addEventListener("click", () => zoom(Number(button.dataset.by), frame.clientWidth / 2, frame.clientHeight / 2));
  frame.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = frame.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  function range(place, cells, chunks) {
    const cell = Math.min(cells - 1, Math.max(0, Math.floor(place * cells)));
    const first = Math.ceil(cell * chunks / cells), last = Math.max(first, Math.ceil((cell + 1) * chunks / cells) - 1);
    return first === last ? `${first}` : `${first} to ${last}`;
  }
  picture.addEventListener("mousemove", (event) => {
    const x = event.offsetX / picture.clientWidth, y = event.offsetY / picture.clientHeight;
    const parts = [[nameDown, y, rows, down], [nameAcross, x, columns, across]].filter(([name]) => name);
    shown.textContent = parts.map(([name, place, cells, chunks]) => `${name}: chunk ${range(place, Number(cells), Number(chunks))}`).join(", ");
  });
  picture.addEventListener("mouseleave", () => { shown.textContent = ""; });
}

document.getElementById("filter")?.addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const card of document.querySelectorAll(".card")) card.hidden = !card.dataset.path.toLowerCase().includes(wanted);
});

document.getElementById("sort")?.addEventListener("change", (event) => {
  const by = event.target.value, compare = {
    path: (a, b) => (a.dataset.path < b.dataset.path ? -1 : 1),
    nbytes: (a, b) => b.dataset.nbytes - a.dataset.nbytes,
    share: (a, b) => a.dataset.share - b.dataset.share,
    state: (a, b) => (a.dataset.state < b.dataset.state ? -1 : a.dataset.state > b.dataset.state ? 1 : 0),
  }[by];
  for (const group of document.querySelectorAll(".group")) group.append(...[...group.querySelectorAll(":scope > .card")].sort(compare));
});

addEventListener("beforeprint", () => { for (const closed of document.querySelectorAll("details")) closed.open = true; });
