// Draws the charts of the page in SVG, as wide as there is room: at first, when that changes, and
// when a reader chooses other axes. `charts[name]` is the drawing of a chart.
"use strict";
document.documentElement.classList.add("scripted");
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 64, right: 18, top: 42, bottom: 46 };
const SHAPES = [
  "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z", "M-4 -4H4V4H-4Z", "M0 -5L5 0L0 5L-5 0Z", "M0 -5L5 4H-5Z",
  "M-5 -2H-2V-5H2V-2H5V2H2V5H-2V2H-5Z", "M0 5L5 -4H-5Z", "M-4 -4L4 4M4 -4L-4 4", "M-5 0L-2 -4H2L5 0L2 4H-2Z",
];
const MOST_SYMBOLS = 12; // of a line with many points, but the first
const NEAR = 24; // pixels between the pointer and what it points to

function element(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
const shown = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });

// From values to pixels, with ticks.
class Axis {
  constructor(values, logarithmic, from, to) {
    const usable = values.filter((value) => Number.isFinite(value) && (!logarithmic || value > 0));
    let [least, most] = [Math.min(...usable), Math.max(...usable)];
    if (!usable.length) [least, most] = [1, 2];
    this.scale = logarithmic ? Math.log10 : (value) => value;
    if (!logarithmic) least = Math.min(0, least);
    [least, most] = [this.scale(least), this.scale(most)];
    const room = 0.05 * (most - least) || 0.1 * Math.abs(most) || 1;
    this.least = logarithmic || least < 0 ? least - room : least;
    this.most = most + room;
    Object.assign(this, { logarithmic, from, to });
  }
  at(value) {
    return this.from + ((this.scale(value) - this.least) / (this.most - this.least)) * (this.to - this.from);
  }
  ticks(each = 80) {
    const room = Math.max(3, Math.abs(this.to - this.from) / each);
    return this.logarithmic ? this.decades(room) : this.even(room);
  }
  even(room, least = this.least, most = this.most) {
    const rough = (most - least) / room;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let i = Math.ceil(least / step); i * step <= most; i++) found.push(i * step);
    return found;
  }
  decades(room) {
    const all = (factors) => {
      const found = [];
      for (let power = Math.floor(this.least); power <= this.most; power++) {
        for (const factor of factors) {
          const value = factor * 10 ** power;
          const place = Math.log10(value);
          if (place >= this.least && place <= this.most) found.push(value);
        }
      }
      return found;
    };
    const choices = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]].map(all);
    const found = choices.find((ticks) => ticks.length <= 1.2 * room) ?? choices[choices.length - 1];
    return found.length > 2 ? found : this.even(room, 10 ** this.least, 10 ** this.most);
  }
}

