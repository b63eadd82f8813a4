// Draws every chart of the page from its figure, and lets axes be logarithmic.
"use strict";
document.documentElement.classList.add("scripted");
const chartOf = (name) => document.querySelector(`[data-chart="${name}"]`);
for (const div of document.querySelectorAll("[data-chart]")) {
  const figure = JSON.parse(document.getElementById(`figure-${div.dataset.chart}`).textContent);
  Plotly.newPlot(div, figure.data, figure.layout, { displaylogo: false, responsive: true });
}
for (const box of document.querySelectorAll("[data-log]")) {
  box.addEventListener("change", () => {
    const type = box.checked ? "log" : "linear";
    Plotly.relayout(chartOf(box.dataset.of), {
      [`${box.dataset.log}.type`]: type,
      [`${box.dataset.log}.autorange`]: true,
    });
  });
}
for (const button of document.querySelectorAll("[data-reset]")) {
  button.addEventListener("click", () => {
    Plotly.relayout(chartOf(button.dataset.reset), {
      "xaxis.autorange": true,
      "yaxis.autorange": true,
    });
  });
}
// Details are printed open.
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details.in-print")) details.open = true;
});
