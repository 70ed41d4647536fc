"use strict";
(function () {
  const MOST = 300;

  function searchDecisions() {
    const data = document.getElementById("decision-data");
    if (!data) return;
    const rows = JSON.parse(data.textContent);
    const texts = rows.map((row) => row.join(" ").toLowerCase());
    const input = document.getElementById("find");
    const body = document.querySelector("#decision-table tbody");
    const found = document.getElementById("found");
    function show() {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const hits = rows.filter((row, i) => words.every((word) => texts[i].includes(word)));
      body.replaceChildren(...hits.slice(0, MOST).map(line));
      found.textContent = hits.length > MOST ? `${hits.length} found, the first ${MOST} shown` : `${hits.length} found`;
    }
    function line(row) {
      const tr = document.createElement("tr");
      row.forEach((cell, i) => {
        const td = document.createElement("td");
        td.textContent = cell === null ? "" : i === 4 ? Number(cell.toPrecision(4)) : cell;
        if (i === 0 || i === 4) td.className = "n";
        tr.append(td);
      });
      return tr;
    }
    input.addEventListener("input", show);
    show();
  }

  function value(row, column) {
    const text = row.cells[column].textContent;
    const match = text.replace(/,/g, "").match(/^-?[\d.]+/);
    const unit = { min: 60, h: 3600, days: 86400 }[text.split(" ")[1]] || 1;
    return match ? parseFloat(match[0]) * unit : text;
  }

  function sortBy(table, column, up) {
    const rows = Array.from(table.tBodies[0].rows);
    rows.sort((a, b) => {
      const x = value(a, column), y = value(b, column);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows);
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      head.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        sortBy(table, column, up);
      });
    });
  });
  searchDecisions();
})();
