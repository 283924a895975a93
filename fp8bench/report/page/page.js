"use strict";
// A click on a heading sorts its table by that column: numbers by size, words by letters, what is unknown last.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const key = (row, place) => {
    const text = row.cells[place].textContent.trim();
    const number = parseFloat(text.replace(/,/g, "").replace("\u2212", "-"));
    return { text, number: Number.isNaN(number) ? null : number, none: text === "" || text === "-" };
  };
  headings.forEach((heading, place) => {
    const numeric = heading.classList.contains("quantity") || heading.classList.contains("number");
    heading.querySelector("button").addEventListener("click", () => {
      const downward = heading.getAttribute("aria-sort") === "ascending"
        || (numeric && place > 0 && !heading.hasAttribute("aria-sort"));
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", downward ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [key(row, place), row]);
      rows.sort(([a], [b]) => {
        const unknown = numeric ? (one) => one.number === null : (one) => one.none;
        if (unknown(a) !== unknown(b)) return unknown(a) ? 1 : -1;
        if (unknown(a)) return 0;
        const order = numeric ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true });
        return downward ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}
