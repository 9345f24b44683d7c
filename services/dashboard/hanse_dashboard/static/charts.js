// Replaces the server's drawing of curves with one that answers to the pointer. The numbers are in the page.
(() => {
  "use strict";
  if (!window.uPlot) return;
  const HUES = ["#0b7a85", "#c2660f", "#6a57a5", "#2f7d4f", "#b23a6f", "#5b6f0f"];
  const charts = new Map();

  function colour(name, fallback) {
    const probe = document.createElement("span");
    probe.style.color = "var(" + name + ")";
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found || fallback;
  }
  function number(value) {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
    return Math.abs(value) >= 0.001 && Math.abs(value) < 1000 ? value.toFixed(4) : value.toPrecision(4);
  }
  function series(line, place, distinct) {
    const base = { label: line.name, value: (_, v) => number(v), points: { size: 5 }, spanGaps: true };
    if (distinct) return { ...base, stroke: HUES[place % HUES.length], width: 2, dash: line.scope === "unseen" ? [7, 4] : undefined };
    if (line.scope === "pooled") return { ...base, stroke: colour("--accent"), width: 2.5 };
    if (line.scope === "unseen") return { ...base, stroke: "#c2660f", width: 2.2, dash: [7, 4] };
    if (line.scope === "aggregation") return { ...base, stroke: "#7d6bb0", width: 2 };
    return { ...base, stroke: colour("--thin"), width: 1.1, points: { show: false } };
  }
  function draw(box) {
    const source = document.getElementById(box.dataset.chart);
    if (!source) return;
    let data;
    try { data = JSON.parse(source.textContent); } catch { return; }
    if (!data.lines || !data.lines.length) return;
    const known = charts.get(box), columns = [data.rounds, ...data.lines.map((line) => line.values)];
    if (known && known.shape === data.lines.map((l) => l.name).join("|")) { known.plot.setData(columns); return; }
    const muted = colour("--muted"), rule = colour("--line");
    const axis = { stroke: muted, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 }, font: "12px ui-sans-serif, system-ui, sans-serif" };
    box.replaceChildren();
    const plot = new window.uPlot({
      width: Math.max(280, box.clientWidth), height: 280,
      scales: { x: { time: false, range: (plot, low, high) => (plot.data[0].length === 1 ? [plot.data[0][0] - 1, plot.data[0][0] + 1] : [low, high]) } },
      legend: { live: true },
      cursor: { focus: { prox: 24 } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }, { ...axis, size: 62, values: (_, ticks) => ticks.map(number) }],
      series: [{ label: "round" }, ...data.lines.map((line, place) => series(line, place, "distinct" in box.dataset))],
    }, columns, box);
    charts.set(box, { plot, shape: data.lines.map((l) => l.name).join("|") });
  }
  function all() { document.querySelectorAll("[data-chart]").forEach(draw); }
  let waiting = 0;
  window.addEventListener("resize", () => {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(() => charts.forEach(({ plot }, box) => plot.setSize({ width: Math.max(280, box.clientWidth), height: 280 })), 120);
  });
  document.addEventListener("hanse:drawn", all);
  all();
})();
