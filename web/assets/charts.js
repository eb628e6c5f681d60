// Replaces the drawn charts by ones that zoom. Everything works without it.
"use strict";
(function () {
  const root = document.querySelector("[data-series]");
  if (!root || typeof uPlot === "undefined") return;
  const strokes = ["#0b4ea2", "#a1160a", "#0a5c2b", "#6b4b00"];
  const dashes = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

  // Curves of several attempts share one axis of steps; a step that a curve
  // does not have is a gap in it.
  function aligned(curves) {
    return uPlot.join(curves.map((curve) => [curve.steps, curve.values]));
  }

  function label(curve) {
    return curve.attempt === null ? curve.name : curve.name + ", attempt " + curve.attempt;
  }

  function draw(figure, curves) {
    const canvas = figure.querySelector(".canvas");
    const series = curves.map((curve, number) => ({
      label: label(curve),
      stroke: strokes[number % 4],
      dash: dashes[number % 4],
      width: 1.5,
      spanGaps: true,
    }));
    const ink = getComputedStyle(document.body).color;
    const axis = { stroke: ink, grid: { stroke: "rgba(128,128,128,0.25)" } };
    const options = {
      width: canvas.clientWidth,
      height: 240,
      scales: { x: { time: false } },
      axes: [Object.assign({ label: "step" }, axis), Object.assign({ size: 70 }, axis)],
      series: [{ label: "step" }].concat(series),
    };
    const fallback = canvas.firstElementChild;
    const plot = new uPlot(options, aligned(curves), canvas);
    if (fallback) fallback.remove();
    window.addEventListener("resize", () => plot.setSize({ width: canvas.clientWidth, height: 240 }));
  }

  fetch(root.dataset.series)
    .then((response) => (response.ok ? response.json() : Promise.reject(new Error(response.statusText))))
    .then((body) => {
      for (const figure of root.querySelectorAll(".chart")) {
        const prefix = figure.dataset.prefix;
        const curves = body.series.filter((curve) => curve.name.startsWith(prefix) && curve.steps.length > 0);
        if (curves.length > 0) draw(figure, curves);
      }
      root.dataset.drawn = "true";
    })
    .catch((error) => console.error("the drawn charts stay:", error.message));
})();