class Drawing {
  constructor(div, chart) {
    Object.assign(this, { div, chart, chosen: -1, all: false, click: null });
    this.log = [chart.logarithmic, chart.logarithmic];
    this.plot = div.querySelector(".plot");
    this.tip = div.querySelector(".tip");
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event, true));
    this.plot.addEventListener("pointerleave", () => (this.tip.hidden = true));
    new ResizeObserver(() => this.width !== this.plot.clientWidth && this.draw()).observe(this.plot);
    this.legend();
    this.draw();
  }
  legend() {
    const list = this.div.querySelector(".legend");
    if (this.chart.lines.length < 2) return;
    this.chart.lines.forEach(({ name }, index) => {
      const item = document.createElement("li");
      const key = element("svg", { width: 24, height: 12, viewBox: "-12 -6 24 12", class: `series s${index % 8}` }, item);
      element("path", { d: "M-12 0H12", class: "stroke" }, key);
      element("path", { d: SHAPES[index % 8], class: "symbol" }, key);
      item.append(name, document.createElement("span"));
      list.append(item);
    });
  }
  // Lines that begin beyond what is drawn are said to.
  saidBeyond() {
    this.div.querySelectorAll(".legend li span").forEach((span, index) => {
      const line = this.chart.lines[index];
      span.textContent = line.x.length && !this.seen(line).length ? ` (beyond, from ${shown(line.x[0])})` : "";
    });
  }
  beyond(x) {
    return !this.all && this.chart.mostX !== null && x > this.chart.mostX;
  }
  seen(line) {
    return line.x.map((x, i) => [x, line.y[i]]).filter(([x]) => !this.beyond(x));
  }
  draw() {
    const { chart, plot } = this;
    const [width, height] = [plot.clientWidth || 640, plot.clientHeight || 380];
    this.width = plot.clientWidth;
    this.saidBeyond();
    const points = chart.lines.flatMap((line) => this.seen(line));
    const [across, up] = ["x", "y"].map((axis) => chart.marks.filter((mark) => mark.axis === axis && mark.value !== null).map((mark) => mark.value));
    this.x = new Axis([...points.map(([x]) => x), ...across], this.log[0], MARGIN.left, width - MARGIN.right);
    const marked = this.across(width);
    this.top = MARGIN.top + 13 * Math.max(0, ...marked.map(({ row }) => row));
    this.y = new Axis([...points.map(([, y]) => y), ...up], this.log[1], height - MARGIN.bottom, this.top);
    plot.replaceChildren();
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, plot);
    this.axes(svg, width, height);
    const id = `inside-${this.div.dataset.chart}`;
    const inside = element("clipPath", { id }, svg);
    element("rect", { x: MARGIN.left, y: this.top - 6, width: width - MARGIN.left - MARGIN.right + 8, height: height - this.top - MARGIN.bottom + 6 }, inside);
    if (chart.equal) this.diagonal(element("g", { "clip-path": `url(#${id})` }, svg));
    chart.lines.map((line, index) => [line, index]).reverse().forEach(([line, index]) => {
      this.series(element("g", { class: `series s${index % 8}`, "clip-path": `url(#${id})` }, svg), line, index);
    });
    this.marks(svg, width, marked);
    this.labels(svg, width, marked);
  }
  axes(svg, width, height) {
    const [xTitle, yTitle] = this.chart.titles;
    const group = element("g", { class: "axes" }, svg);
    const [left, bottom] = [MARGIN.left, height - MARGIN.bottom];
    for (const tick of this.x.ticks()) {
      const at = this.x.at(tick);
      element("path", { d: `M${at} ${this.top}V${bottom}` }, group);
      element("text", { x: at, y: bottom + 17, "text-anchor": "middle" }, group, shown(tick));
    }
    for (const tick of this.y.ticks(this.y.logarithmic ? 55 : 32)) {
      const at = this.y.at(tick);
      element("path", { d: `M${left} ${at}H${width - MARGIN.right}` }, group);
      element("text", { x: left - 7, y: at + 4, "text-anchor": "end" }, group, shown(tick));
    }
    element("text", { x: (left + width) / 2, y: height - 8, "text-anchor": "middle", class: "title" }, group, xTitle);
    element("text", { x: 4, y: 14, class: "title" }, group, yTitle);
  }
  diagonal(group) {
    const ends = [Math.max(this.x.least, this.y.least), Math.min(this.x.most, this.y.most)];
    const at = (axis, end) => axis.from + ((end - axis.least) / (axis.most - axis.least)) * (axis.to - axis.from);
    element("path", { d: ends.map((end, i) => `${i ? "L" : "M"}${at(this.x, end)} ${at(this.y, end)}`).join(""), class: "equal" }, group);
  }
  series(group, line, index) {
    const seen = line.x.map((x) => !this.beyond(x));
    const at = line.x.map((x, i) => [this.x.at(x), this.y.at(line.y[i])]).filter((_, i) => seen[i]);
    const faint = (i) => line.faint.includes(i);
    if (line.form !== "points" && at.length) this.path(group, line, at, faint);
    if (line.form === "area") {
      for (const [i] of line.labels) element("circle", { cx: this.x.at(line.x[i]), cy: this.y.at(line.y[i]), r: 5, class: "dot" }, group);
      return;
    }
    const every = index === 0 ? 1 : Math.ceil(at.length / MOST_SYMBOLS);
    at.forEach(([x, y], i) => {
      if (i % every) return;
      const chosen = index === 0 && i === this.chosen;
      const named = line.labels.some(([labelled]) => labelled === i);
      const scale = chosen ? 2 : named ? 1.2 : at.length > MOST_SYMBOLS && index === 0 ? 0.6 : 1;
      const kind = `symbol${chosen ? " chosen" : ""}${faint(i) ? " faint" : ""}`;
      element("path", { d: SHAPES[index % 8], transform: `translate(${x} ${y}) scale(${scale})`, class: kind }, group);
    });
  }
  // In two pieces: what is faint is drawn so.
  path(group, line, at, faint) {
    const stepped = line.form === "steps";
    const piece = ([x, y]) => (stepped ? `H${x}V${y}` : `L${x} ${y}`);
    const from = at.findIndex((_, i) => faint(i));
    const solid = from < 0 ? at : at.slice(0, from);
    const end = stepped && from < 0 ? `H${this.x.to}` : stepped && from > 0 ? `H${at[from][0]}` : "";
    const joined = (points) => `M${points[0].join(" ")}${points.slice(1).map(piece).join("")}`;
    if (line.form === "area") element("path", { d: `${joined(at)}V${this.y.from}H${at[0][0]}Z`, class: "fill" }, group);
    if (solid.length) element("path", { d: joined(solid) + end, class: "stroke" }, group);
    if (from >= 0) element("path", { d: `${joined(at.slice(from))}${stepped ? `H${this.x.to}` : ""}`, class: "stroke faint" }, group);
  }
  // Marks of the x axis, with the rows above the chart in which their labels have room. A label
  // stands above the lines that it passes: of those that end at their line the last is the highest.
  across(width) {
    const ends = []; // where the labels of each row end
    const placed = this.chart.marks
      .filter(({ axis, value }) => axis === "x" && value !== null)
      .map((mark) => ({ ...mark, x: this.x.at(mark.value) }))
      .filter(({ x }) => x >= MARGIN.left && x <= width)
      .map((mark) => ({ ...mark, end: mark.x > width / 2 }));
    placed.sort((one, other) => other.end - one.end || (one.end ? other.x - one.x : one.x - other.x));
    for (const mark of placed) {
      const long = 6.5 * mark.label.length + 6;
      const [from, to] = mark.end ? [mark.x - long, mark.x] : [mark.x, mark.x + long];
      let row = ends.findIndex(([least, most]) => from > most || to < least);
      if (row < 0) row = ends.length;
      ends[row] = [Math.min(from, ends[row]?.[0] ?? from), Math.max(to, ends[row]?.[1] ?? to)];
      mark.row = row;
    }
    return placed;
  }
  // Marks of the y axis, with where their labels end: at the right, or before a line there.
  up(width, across) {
    return this.chart.marks.filter(({ axis }) => axis === "y").map((mark) => {
      const [right, long] = [width - MARGIN.right, 6.5 * mark.label.length];
      const end = Math.min(right, ...across.map(({ x }) => x).filter((x) => x > right - long));
      return { ...mark, y: this.y.at(mark.value), end: end - 4, long };
    });
  }
  marks(svg, width, across) {
    const group = element("g", { class: "marks" }, svg);
    for (const { y, end, label, name } of this.up(width, across)) {
      element("path", { d: `M${MARGIN.left} ${y}H${width - MARGIN.right}`, class: name }, group);
      element("text", { x: end, y: y + 14, "text-anchor": "end" }, group, label);
    }
    for (const { x, end, row, label, name } of across) {
      element("path", { d: `M${x} ${MARGIN.top - 14 + 13 * row}V${this.y.from}`, class: name }, group);
      element("text", { x: x + (end ? -4 : 4), y: MARGIN.top - 5 + 13 * row, "text-anchor": end ? "end" : "start" }, group, label);
    }
  }
  // Names of points, each where it covers the least of other names, of named and chosen points
  // and of lines across the chart.
  labels(svg, width, marked) {
    const named = this.chart.lines.flatMap((line) => line.labels.map(([index, text]) => ({ line, index, text })));
    const at = ({ line, index }) => [this.x.at(line.x[index]), this.y.at(line.y[index])];
    const [ours] = this.chart.lines;
    const dots = named.map(at);
    if (this.chosen >= 0) dots.push(at({ line: ours, index: this.chosen }));
    const taken = dots.map(([x, y]) => [x - 9, y - 9, x + 9, y + 9, 4]);
    taken.push(...marked.map(({ x }) => [x - 2, this.top, x + 2, this.y.from, 2]));
    taken.push(...this.up(width, marked).map(({ y, end, long }) => [end - long, y, end, y + 16, 8]));
    for (const one of named) {
      const [x, y] = at(one);
      if (this.beyond(one.line.x[one.index])) continue;
      const long = 8 * one.text.length;
      const places = [-22, 30, -38, 46, -54].flatMap((up, far) => [1, -1, 0].map((side) => [side, up + 4, far]));
      places.push([1, 4, 0.5], [-1, 4, 0.5]);
      const box = ([side, down]) => {
        const from = side > 0 ? x + 10 : side < 0 ? x - 10 - long : x - long / 2;
        return [from, y + down - 12, from + long, y + down + 3];
      };
      const cost = (place) => {
        const [left, top, right, bottom] = box(place);
        if (left < MARGIN.left || right > width - 2 || top < this.top - 4 || bottom > this.y.from) return 1000;
        const hit = ([l, t, r, b]) => left < r && right > l && top < b && bottom > t;
        return place[2] + taken.filter(hit).reduce((sum, covered) => sum + covered[4], 0);
      };
      const best = places.reduce((found, place) => (cost(place) < cost(found) ? place : found));
      const [left, top, right, bottom] = box(best);
      taken.push([left, top, right, bottom, 8]);
      element("text", { x: left, y: bottom - 3, class: "point-label" }, svg, one.text);
    }
  }
  // Where a named mark is; it is drawn again at once.
  moveMark(name, value, label) {
    const mark = this.chart.marks.find((one) => one.name === name);
    Object.assign(mark, { value, label });
    this.draw();
  }
  nearest(event) {
    const box = this.plot.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    let found = null;
    this.chart.lines.forEach((line, number) => line.texts.forEach((text, index) => {
      const [x, y] = [this.x.at(line.x[index]), this.y.at(line.y[index])];
      const far = Math.hypot(x - px, y - py);
      if (far < (found ? found.far : NEAR)) found = { far, number, index, x, y, name: line.name, text };
    }));
    return found;
  }
  point(event, pressed = false) {
    const found = this.nearest(event);
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.textContent = this.chart.lines.length > 1 ? `${found.name}: ${found.text}` : found.text;
    const left = Math.min(found.x + 12, this.width - this.tip.offsetWidth - 4);
    Object.assign(this.tip.style, { left: `${Math.max(0, left)}px`, top: `${found.y + 14}px` });
    if (pressed && this.click) this.click(found.number, found.index);
  }
}

const charts = {};
for (const div of document.querySelectorAll("[data-chart]")) {
  const name = div.dataset.chart;
  charts[name] = new Drawing(div, JSON.parse(document.getElementById(`chart-${name}`).textContent));
}
for (const box of document.querySelectorAll("[data-log]")) {
  box.addEventListener("change", () => {
    const drawing = charts[box.dataset.of];
    drawing.log[Number(box.dataset.log)] = box.checked;
    drawing.draw();
  });
}
for (const box of document.querySelectorAll("[data-all]")) {
  box.addEventListener("change", () => {
    charts[box.dataset.all].all = box.checked;
    charts[box.dataset.all].draw();
  });
}
// Details are printed open.
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details.in-print")) details.open = true;
});
document.documentElement.classList.add("drawn");
