// The table of points, the status sentence of a point, and downloads.

import { colourOf } from "./drawing.js";

const at = (x, y) => `${x.toFixed(1)}, ${y.toFixed(1)}`;

function cell(row, ...content) {
  const element = document.createElement("td");
  element.append(...content);
  row.append(element);
}

export function describe(match, index) {
  const mutual = match.is_mutual ? "mutual" : "not mutual";
  const score = match.score.toFixed(2);
  return `Point ${index + 1}: (${at(match.x0, match.y0)}) is (${at(match.x1, match.y1)}), score ${score}, ${mutual}.`;
}

export function fillTable(body, points, active, { choose, remove }) {
  body.replaceChildren(
    ...points.map((match, index) => {
      const row = document.createElement("tr");
      row.classList.toggle("active", index === active);
      const dot = document.createElement("span");
      dot.className = "dot";
      dot.style.backgroundColor = colourOf(index);
      const meter = document.createElement("meter");
      Object.assign(meter, { min: 0, max: 1, low: 0.5, high: 0.8, optimum: 1, value: match.score });
      meter.setAttribute("aria-hidden", "true");
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "button quiet", textContent: "×" });
      button.setAttribute("aria-label", `Remove point ${index + 1}`);
      button.addEventListener("click", () => remove(index));
      cell(row, dot, String(index + 1));
      cell(row, at(match.x0, match.y0));
      cell(row, at(match.x1, match.y1));
      cell(row, meter, match.score.toFixed(2));
      cell(row, match.is_mutual ? "yes" : "no");
      cell(row, button);
      row.addEventListener("pointerenter", () => choose(index));
      return row;
    }),
  );
}

export function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
