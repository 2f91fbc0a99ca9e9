// Without this script the page shows all; with it, codecs can be picked out, hidden and read off.
const names = JSON.parse(document.getElementById("names").textContent);
const cards = [...document.querySelectorAll(".card")];
const off = new Set();

const drawn = index => document.querySelectorAll(`[data-series="${index}"]`);

function show() {
  cards.forEach((card, index) => {
    card.setAttribute("aria-pressed", String(!off.has(index)));
    drawn(index).forEach(part => part.classList.toggle("off", off.has(index)));
  });
}

function pick(index) {
  document.body.classList.toggle("picking", index !== null);
  names.forEach((_, each) => drawn(each).forEach(part => part.classList.toggle("picked", each === index)));
}

function alone(index) {
  const wasAlone = off.size === names.length; // the first of two clicks has hidden it
  off.clear();
  if (!wasAlone) names.forEach((_, each) => each !== index && off.add(each));
}

cards.forEach((card, index) => {
  card.addEventListener("click", event => {
    if (event.detail === 2) alone(index);
    else if (!off.delete(index)) off.add(index);
    show();
  });
  card.addEventListener("pointerenter", () => pick(index));
  card.addEventListener("focus", () => pick(index));
  for (const leave of ["pointerleave", "blur"]) card.addEventListener(leave, () => pick(null));
});

const REACH = 30; // pixels around the pointer

function nearest(svg, x, y) {
  let best = null, least = REACH;
  const box = svg.getBoundingClientRect();
  for (const line of svg.querySelectorAll("polyline:not(.off)")) {
    for (const point of line.points) {
      const left = point.x / 1000 * box.width, top = point.y / 1000 * box.height;
      const distance = Math.hypot(left - x, top - y);
      if (distance < least) [best, least] = [{index: Number(line.dataset.series), point, left, top}, distance];
    }
  }
  return best;
}

function number(value) {
  return value.toLocaleString("en", {maximumSignificantDigits: 4});
}

function read(axis, place) {
  const {low, high, is_log, unit} = axis;
  const value = is_log ? low * (high / low) ** place : low + (high - low) * place;
  return unit === "%" ? `${number(100 * value)}%` : `${number(value)} ${unit}`;
}

document.querySelectorAll(".plot").forEach(plot => {
  const svg = plot.querySelector("svg"), tip = document.createElement("div");
  const axes = JSON.parse(plot.dataset.axes);
  tip.className = "tip";
  tip.hidden = true;
  plot.append(tip);
  plot.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const found = nearest(svg, event.clientX - box.left, event.clientY - box.top);
    tip.hidden = !found;
    pick(found ? found.index : null);
    if (!found) return;
    const y = read(axes.y, 1 - found.point.y / 1000), x = read(axes.x, found.point.x / 1000);
    tip.textContent = `${names[found.index]}: ${y} at ${x}`;
    tip.style.top = `${Math.max(found.top - 34, 0)}px`;
    const isRight = found.left > box.width / 2;
    tip.style.left = isRight ? "auto" : `${found.left + 12}px`;
    tip.style.right = isRight ? `${box.width - found.left + 12}px` : "auto";
  });
  plot.addEventListener("pointerleave", () => { tip.hidden = true; pick(null); });
});
