// The memory limit and its pick, and two points side by side.
"use strict";
const picks = JSON.parse(document.getElementById("picks").textContent);
const GIB = 2 ** 30;
const byId = (id) => document.getElementById(id);
const pointRows = byId("all-points").tBodies[0].rows;
const costsOf = (index) => `${pointRows[index].cells[1].textContent} per device, ${pointRows[index].cells[2].textContent} a step`;

// The fastest of [memory, time] points by ascending memory that fit, or -1.
function pickAt(points, limit) {
  let found = -1;
  points.forEach(([memory], index) => {
    if (memory <= limit) found = index;
  });
  return found;
}

function besides(limit, time) {
  return Object.entries(picks.baselines).map(([name, points]) => {
    const at = pickAt(points, limit);
    if (at < 0) return `${name} does not fit`;
    return time ? `${name} takes ${(points[at][1] / time).toFixed(2)} times as long` : `${name} fits`;
  });
}

function speed(time) {
  if (!picks.amount) return "";
  return `, ${(picks.amount / time).toLocaleString("en", { maximumSignificantDigits: 4 })} ${picks.unit} a second`;
}

let picked = -1;
function setLimit(limit, moveSlider) {
  picked = pickAt(picks.frontier, limit);
  const point = picks.frontier[picked];
  const shown = `${(limit / GIB).toPrecision(4)} GiB`;
  const named = point
    ? `Of plans that keep at most ${shown} the fastest takes ${costsOf(picked)}${speed(point[1])} (point ${picked})`
    : `Nothing fits: no plan keeps ${shown} or less; the least takes ${costsOf(0)}`;
  byId("pick").textContent = `${named}.`;
  byId("pick-beside").textContent = besides(limit, point && point[1]).join("; ");
  byId("pick-outline").textContent = point ? pointRows[picked].cells[3].textContent : "";
  if (moveSlider) byId("limit").value = picked + 1;
  byId("limit").setAttribute("aria-valuetext", named);
  if (document.activeElement !== byId("limit-gib")) {
    byId("limit-gib").value = (limit / GIB).toPrecision(4);
  }
  const described = nearestDescribed();
  byId("show-pick").textContent =
    described === picked ? "See how it splits each layer" : `See how point ${described}, the nearest that is described, splits each layer`;
  charts.frontier.chosen = picked;
  charts.frontier.moveMark("chosen", limit / GIB, `at most ${shown}`);
}

function nearestDescribed() {
  const below = picks.described.filter((index) => index <= picked);
  return below.length ? below[below.length - 1] : picks.described[0];
}

// Position 0 is below the least memory, position i at the memory of point i - 1.
function limitOf(position) {
  const points = picks.frontier;
  return position > 0 ? points[position - 1][0] : points[0][0] * 0.99;
}

byId("limit").addEventListener("input", () => setLimit(limitOf(Number(byId("limit").value)), false));
byId("limit-gib").addEventListener("input", () => {
  const typed = Number(byId("limit-gib").value);
  if (typed > 0) setLimit(typed * GIB, true);
  else byId("pick").textContent = "A limit is a number of GiB above 0.";
});
charts.frontier.click = (line, index) => {
  if (line === 0) setLimit(picks.frontier[index][0], true);
};
byId("show-pick").addEventListener("click", () => {
  const shown = String(nearestDescribed());
  const ends = [picks.described[0], picks.described[picks.described.length - 1]].map(String);
  byId("first-point").value = shown;
  if (byId("second-point").value === shown) byId("second-point").value = ends.find((end) => end !== shown) ?? shown;
  showPoints();
  byId("first-point").focus();
});

const panelOf = (index) => document.querySelector(`[data-point="${index}"]`);
function showPoints() {
  const [first, second] = ["first-point", "second-point"].map((id) => byId(id).value);
  for (const panel of document.querySelectorAll("[data-point]")) {
    panel.hidden = panel.dataset.point !== first && panel.dataset.point !== second;
    panel.style.order = panel.dataset.point === first ? 0 : 1;
  }
  const body = byId("changes").tBodies[0];
  body.replaceChildren(...changedRows(panelOf(first), panelOf(second)));
  const [, one, other] = byId("changes").tHead.rows[0].cells;
  one.textContent = `point ${first}`;
  other.textContent = `point ${second}`;
}

function changedRows(first, second) {
  const rows = [...first.querySelectorAll("[data-row]")].flatMap((one) => {
    const other = second.querySelector(`[data-row="${one.dataset.row}"]`);
    if (one.dataset.config === other.dataset.config) return [];
    const row = document.createElement("tr");
    const cells = [one.cells[0], one.cells[1], other.cells[1]];
    row.append(...cells.map((cell) => cell.cloneNode(true)));
    return [row];
  });
  if (rows.length) return rows;
  const row = document.createElement("tr");
  row.insertCell().textContent =
    first === second
      ? "nothing: it is the same point"
      : "operators and parameters are split alike; what is kept for backward or gathered again differs, see the collectives";
  row.cells[0].colSpan = 3;
  return [row];
}

for (const id of ["first-point", "second-point"]) byId(id).addEventListener("change", showPoints);
showPoints();
setLimit(picks.start, true);
