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

// What others take: at the pick those that fit the limit as it does, else those that keep as little.
function besides(limit, time) {
  const atPick = picked === picks.pick && picked >= 0;
  const times = atPick ? Object.entries(picks.beside) : Object.entries(picks.baselines).map(([name, points]) => [name, points[pickAt(points, limit)]?.[1] ?? null]);
  const words = times.map(([name, other]) => {
    if (other === null) return `${name} does not fit`;
    return time ? `${name} takes ${(other / time).toFixed(2)} times as long` : `${name} fits`;
  });
  return words.length ? `${atPick ? "Within the limit" : "Keeping no more"}: ${words.join("; ")}.` : "";
}

const gib = (bytes) => `${(bytes / GIB).toPrecision(4)} GiB`;

// The simulated peak of a point, and whether it is: else it lies between those of its neighbours.
function peakOf(index) {
  const memory = (at) => picks.frontier[at][0];
  const known = Object.keys(picks.peaks).map(Number).sort((a, b) => a - b);
  if (!known.length) return null;
  if (index in picks.peaks) return [picks.peaks[index], true];
  const above = known.find((at) => at > index);
  const below = known.filter((at) => at < index).pop();
  if (above === undefined || below === undefined) {
    const near = above ?? below;
    return [(memory(index) * picks.peaks[near]) / memory(near), false];
  }
  const share = (memory(index) - memory(below)) / (memory(above) - memory(below));
  return [picks.peaks[below] + share * (picks.peaks[above] - picks.peaks[below]), false];
}

function peakInWords(index) {
  const found = index < 0 ? null : peakOf(index);
  if (!found) return "";
  const [bytes, simulated] = found;
  const verdict = `${bytes > picks.limit ? "above" : "within"} the limit of ${gib(picks.limit)}`;
  const said = simulated
    ? `Its simulated peak is ${gib(bytes)}, ${verdict}`
    : `Its peak is not simulated; by those that are it is about ${gib(bytes)}, ${verdict}`;
  return `${said}${index === picks.pick ? ": this is the pick" : ""}.`;
}

function speed(time) {
  if (!picks.amount) return "";
  return `, ${(picks.amount / time).toLocaleString("en", { maximumSignificantDigits: 4 })} ${picks.unit} a second`;
}

let picked = -1;
function setLimit(limit, moveSlider) {
  picked = pickAt(picks.frontier, limit);
  const point = picks.frontier[picked];
  const shown = gib(limit);
  const named = point
    ? `Of plans that keep at most ${shown} the fastest takes ${costsOf(picked)}${speed(point[1])} (point ${picked})`
    : `Nothing fits: no plan keeps ${shown} or less; the least takes ${costsOf(0)}`;
  byId("pick").textContent = `${named}.`;
  byId("pick-peak").textContent = peakInWords(picked);
  byId("pick-beside").textContent = besides(limit, point && point[1]);
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

const splits = JSON.parse(byId("splits").textContent);

function made(name, parent, text, className) {
  const found = document.createElement(name);
  if (text !== undefined) found.textContent = text;
  if (className) found.className = className;
  parent.append(found);
  return found;
}

function nodeCell(row, [label, names, operator]) {
  const cell = made("th", row);
  cell.scope = "row";
  if (names) {
    const details = made("details", cell);
    made("summary", details, label);
    details.append(names);
  } else cell.append(label);
  cell.append(" ");
  made("span", cell, operator, "operator");
}

function splitCell(row, number, of) {
  const cell = made("td", row);
  if (of) cell.dataset.of = of;
  if (number < 0) return cell.append("not there");
  const [name, width, height, words] = splits.drawings[number];
  const span = made("span", cell, undefined, "split");
  const svg = element("svg", { class: "mesh", "aria-hidden": "true", width, height }, span);
  element("use", { href: `#${name}` }, svg);
  span.append(" ");
  made("span", span, words, "words");
}

// The table of a panel, when the panel is looked at.
function fill(body) {
  const at = Number(body.dataset.splits);
  delete body.dataset.splits;
  body.replaceChildren(...splits.rows.map((layer) => {
    const row = document.createElement("tr");
    nodeCell(row, layer);
    splitCell(row, layer[3][at]);
    made("td", row, layer[4][at], "number");
    return row;
  }));
}

function showPoints() {
  const [first, second] = ["first-point", "second-point"].map((id) => byId(id).value);
  for (const panel of document.querySelectorAll("[data-point]")) {
    panel.hidden = panel.dataset.point !== first && panel.dataset.point !== second;
    panel.style.order = panel.dataset.point === first ? 0 : 1;
    if (!panel.hidden) panel.querySelectorAll("[data-splits]").forEach(fill);
  }
  const body = byId("changes").tBodies[0];
  body.replaceChildren(...changedRows(Number(first), Number(second)));
  const [, one, other] = byId("changes").tHead.rows[0].cells;
  one.textContent = `point ${first}`;
  other.textContent = `point ${second}`;
}

function changedRows(first, second) {
  const [one, other] = [first, second].map((index) => picks.described.indexOf(index));
  const rows = splits.rows.filter((layer) => layer[3][one] !== layer[3][other]).map((layer) => {
    const row = document.createElement("tr");
    nodeCell(row, layer);
    splitCell(row, layer[3][one], `point ${first}`);
    splitCell(row, layer[3][other], `point ${second}`);
    return row;
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
