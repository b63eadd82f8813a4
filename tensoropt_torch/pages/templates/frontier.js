// The memory limit and its pick, and two points side by side.
"use strict";
const picks = JSON.parse(document.getElementById("picks").textContent);
const GIB = 2 ** 30;
const byId = (id) => document.getElementById(id);
const pointRows = byId("all-points").tBodies[0].rows;
const costsOf = (index) => `keeps ${pointRows[index].cells[1].textContent} per device and takes ${pointRows[index].cells[3].textContent} a step`;

// As the page prints it; what is typed is compared with that.
const inGib = (bytes) => (bytes >= GIB ? (bytes / GIB).toFixed(2) : (bytes / GIB).toPrecision(4));
const inBytes = (bytes) => (bytes >= GIB ? `${inGib(bytes)} GiB` : `${Number((bytes / 2 ** 20).toPrecision(4))} MiB`);

// The fastest of [memory, time] points by ascending memory that fit, or -1.
function pickAt(points, limit) {
  let found = -1;
  points.forEach(([memory], index) => {
    if (memory <= limit || Number(inGib(memory)) <= limit / GIB) found = index;
  });
  return found;
}

// What others take: at the pick those that fit the limit as it does, else those that keep as little.
function besides(limit, time) {
  const atPick = picked === picks.pick && picked >= 0;
  const times = atPick ? Object.entries(picks.beside) : Object.entries(picks.baselines).map(([name, points]) => [name, points[pickAt(points, limit)]?.[1] ?? null]);
  const words = times.map(([name, other]) => {
    if (other === null) return `${name} ${atPick ? "does not fit" : "keeps more"}`;
    if (!time) return `${name} fits`;
    const share = 100 * Math.abs(other / time - 1);
    if (share < 0.05) return `${name} is as fast`;
    return `${name} is ${share < 0.5 ? share.toPrecision(1) : share.toFixed(0)}% ${other > time ? "slower" : "faster"}`;
  });
  const basis = atPick ? `Others whose peaks fit the limit of ${inBytes(picks.limit)}` : `Others that keep no more than ${inBytes(limit)}, whatever their peaks`;
  return words.length ? `${picks.bySums && atPick ? `Others that keep no more than the limit of ${inBytes(picks.limit)}` : basis}: ${words.join("; ")}.` : "";
}

function peakInWords(index) {
  const found = index < 0 ? null : picks.peaks[index];
  if (!found) return "";
  const [bytes, simulated] = found;
  const verdict = `${bytes > picks.limit ? "above" : "within"} the limit of ${inBytes(picks.limit)}`;
  const said = simulated
    ? `Its simulated peak is ${inBytes(bytes)}, ${verdict}`
    : `Its peak is not simulated; by those that are it is about ${inBytes(bytes)}, ${verdict}`;
  return `${said}${index === picks.pick ? ": this is the pick" : ""}.`;
}

function speed(index) {
  return picks.amount ? `, ${pointRows[index].cells[4].textContent} ${picks.unit} a second` : "";
}

let picked = -1;
function setLimit(limit) {
  picked = pickAt(picks.frontier, limit);
  const point = picks.frontier[picked];
  const shown = inBytes(limit);
  const named = point
    ? `Of plans that keep at most ${shown} the fastest ${costsOf(picked)}${speed(picked)} (point ${picked})`
    : `Nothing fits: no plan keeps ${shown} or less; the smallest ${costsOf(0)}`;
  say(`${named}.`, peakInWords(picked), besides(limit, point && point[1]), point ? picks.outlines[picks.outline[picked]] : "");
  byId("limit").value = Math.max(0, picked);
  byId("limit").setAttribute("aria-valuetext", named);
  if (document.activeElement !== byId("limit-gib")) byId("limit-gib").value = inGib(limit);
  const described = nearestDescribed();
  byId("show-pick").textContent =
    described === picked ? "See how it splits each layer" : `See how point ${described}, the nearest that is described, splits each layer`;
  charts.frontier.chosen = picked;
  charts.frontier.moveMark("chosen", limit / GIB, `keeps at most ${shown}`);
}

function say(...texts) {
  ["pick", "pick-peak", "pick-beside", "pick-outline"].forEach((id, i) => (byId(id).textContent = texts[i] ?? ""));
  byId("show-pick").hidden = texts.length < 2;
}

// By what it keeps.
function nearestDescribed() {
  const memory = (index) => picks.frontier[Math.max(0, index)][0];
  const far = (index) => Math.abs(memory(index) - memory(picked));
  return picks.described.reduce((best, index) => (far(index) < far(best) ? index : best));
}

byId("limit").addEventListener("input", () => setLimit(picks.frontier[Number(byId("limit").value)][0]));
byId("limit-gib").addEventListener("input", () => {
  const typed = Number(byId("limit-gib").value);
  if (typed > 0) return setLimit(typed * GIB);
  say("A limit is a number of GiB above 0.");
  charts.frontier.chosen = -1;
  charts.frontier.moveMark("chosen", null, "");
});
charts.frontier.click = (line, index) => {
  if (line === 0) setLimit(picks.frontier[index][0]);
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
setLimit(picks.start);
// Long tables are opened on demand where there is little room.
if (matchMedia("screen and (max-width: 40rem)").matches) {
  for (const details of document.querySelectorAll("details.long")) details.open = false;
}
