// Tables that are in the page as HTML: sorted by a click or Enter on a head; the workers' filtered by words.

function sortable(table) {
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    const button = element("button", "sort");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      sortRows(table, column, up);
    });
  });
}

// The number a cell begins with, durations in seconds; else its text.
function cellKey(row, column) {
  const text = row.cells[column].textContent;
  const match = text.replace(/,/g, "").match(/^-?\d[\d.]*(e[-+]?\d+)?/);
  const unit = { min: 60, h: 3600, days: 86400 }[text.split(" ")[1]] || 1;
  return match ? parseFloat(match[0]) * unit : text;
}

function sortRows(table, column, up) {
  const rows = Array.from(table.tBodies[0].rows, (row) => [cellKey(row, column), row]);
  rows.sort(([a], [b]) => {
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return up ? order : -order;
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function filterWorkers() {
  const input = document.getElementById("find-worker"), table = document.querySelector("#worker-table table");
  if (!input || !table) return;
  const rows = Array.from(table.tBodies[0].rows, (row) => [row, row.textContent.toLowerCase()]);
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      found += !row.hidden;
    }
    document.getElementById("found-worker").textContent = `${many(found)} of ${many(rows.length)} shown`;
  };
  input.addEventListener("input", show);
  show();
}

function versionList(run, jump) {
  const v = columns(run.versions);
  const plain = (title, column, width, number = true, hint = "") => ({
    title, width, number, hint, cell: (i) => column.text(i), key: (i) => column.value(i),
  });
  const ratio = (i) => v.achieved.numbers[i] / v.bound.numbers[i];
  const list = new List(document.getElementById("version-list"), "versions", [
    { ...plain("version", v.version, "4.2rem"), press: (i) => jump(v.t.numbers[i]) },
    plain("topology", v.topology, "5rem", false),
    plain("workers", v.workers, "4.4rem"),
    plain("GB", v.GB, "4.4rem"),
    plain("achieved s", v.achieved, "5.4rem", true, "until the last planned worker had it"),
    plain("predicted s", v.predicted, "5.6rem", true, "for the last worker, by the plan"),
    plain("bound s", v.bound, "4.6rem", true, "least time that the links allow"),
    { title: "ratio", hint: "achieved / bound", width: "3.6rem", number: true, cell: (i) => shortNumber(ratio(i)), key: ratio },
    plain("missed", v.never, "4.2rem", true, "planned workers that never had it"),
    plain("later", v.later, "3.4rem", true, "workers that caught up singly"),
    plain("reroutes", v.reroutes, "4.8rem", true, "times its way was changed because a relay failed"),
    plain("egress USD", v.egress, "5.6rem"),
    plain("reason", v.reason, "minmax(12rem, 1fr)", false),
  ]);
  const texts = Array.from(v.version.numbers, (n, i) => `${n} ${v.topology.text(i)} ${v.reason.text(i)}`.toLowerCase());
  const input = document.getElementById("find-version");
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = Uint32Array.from(texts.keys()).filter((i) => words.every((word) => texts[i].includes(word)));
    list.show(hits);
    document.getElementById("found-version").textContent = `${many(hits.length)} of ${many(texts.length)} versions`;
  };
  input.addEventListener("input", show);
  show();
  return list;
}
