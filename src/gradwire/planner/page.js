"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1",
  "#7f7f7f", "#b8860b", "#00897b", "#c2185b", "#5c6bc0"];
const DASHES = ["", "6 3", "2 3"];
const POINTS = 33;
const SVG = "http://www.w3.org/2000/svg";
const state = Object.assign({}, DATA.start);
let picked = null;

const SLIDERS = [
  {name: "rate", title: "bandwidth", low: 1e6 / 8, high: 1e12 / 8, show: showRate},
  {name: "latency", title: "latency, one way", low: 1e-6, high: 0.2, show: showSeconds},
  {name: "workers", title: "workers", choices: DATA.workers, show: String},
  {name: "params", title: "parameters", low: 1e5, high: 1e12, show: showCount, whole: true},
  {name: "compute", title: "compute of a step", low: 1e-3, high: 100, show: showSeconds},
];

function scaled(value, steps, base, digits = 3) {
  for (const [unit, size] of steps) {
    if (value >= size) return `${Number((value / size).toPrecision(digits))} ${unit}`;
  }
  return `${Number((value / base[1]).toPrecision(digits))} ${base[0]}`;
}
function showRate(rate) {
  return scaled(8 * rate, [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6]], ["kbit/s", 1e3]);
}
function showSeconds(value) { return scaled(value, [["s", 1], ["ms", 1e-3]], ["µs", 1e-6]); }
function showBytes(value) {
  return scaled(value, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]], ["B", 1]);
}
function showCount(value) {
  return scaled(value, [["trillion", 1e12], ["billion", 1e9], ["million", 1e6]], ["thousand", 1e3]);
}

function fromPlace(slider, place) {
  if (slider.choices) return slider.choices[Number(place)];
  const value = slider.low * (slider.high / slider.low) ** (place / 1000);
  return slider.whole ? Math.round(value) : value;
}
function toPlace(slider, value) {
  if (slider.choices) {
    const gaps = slider.choices.map((each) => Math.abs(Math.log(each / value)));
    return gaps.indexOf(Math.min(...gaps));
  }
  return 1000 * Math.log(value / slider.low) / Math.log(slider.high / slider.low);
}

function makeSliders() {
  for (const slider of SLIDERS) {
    const label = document.createElement("label");
    const shown = document.createElement("b");
    const input = document.createElement("input");
    input.type = "range";
    input.id = slider.name;
    input.min = 0;
    input.max = slider.choices ? slider.choices.length - 1 : 1000;
    input.step = slider.choices ? 1 : "any";
    input.value = toPlace(slider, state[slider.name]);
    shown.textContent = slider.show(state[slider.name]);
    input.addEventListener("input", () => {
      state[slider.name] = fromPlace(slider, input.value);
      shown.textContent = slider.show(state[slider.name]);
      draw();
    });
    label.append(slider.title, shown, input);
    document.getElementById("sliders").append(label);
  }
}

function where(rate) {
  const times = state.workers === DATA.start.workers ? DATA.times : null;
  return Object.assign({}, state, {rate, cores: DATA.cores, cpu: DATA.cpu, times});
}
function worksHere() { return DATA.works[String(state.workers)]; }

function rowsAt(rate) {
  const here = where(rate), works = worksHere();
  const plain = predict(here, works[0]);
  return works.slice(1).map((work) => {
    const step = predict(here, work);
    return {codec: work.codec, step, speedup: plain / step, nmse: work.nmse, plain,
      bytes: bytesPerValue(work) * state.params};
  });
}

