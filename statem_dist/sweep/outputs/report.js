// The page is whole without this: it adds filters to the legend and arrow keys to the map.
const map = document.querySelector(".map");
const cells = [...document.querySelectorAll(".map a")];
const chosen = new Set();
let entry = cells[0];

// The map is one stop of the tab key: the cell that was visited last.
function enter(cell) {
  if (!cell) return;
  entry.tabIndex = -1;
  entry = cell;
  entry.tabIndex = 0;
}

for (const cell of cells) cell.tabIndex = -1;
enter(entry);
for (const button of document.querySelectorAll(".legend button")) {
  button.disabled = false;
  button.addEventListener("click", () => {
    const state = button.dataset.state;
    chosen.has(state) ? chosen.delete(state) : chosen.add(state);
    button.setAttribute("aria-pressed", chosen.has(state));
    map.classList.toggle("filtered", chosen.size > 0);
    for (const cell of cells) cell.classList.toggle("kept", chosen.has(cell.className[0]));
    for (const row of map.tBodies[0].rows) row.hidden = chosen.size > 0 && !row.querySelector("a.kept");
    enter(chosen.size > 0 ? cells.find((cell) => cell.classList.contains("kept")) : cells[0]);
  });
}
map.addEventListener("focusin", (event) => enter(event.target.closest("a")));
map.addEventListener("keydown", (event) => {
  const here = event.target.closest("a");
  const row = here && here.closest("tr");
  if (!row) return;
  const inRow = [...row.querySelectorAll("a")];
  const index = inRow.indexOf(here);
  const step = { ArrowUp: "previousElementSibling", ArrowDown: "nextElementSibling" }[event.key];
  let next = { ArrowLeft: inRow[index - 1], ArrowRight: inRow[index + 1], Home: inRow[0], End: inRow.at(-1) }[event.key];
  for (let other = step && row[step]; other && !next; other = other[step]) {
    const found = other.hidden ? [] : other.querySelectorAll("a");
    next = found[Math.min(index, found.length - 1)];
  }
  if (next) {
    next.focus();
    event.preventDefault();
  }
});
