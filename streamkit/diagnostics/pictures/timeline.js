// Draws what page.py put into DATA: {rows, libraries, names, work, waits, missing}.
//   rows: [label]; libraries: [[label, colour, colour of text on it]]; names: [text], each once
//   work: [[row, library, name, full name, place]] by row, then place
//   waits, missing: [[row, place, other row, its place]]
// The chart shows an order: what has place n is drawn from n to n + 1.
"use strict";

const BAR = 20, PAD = 12, AXIS = 26, ROW = 48, LISTED = 100, ARROWS = 300;
const byId = (id) => document.getElementById(id);
const canvas = document.querySelector("canvas"), paint = canvas.getContext("2d"), tip = byId("tip");
const work = DATA.work.map(([row, library, name, full, place]) => ({
  row, library, name: DATA.names[name], full: DATA.names[full], start: place, end: place + 1,
}));
const byRow = DATA.rows.map(() => []);
for (const one of work) byRow[one.row].push(one);
const places = work.reduce((most, one) => Math.max(most, one.end), 0);
const whole = [-0.02 * (places || 1), 1.02 * (places || 1)];
let view = whole, chosen = null, drag = null, matching = new Set(work), listed = LISTED;

// -- where everything is ------------------------------------------------------------------------

const tops = byRow.map((_, row) => AXIS + row * ROW + PAD);
const bottom = AXIS + byRow.length * ROW, height = bottom + 4;

function x(place) {
  return (place - view[0]) / (view[1] - view[0]) * canvas.clientWidth;
}

function placeAt(pixel) {
  return view[0] + pixel / canvas.clientWidth * (view[1] - view[0]);
}

// The first bar of a row that reaches to a place.
function firstAt(row, place) {
  let low = 0, high = byRow[row].length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (byRow[row][middle].end < place) low = middle + 1;
    else high = middle;
  }
  return low;
}

function* seen(row, [left, right] = view) {
  const bars = byRow[row];
  for (let i = firstAt(row, left); i < bars.length && bars[i].start <= right; i++) {
    yield bars[i];
  }
}

function barAt(pixel, y) {
  const row = tops.findLastIndex((top) => y >= top);
  if (row < 0 || y > tops[row] + BAR) return null;
  const near = placeAt(pixel + 4) - placeAt(pixel);
  let best = null, distance = near;  // a bar narrower than the pointer is found beside it
  for (const one of seen(row, [placeAt(pixel) - near, placeAt(pixel) + near])) {
    const off = Math.max(one.start - placeAt(pixel), placeAt(pixel) - one.end, 0);
    if (off <= distance) [best, distance] = [one, off];
  }
  return best;
}

// -- the chart ----------------------------------------------------------------------------------

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name);
}

function draw() {
  const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = width * scale;
  canvas.height = height * scale;
  paint.setTransform(scale, 0, 0, scale, 0, 0);
  for (let row = 0; row < tops.length; row += 2) {
    paint.fillStyle = colour("--band");
    paint.fillRect(0, tops[row] - PAD, width, (tops[row + 1] ?? bottom + PAD) - tops[row]);
  }
  axis(width);
  arrows(DATA.waits, "--ink", []);  // below the bars, which have names
  for (let row = 0; row < tops.length; row++) for (const one of seen(row)) bar(one, width);
  arrows(DATA.missing, "--missing", [5, 4]);
  if (drag) {
    paint.fillStyle = "rgba(100, 140, 200, 0.3)";
    paint.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), height);
  }
}

function axis(width) {
  const least = (view[1] - view[0]) * 80 / width, power = 10 ** Math.floor(Math.log10(least));
  const round = [1, 2, 5, 10].map((n) => n * power).find((one) => one >= least);
  const step = Math.max(round, 1);
  paint.font = "12px system-ui, sans-serif";
  paint.textAlign = "center";
  for (let n = Math.ceil(view[0] / step); n * step <= view[1]; n++) {
    paint.fillStyle = colour("--line");
    paint.fillRect(x(n * step), AXIS - 6, 1, height - AXIS + 6);
    const middle = x(n * step + 0.5), isPlace = n >= 0 && n * step < places;
    paint.fillStyle = colour("--soft");
    if (isPlace && middle > 24 && middle < width - 24) {
      paint.fillText(`${n * step + 1}`, middle, AXIS - 10);
    }
  }
}

function bar(one, width) {
  const left = Math.max(x(one.start), -1), right = Math.min(x(one.end), width + 1);
  const [, fill, ink] = DATA.libraries[one.library], top = tops[one.row];
  paint.globalAlpha = matching.has(one) ? 1 : 0.15;
  paint.fillStyle = fill;
  // a bar of less than a pixel would not be seen; the gap tells two neighbours apart
  const wide = Math.max(right - left - (right - left > 4 ? 1 : 0), 1.5);
  paint.fillRect(left, top, wide, BAR);
  if (one === chosen) {
    paint.strokeStyle = colour("--ink");
    paint.lineWidth = 2;
    paint.strokeRect(left - 1, top - 1, wide + 2, BAR + 2);
  }
  const letters = Math.floor((wide - 8) / 6.7);
  if (letters >= 3) {
    const text = one.name.length > letters ? `${one.name.slice(0, letters - 1)}…` : one.name;
    paint.fillStyle = ink;
    paint.font = "11px ui-monospace, monospace";
    paint.textAlign = "left";
    paint.fillText(text, left + 4, top + 14);
  }
  paint.globalAlpha = 1;
}