function sentence(rows) {
  const best = choice(rows, DATA.worth, DATA.mostError);
  const plain = rows[0].plain, at = `at ${showRate(state.rate)}`;
  if (best === null) {
    const beyond = showSeconds(Math.max(0, plain - state.compute));
    return `Do not compress ${at}: plain DDP takes ${showSeconds(plain)} a step, ${beyond} of them ` +
      `beyond computing, and no codec is ${Math.round(100 * (DATA.worth - 1))}% faster.`;
  }
  return `Use ${best.codec} ${at}: ${showSeconds(best.step)} a step instead of ` +
    `${showSeconds(plain)}, ${Number(best.speedup.toPrecision(2))} times as fast as plain DDP.`;
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A narrow screen gets a plot of its own, so that its words can be read. */
function layout() {
  const narrow = window.innerWidth < 600;
  const width = narrow ? 400 : 720, height = narrow ? 330 : 380;
  return {width, height, narrow, left: 56, right: width - 12, top: 12, bottom: height - 40};
}
function power10(power) {
  return power >= 4 ? `1e${power} s` : showSeconds(10 ** power);
}

function drawPlot() {
  const svg = document.getElementById("plot"), BOX = layout();
  svg.setAttribute("viewBox", `0 0 ${BOX.width} ${BOX.height}`);
  svg.replaceChildren();
  const low = SLIDERS[0].low, high = SLIDERS[0].high;
  const rates = Array.from({length: POINTS}, (_, i) => low * (high / low) ** (i / (POINTS - 1)));
  const works = worksHere();
  const curves = works.map((work) => rates.map((rate) => predict(where(rate), work)));
  const bottom = Math.floor(Math.log10(Math.min(...curves.flat())));
  const top = Math.ceil(Math.log10(Math.max(...curves.flat())));
  const x = (rate) => BOX.left +
    (BOX.right - BOX.left) * Math.log(rate / low) / Math.log(high / low);
  const y = (step) => BOX.bottom -
    (BOX.bottom - BOX.top) * (Math.log10(step) - bottom) / (top - bottom);
  for (let power = bottom; power <= top; power++) {
    const at = y(10 ** power);
    svg.append(element("line", {class: "grid", x1: BOX.left, x2: BOX.right, y1: at, y2: at}));
    const text = power10(power);
    svg.append(element("text", {x: BOX.left - 6, y: at + 4, "text-anchor": "end"}, text));
  }
  for (let rate = low; rate <= high * 1.001; rate *= 10) {
    const at = x(rate);
    svg.append(element("line", {class: "grid", x1: at, x2: at, y1: BOX.top, y2: BOX.bottom}));
    const ends = rate * 1.01 > high ? "end" : "middle";
    if (BOX.narrow && Math.round(Math.log10(rate / low)) % 2) continue;
    svg.append(element("text", {x: at, y: BOX.bottom + 18, "text-anchor": ends}, showRate(rate)));
  }
  curves.forEach((curve, i) => {
    const points = curve.map((step, k) => `${x(rates[k]).toFixed(1)},${y(step).toFixed(1)}`);
    const faint = picked !== null && picked !== works[i].codec ? " faint" : "";
    svg.append(element("polyline", {class: "curve" + faint, points: points.join(" "),
      stroke: color(i), "stroke-dasharray": dash(i), "data-codec": works[i].codec}));
  });
  const here = x(state.rate);
  svg.append(element("line", {class: "here", x1: here, x2: here, y1: BOX.top, y2: BOX.bottom}));
  svg.append(element("text", {x: (BOX.left + BOX.right) / 2, y: BOX.height - 6, "text-anchor": "middle"},
    "bandwidth of one worker's link"));
}
function color(i) { return i === 0 ? "currentColor" : COLORS[(i - 1) % COLORS.length]; }
function dash(i) { return DASHES[i % DASHES.length]; }

function swatch(i) {
  const made = element("svg", {class: "swatch", viewBox: "0 0 28 6"});
  made.append(element("line", {x1: 0, x2: 28, y1: 3, y2: 3, stroke: color(i), "stroke-width": 3,
    "stroke-dasharray": dash(i)}));
  return made;
}

function cell(text) {
  const made = document.createElement("td");
  made.textContent = text;
  return made;
}

function drawRows(rows) {
  const best = choice(rows, DATA.worth, DATA.mostError);
  const body = document.getElementById("rows");
  body.replaceChildren();
  const plain = {codec: "plain DDP", step: rows[0].plain, speedup: 1, nmse: 0,
    bytes: bytesPerValue(worksHere()[0]) * state.params};
  [plain, ...rows].forEach((row, i) => {
    const line = document.createElement("tr");
    const name = document.createElement("td");
    name.append(swatch(i), row.codec);
    line.append(name, cell(showSeconds(row.step)), cell(`${row.speedup.toFixed(2)}x`),
      cell(showBytes(row.bytes)), cell(row.nmse ? row.nmse.toExponential(1) : "0"));
    if (best !== null && best.codec === row.codec) line.className = "chosen";
    line.addEventListener("click", () => {
      picked = picked === row.codec ? null : row.codec;
      draw();
    });
    body.append(line);
  });
}

function draw() {
  const rows = rowsAt(state.rate);
  document.getElementById("advice").textContent = sentence(rows);
  drawPlot();
  drawRows(rows);
}

document.getElementById("notes").textContent = DATA.notes;
makeSliders();
window.addEventListener("resize", drawPlot);
draw();
