"use strict";
// A click on the head of a column sorts its table by it: the best numbers first, text from a to z, again
// the other way round. Empty cells and rows of class "last" stay at the end.
for (const table of document.querySelectorAll("table")) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => head.addEventListener("click", () => sort(table, heads, column)));
}

function sort(table, heads, column) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => ({ row, key: row.cells[column].dataset.key, last: row.classList.contains("last") }));
  const numeric = rows.every(({ key, last }) => last || key === "" || isFinite(key));
  const before = heads[column].getAttribute("aria-sort");
  const least = /rank|behind|loss|seconds/.test(heads[column].textContent); // is best
  const descending = before ? before === "ascending" : numeric && !least;
  rows.sort((a, b) => {
    if (a.last !== b.last) return a.last ? 1 : -1;
    if ((a.key === "") !== (b.key === "")) return a.key === "" ? 1 : -1;
    const order = numeric ? a.key - b.key : a.key.localeCompare(b.key);
    return descending ? -order : order;
  });
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  body.append(...rows.map(({ row }) => row));
}