function inView(waits) {
  const found = waits.filter(([, start, , end]) => end >= view[0] && start <= view[1]);
  return found.length > ARROWS ? [] : found;  // more could not be read
}

function arrows(waits, ink, dashes) {
  paint.strokeStyle = paint.fillStyle = colour(ink);
  paint.lineWidth = dashes.length ? 2 : 1.2;
  paint.setLineDash(dashes);
  for (const [from, start, to, end] of inView(waits)) {
    const down = to > from, sign = down ? 1 : -1;
    const tipY = down ? tops[to] - 2 : tops[to] + BAR + 1;
    paint.beginPath();
    paint.moveTo(x(start), tops[from] + (down ? BAR : 0));
    paint.lineTo(x(end), tipY - 6 * sign);
    paint.stroke();
    paint.beginPath();
    paint.moveTo(x(end), tipY);
    paint.lineTo(x(end) - 4, tipY - 8 * sign);
    paint.lineTo(x(end) + 4, tipY - 8 * sign);
    paint.fill();
  }
  paint.setLineDash([]);
}

function look(left, right) {
  const least = 0.1;
  view = right - left < least ? [left - least, right + least] : [left, right];
  draw();
}

function zoom(factor, at = (view[0] + view[1]) / 2) {
  const left = at - (at - view[0]) * factor, right = at + (view[1] - at) * factor;
  look(Math.max(left, whole[0]), Math.min(right, whole[1]));
}

// -- the list -----------------------------------------------------------------------------------

function added(parent, tag, text = "", set = {}) {
  const made = Object.assign(document.createElement(tag), set);
  made.textContent = text;
  parent.append(made);
  return made;
}

function swatch(parent, fill) {
  const made = document.createElement("i");
  made.style.background = fill;
  parent.prepend(made);
}

const inOrder = [...work].sort((one, other) => one.start - other.start);

function filter() {
  const words = byId("search").value.toLowerCase(), queue = Number(byId("queue").value);
  const shown = [...byId("legend").querySelectorAll("input")].map((box) => box.checked);
  const fits = (one) => shown[one.library] && (queue < 0 || one.row === queue)
    && [one.name, one.full, DATA.libraries[one.library][0], DATA.rows[one.row]]
      .some((text) => text.toLowerCase().includes(words));
  matching = new Set(inOrder.filter(fits));
  list();
  draw();
}

function list() {
  const body = document.querySelector("tbody"), found = [...matching];
  body.replaceChildren();
  for (const one of found.slice(0, listed)) {
    const row = added(body, "tr"), [label, fill] = DATA.libraries[one.library];
    row.className = one === chosen ? "chosen" : "";
    added(row, "td", `${one.end}`);
    const what = added(row, "td");
    added(what, "button", one.name, {onclick: () => choose(one)});
    if (one.full !== one.name) added(what, "small", one.full);
    swatch(added(row, "td", label), fill);
    added(row, "td", DATA.rows[one.row]);
  }
  byId("found").textContent = `${found.length} of ${work.length}`;
  byId("more").hidden = found.length <= listed;
}

function choose(one) {
  chosen = one;
  look(Math.max(one.start - 4, whole[0]), Math.min(one.end + 4, whole[1]));
  list();
  canvas.scrollIntoView({block: "nearest"});
}

// -- what the user does -------------------------------------------------------------------------

function point(event) {
  const one = drag ? null : barAt(event.offsetX, event.offsetY);
  tip.hidden = !one;
  if (!one) return;
  const lines = [one.name, DATA.libraries[one.library][0], DATA.rows[one.row],
                 `number ${one.end} in the order`];
  if (one.full !== one.name) lines.push(one.full);
  tip.textContent = lines.join("\n");
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, room))}px`;
  tip.style.top = `${event.clientY + 16}px`;
}

canvas.addEventListener("pointerdown", (event) => {
  drag = {from: event.offsetX, to: event.offsetX};
  if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (drag) {
    drag.to = event.offsetX;
    draw();
  }
  point(event);
});
canvas.addEventListener("pointerup", () => {
  const ends = [placeAt(drag.from), placeAt(drag.to)].sort((one, other) => one - other);
  const wide = Math.abs(drag.to - drag.from);
  drag = null;
  if (wide > 5) look(...ends);
  else draw();
});
canvas.addEventListener("pointercancel", () => { drag = null; draw(); });
canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
canvas.addEventListener("dblclick", () => look(...whole));
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;  // else the page scrolls
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, placeAt(event.offsetX));
}, {passive: false});
byId("in").onclick = () => zoom(0.5);
byId("out").onclick = () => zoom(2);
byId("all").onclick = () => look(...whole);
byId("more").onclick = () => { listed *= 4; list(); };
byId("search").oninput = byId("queue").onchange = () => { listed = LISTED; filter(); };
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

DATA.libraries.forEach(([label, fill], library) => {
  const count = work.filter((one) => one.library === library).length;
  const line = added(byId("legend"), "label", `${label} (${count})`);
  swatch(line, fill);
  const box = Object.assign(document.createElement("input"), {type: "checkbox", checked: true});
  box.onchange = filter;
  line.prepend(box);
});
if (DATA.waits.length) added(byId("legend"), "span", "arrow: a queue waits for another");
if (DATA.missing.length) added(byId("legend"), "span", "dashed arrow: a wait that is missing");
DATA.rows.forEach((label, row) => {
  added(byId("labels"), "div", label, {title: label}).style.top = `${tops[row] - 4}px`;
  added(byId("queue"), "option", label, {value: row});
});
filter();
document.body.dataset.drawn = work.length;
