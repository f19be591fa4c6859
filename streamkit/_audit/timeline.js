// Draws what page.py put into DATA: {rows, libraries, names, work, waits}.
//   rows: [label]; libraries: [[label, colour]]; names: [text], each once
//   work: [[row, library, name, start, duration]] by row, then start; times in milliseconds
//   waits: [[row, time, other row, its time]]
// A bar is a thick line: one WebGL trace for each library draws any number of them. Names are drawn
// for the bars that are wide enough, and arrows where there are not too many, anew after each zoom.
"use strict";

const BAR = 18, ROW = 58, NAMED = 200, ARROWS = 300;
const chart = document.getElementById("chart"), tip = document.getElementById("tip");
const byRow = DATA.rows.map((_, row) => DATA.work.filter((bar) => bar[0] === row));

function bars(library, [label, colour]) {
  const x = [], y = [];
  for (const [row, whose, , start, duration] of DATA.work) {
    if (whose !== library) continue;
    x.push(start, start + duration, null);
    y.push(row, row, null);
  }
  return {
    type: "scattergl", mode: "lines+markers", name: label, x, y, hoverinfo: "skip",
    line: {color: colour, width: BAR},
    // a tick at each end, or a bar of less than a pixel would not be seen
    marker: {symbol: "line-ns", size: BAR / 2, line: {color: colour, width: 1}},
  };
}

function arrows(left, right) {
  const seen = DATA.waits.filter(([, start, , end]) => end >= left && start <= right);
  const lines = {x: [], y: []}, heads = {x: [], y: [], symbols: []};
  for (const [from, start, to, end] of seen.length > ARROWS ? [] : seen) {
    const down = to > from, tip = to + (down ? -1 : 1) * (BAR / 2 + 5) / ROW;
    lines.x.push(start, end, null);
    lines.y.push(from, tip, null);
    heads.x.push(end);
    heads.y.push(tip);
    heads.symbols.push(down ? "triangle-down" : "triangle-up");
  }
  return [lines, heads];
}

const label = {
  showarrow: false, xanchor: "left", xref: "paper", yref: "y", x: 0, borderpad: 1,
  font: {size: 12, color: "#444"}, bgcolor: "rgba(255,255,255,0.8)",
};
const rowLabels = DATA.rows.map((text, row) => (
  {...label, text: escaped(text), y: row - 0.36}));

function layout() {
  return {
    height: 130 + ROW * DATA.rows.length, dragmode: "zoom", hovermode: false,
    margin: {l: 12, r: 12, t: 34, b: 96}, paper_bgcolor: "#fff", plot_bgcolor: "#fafafa",
    legend: {orientation: "h", x: 0, y: -34 / (ROW * DATA.rows.length), yanchor: "top"},
    xaxis: {ticksuffix: " ms", zeroline: false, rangemode: "tozero"},
    yaxis: {range: [DATA.rows.length - 0.4, -0.7], fixedrange: true, visible: false},
  };
}

function pixels() {
  const axis = chart._fullLayout.xaxis;
  return {axis, perMs: axis._length / (axis.range[1] - axis.range[0])};
}

// For each row: when the last of the bars so far ends. A long one may reach beyond many after it.
const reach = new Map(byRow.map((row) => {
  let last = -Infinity;
  return [row, row.map(([, , , start, duration]) => (last = Math.max(last, start + duration)))];
}));

// The first bar of a row that reaches to a time.
function firstAt(row, time) {
  const ends = reach.get(row);
  let low = 0, high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function escaped(text) {  // Plotly reads annotations as HTML
  return text.replace(/[&<>]/g, (one) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[one]);
}

function names({axis, perMs}) {
  const [left, right] = axis.range, found = [];
  for (const bars of byRow) {
    for (let i = firstAt(bars, left); i < bars.length && bars[i][3] < right; i++) {
      const [row, , name, start, duration] = bars[i];
      const begin = Math.max(start, left), end = Math.min(start + duration, right);
      const letters = Math.floor((end - begin) * perMs / 7) - 1;
      if (letters < 3 || found.length >= NAMED) continue;
      const full = DATA.names[name];
      const text = full.length > letters ? full.slice(0, letters - 1) + "…" : full;
      found.push({
        text: escaped(text), x: (begin + end) / 2, y: row, showarrow: false,
        font: {color: "#fff", size: 11, family: "monospace"},
      });
    }
  }
  return found;
}

function redraw() {
  const view = pixels(), [lines, heads] = arrows(...view.axis.range);
  const first = DATA.libraries.length;
  const data = {
    x: [lines.x, heads.x], y: [lines.y, heads.y], "marker.symbol": [null, heads.symbols],
  };
  // not relayout, which would call for another redraw
  return Plotly.update(chart, data, {annotations: [...rowLabels, ...names(view)]},
                       [first, first + 1]);
}

function barAt(clientX, clientY) {
  const box = chart.getBoundingClientRect(), {axis, perMs} = pixels();
  const time = axis.p2d(clientX - box.left - axis._offset);
  const vertical = chart._fullLayout.yaxis;
  const height = vertical.p2d(clientY - box.top - vertical._offset);
  const row = byRow[Math.round(height)];
  if (!row || Math.abs(height - Math.round(height)) > BAR / ROW) return null;
  let best = null, distance = 4;  // a bar narrower than the pointer is found beside it
  for (let i = firstAt(row, time - 4 / perMs); i < row.length; i++) {
    const [, , , start, duration] = row[i];
    if ((start - time) * perMs > 4) break;
    const off = Math.max(start - time, time - start - duration, 0) * perMs;
    if (off <= distance) [best, distance] = [row[i], off];  // the later one lies on the other
  }
  return best;
}

function told(ms) {
  return ms < 1 ? `${(ms * 1000).toFixed(3)} µs` : `${ms.toFixed(3)} ms`;
}

function point(event) {
  const bar = barAt(event.clientX, event.clientY);
  tip.hidden = !bar;
  if (!bar) return;
  const [row, library, name, start, duration] = bar;
  tip.textContent = [
    DATA.names[name], DATA.libraries[library][0], DATA.rows[row],
    `${told(duration)}, from ${told(start)}`,
  ].join("\n");
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, room))}px`;
  tip.style.top = `${event.clientY + 16}px`;
}

const dark = "#222", extra = {type: "scattergl", x: [], y: [], hoverinfo: "skip"};
const traces = [
  ...DATA.libraries.map((library, i) => bars(i, library)),
  {...extra, mode: "lines", name: "wait", legendgroup: "wait", line: {color: dark, width: 1},
   showlegend: DATA.waits.length > 0},
  {...extra, mode: "markers", legendgroup: "wait", showlegend: false,
   marker: {color: dark, size: 9, symbol: "triangle-down"}},
];
const options = {responsive: true, scrollZoom: true, displaylogo: false,
                 modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]};
Plotly.newPlot(chart, traces, layout(), options).then(redraw).then(() => {
  chart.on("plotly_relayout", redraw);
  chart.addEventListener("mousemove", point);
  chart.addEventListener("mouseleave", () => { tip.hidden = true; });
  document.body.dataset.drawn = DATA.work.length;
});
