// Markers, lines and heat-map. Points are pixels of their image, the centre of the top-left one being (0, 0).

const PALETTE = ["#56b4e9", "#e69f00", "#2fbf94", "#f0e442", "#d98fbd", "#ff8552", "#a5b4fc"];
const RAMP = [[59, 15, 112], [140, 41, 129], [222, 73, 104], [254, 159, 109], [252, 253, 191]];
const SVG = "http://www.w3.org/2000/svg";

export function colourOf(index) {
  return PALETTE[index % PALETTE.length];
}

function blend(stops, value) {
  const place = Math.min(Math.max(value, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((start, channel) => start + (stops[low + 1][channel] - start) * (place - low));
}

// Neighbours in A get similar colours, so that a line can be followed.
function positionColour(match, size) {
  const angle = Math.atan2(match.y0 - size.height / 2, match.x0 - size.width / 2);
  return `hsl(${Math.round((180 * angle) / Math.PI + 180)} 90% 62%)`;
}

// At most `count` of the matches, best first, spread evenly over image A.
export function spread(matches, count, size) {
  const side = Math.sqrt((size.width * size.height) / count);
  const columns = Math.ceil(size.width / side);
  const taken = new Map();
  const ranked = matches.map((match) => {
    const cell = Math.floor((match.y0 + 0.5) / side) * columns + Math.floor((match.x0 + 0.5) / side);
    taken.set(cell, (taken.get(cell) ?? 0) + 1);
    return { match, turn: taken.get(cell) };
  });
  return ranked.sort((a, b) => a.turn - b.turn).slice(0, count).map(({ match }) => match);
}

// Position of an image pixel on the overlay.
export function toScreen(view, size, x, y, stage) {
  const box = view.getBoundingClientRect();
  const origin = stage.getBoundingClientRect();
  return [
    box.left - origin.left + ((x + 0.5) / size.width) * box.width,
    box.top - origin.top + ((y + 0.5) / size.height) * box.height,
  ];
}

// The image pixel under the pointer, clamped to the image.
export function toPixel(view, size, event) {
  const box = view.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * size.width - 0.5;
  const y = ((event.clientY - box.top) / box.height) * size.height - 0.5;
  return [Math.min(Math.max(x, 0), size.width - 1), Math.min(Math.max(y, 0), size.height - 1)];
}

function add(parent, name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

function addMarker(overlay, [cx, cy], colour, label, side, kind = "") {
  const group = add(overlay, "g", { class: `marker ${kind}`, "data-side": side, "data-label": label });
  add(group, "circle", { cx, cy, r: 8, class: "shade", "stroke-width": 5 });
  add(group, "circle", { cx, cy, r: 8, class: "halo", "stroke-width": 3 });
  add(group, "circle", { cx, cy, r: 8, fill: "none", stroke: colour, "stroke-width": 3, class: kind });
  add(group, "circle", { cx, cy, r: 1.6, fill: colour, class: "centre" });
  if (label) add(group, "text", { x: cx + 11, y: cy - 9 }).textContent = label;
}

function addLine(overlay, [x1, y1], [x2, y2], colour, isDashed, width) {
  const ends = { x1, y1, x2, y2, "stroke-linecap": "round", ...(isDashed && { "stroke-dasharray": "6 6" }) };
  if (width > 1.5) add(overlay, "line", { ...ends, stroke: "rgb(0 0 0 / 55%)", "stroke-width": width + 2 });
  add(overlay, "line", { ...ends, class: "match", stroke: colour, "stroke-width": width });
}

// Redraws everything: mutual matches below, then points, then the preview.
export function draw({ stage, overlay, views, sizes, points, active, preview, mutual, useLines, cursor }) {
  overlay.replaceChildren();
  if (!sizes[0] || !sizes[1]) return;
  const place = (side, x, y) => toScreen(views[side], sizes[side], x, y, stage);
  for (const match of mutual.toReversed()) {
    const [from, to] = [place(0, match.x0, match.y0), place(1, match.x1, match.y1)];
    const colour = positionColour(match, sizes[0]);
    if (useLines) addLine(overlay, from, to, colour, false, 1.2);
    for (const [cx, cy] of [from, to]) add(overlay, "circle", { cx, cy, r: 2.4, fill: colour, class: "mutual" });
  }
  points.forEach((match, index) => {
    const colour = colourOf(index);
    const [from, to] = [place(0, match.x0, match.y0), place(1, match.x1, match.y1)];
    if (useLines) addLine(overlay, from, to, colour, !match.is_mutual, index === active ? 3 : 2);
    const label = points.length <= 40 || index === active ? String(index + 1) : "";
    addMarker(overlay, from, colour, label, 0);
    addMarker(overlay, to, colour, label, 1);
  });
  if (preview) {
    addMarker(overlay, place(0, preview.x0, preview.y0), "#ffffff", "", 0, "ghost");
    addMarker(overlay, place(1, preview.x1, preview.y1), "#ffffff", "", 1, "ghost");
  } else if (cursor) {
    addMarker(overlay, place(0, cursor[0], cursor[1]), "#ffffff", "", 0, "ghost");
  }
}

// Overlays the similarity map on image B, from unrelated (transparent) to most similar (light).
export function drawHeat(canvas, found, size) {
  const bytes = Uint8Array.from(atob(found.values), (letter) => letter.charCodeAt(0));
  canvas.width = found.columns;
  canvas.height = found.rows;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(found.columns, found.rows);
  const range = found.high - found.low;
  const start = Math.min(0.2, found.high);
  for (let cell = 0; cell < bytes.length; cell += 1) {
    const similarity = found.low + (bytes[cell] / 255) * range;
    const level = Math.min(Math.max((similarity - start) / Math.max(found.high - start, 0.05), 0), 1);
    const [red, green, blue] = blend(RAMP, level);
    pixels.data.set([red, green, blue, 255 * Math.min(1, 1.8 * level)], 4 * cell);
  }
  context.putImageData(pixels, 0, 0);
  const share = (value, whole) => `${(100 * value) / whole}%`;
  canvas.style.left = share(found.first_x - found.step_x / 2 + 0.5, size.width);
  canvas.style.top = share(found.first_y - found.step_y / 2 + 0.5, size.height);
  canvas.style.width = share(found.columns * found.step_x, size.width);
  canvas.style.height = share(found.rows * found.step_y, size.height);
  canvas.hidden = false;
}
