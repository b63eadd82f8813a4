// The memory limit and its pick, and two points side by side.
"use strict";
const picks = JSON.parse(document.getElementById("picks").textContent);
const GIB = 2 ** 30;
const byId = (id) => document.getElementById(id);
const frontierChart = chartOf("frontier");

// The fastest of points by ascending memory that fit, or -1.
function pickAt(points, limit) {
  let found = -1;
  points.forEach((point, index) => {
    if (point.memory <= limit) found = index;
  });
  return found;
}

function besides(limit, time) {
  return Object.entries(picks.baselines).map(([name, points]) => {
    const at = pickAt(points, limit);
    if (at < 0) return `${name} does not fit`;
    return time ? `${name} takes ${(points[at].time / time).toFixed(3)} times as long` : name;
  });
}

let picked = -1;
function setLimit(limit, moveSlider) {
  picked = pickAt(picks.frontier, limit);
  const point = picks.frontier[picked];
  const named = point
    ? `mini_time picks point ${picked}: ${point.text}`
    : `nothing fits; the least needs ${picks.frontier[0].text}`;
  const others = besides(limit, point && point.time);
  byId("pick").textContent = [named, ...others].join("; ");
  byId("pick-outline").textContent = point ? point.outline : "";
  if (moveSlider) byId("limit").value = picked + 1;
  byId("limit").setAttribute("aria-valuetext", `${(limit / GIB).toPrecision(4)} GiB: ${named}`);
  if (document.activeElement !== byId("limit-gib")) {
    byId("limit-gib").value = (limit / GIB).toPrecision(6);
  }
  const shown = nearestDescribed();
  byId("show-pick").textContent =
    shown === picked ? `Show what point ${shown} does` : `Show what point ${shown} does, the nearest described`;
  drawLimit(limit, point);
}

function nearestDescribed() {
  const below = picks.described.filter((index) => index <= picked);
  return below.length ? below[below.length - 1] : picks.described[0];
}

function drawLimit(limit, point) {
  const x = limit / GIB;
  const shape = { type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { dash: "dash" } };
  shape.line.color = "#888";
  Plotly.relayout(frontierChart, { shapes: x > 0 ? [shape] : [] });
  const sizes = picks.frontier.map((_, index) => (point && index === picked ? 14 : 7));
  Plotly.restyle(frontierChart, { "marker.size": [sizes] }, [0]);
}

// Position 0 is below the least memory, position i at the memory of point i - 1.
function limitOf(position) {
  const points = picks.frontier;
  return position > 0 ? points[position - 1].memory : points[0].memory * 0.99;
}

byId("limit").addEventListener("input", () => setLimit(limitOf(Number(byId("limit").value)), false));
byId("limit-gib").addEventListener("input", () => {
  const typed = Number(byId("limit-gib").value);
  if (typed > 0) setLimit(typed * GIB, true);
  else byId("pick").textContent = "a limit is a number of GiB above 0";
});
frontierChart.on("plotly_click", ({ points }) => {
  if (points[0].curveNumber === 0) setLimit(picks.frontier[points[0].pointNumber].memory, true);
});
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
setLimit(picks.limit, true);
