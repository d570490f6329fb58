// Event handlers.

import {
  addPoint, addStroke, chooseSample, chooseWeights, showError, download, endPreview, findMutual, get, isOn,
  previewAt, refresh, refreshAll, removePoint, restart, setStatus, showActiveHeat, showHeat, showImage, state,
  takeFiles, views,
} from "./actions.js";
import { toPixel } from "./drawing.js";
import { leave, readStatus } from "./server.js";

const BRUSH_STEP = 14; // screen pixels between the points of a stroke

function listenToPointer() {
  const view = views[0];
  let stroke = null;
  const isReady = () => state.sizes[0] && state.sizes[1];
  view.addEventListener("pointerdown", (event) => {
    if (!isReady() || event.button !== 0 || !isOn("brush")) return;
    view.setPointerCapture(event.pointerId);
    stroke = { points: [toPixel(view, state.sizes[0], event)], last: [event.clientX, event.clientY] };
    event.preventDefault();
  });
  view.addEventListener("pointermove", (event) => {
    if (!isReady()) return;
    const point = toPixel(view, state.sizes[0], event);
    if (stroke) {
      const [x, y] = stroke.last;
      if (Math.hypot(event.clientX - x, event.clientY - y) < BRUSH_STEP) return;
      stroke.points.push(point);
      stroke.last = [event.clientX, event.clientY];
    } else if (event.pointerType !== "mouse") return;
    state.cursor = point;
    if (stroke) refresh();
    else previewAt(point);
  });
  view.addEventListener("pointerup", () => {
    if (!stroke) return;
    const { points } = stroke;
    stroke = null;
    addStroke(points);
  });
  view.addEventListener("pointercancel", () => { stroke = null; });
  view.addEventListener("pointerleave", () => { if (!stroke && state.cursor) endPreview(); });
  view.addEventListener("click", (event) => {
    if (!isReady() || isOn("brush")) return;
    addPoint(...toPixel(view, state.sizes[0], event));
  });
}

function listenToKeys() {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  views[0].addEventListener("keydown", (event) => {
    const size = state.sizes[0];
    if (!size || event.ctrlKey || event.metaKey || event.altKey) return;
    const [x, y] = state.cursor || [Math.round((size.width - 1) / 2), Math.round((size.height - 1) / 2)];
    if (event.key in moves) {
      const step = event.shiftKey ? 10 : 1;
      const [right, down] = moves[event.key];
      const clamp = (value, length) => Math.min(Math.max(value, 0), length - 1);
      state.cursor = [clamp(x + step * right, size.width), clamp(y + step * down, size.height)];
      refresh();
      previewAt(state.cursor);
      setStatus(`Cursor at (${state.cursor.map((value) => value.toFixed(0)).join(", ")}).`);
    } else if (event.key === "Enter" || event.key === " ") {
      state.cursor = [x, y];
      addPoint(x, y);
    } else if (event.key === "Backspace" || event.key === "Delete") {
      if (state.points.length) removePoint(state.points.length - 1);
    } else if (event.key === "Escape") endPreview();
    else return;
    event.preventDefault();
  });
  views[0].addEventListener("blur", () => { if (state.cursor) endPreview(); });
}

function listenToFiles() {
  // A file dropped beside both images would replace the page.
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
  for (const panel of document.querySelectorAll(".panel")) {
    const side = Number(panel.dataset.side);
    get(`file${side}`).addEventListener("change", (event) => {
      takeFiles(event.target.files, side).then(() => { event.target.value = ""; });
    });
    panel.addEventListener("dragover", (event) => { event.preventDefault(); panel.classList.add("target"); });
    panel.addEventListener("dragleave", () => panel.classList.remove("target"));
    panel.addEventListener("drop", (event) => {
      event.preventDefault();
      panel.classList.remove("target");
      takeFiles(event.dataTransfer.files, side);
    });
  }
}

function listenToTools() {
  const toggle = (id, after) => get(id).addEventListener("click", () => {
    get(id).setAttribute("aria-pressed", String(!isOn(id)));
    after();
  });
  toggle("brush", () => views[0].classList.toggle("drawing", isOn("brush")));
  toggle("heat", showActiveHeat);
  toggle("lines", refresh);
  toggle("mutual", () => {
    refreshAll();
    showActiveHeat();
    if (isOn("mutual") && state.all === null && state.sizes[0] && state.sizes[1]) findMutual();
  });
  get("count").addEventListener("input", () => {
    get("count-value").textContent = get("count").value;
    refresh();
  });
  get("undo").addEventListener("click", () => removePoint(state.points.length - 1));
  get("clear").addEventListener("click", () => {
    state.points = [];
    state.active = -1;
    showHeat(null);
    refreshAll();
    setStatus("All points removed.");
  });
  get("swap").addEventListener("click", () => {
    const [first, second] = state.sizes;
    if (!first || !second) return;
    showImage(0, second, second.title);
    showImage(1, first, first.title);
    restart([]);
  });
  get("csv").addEventListener("click", () => download("csv"));
  get("json").addEventListener("click", () => download("json"));
  get("sample").addEventListener("change", (event) => chooseSample(event.target.value));
  get("weights").addEventListener("change", (event) => chooseWeights(event.target.value));
  get("problem-close").addEventListener("click", () => { get("problem").hidden = true; });
}

function fillChoices(status) {
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
  get("sample").replaceChildren(
    option("", "Your own images"), ...status.samples.map((sample, index) => option(index, sample.title)),
  );
  get("weights").replaceChildren(
    ...status.weights.map((item) => option(item.name, item.task === item.name ? item.name : `${item.name} (${item.task})`)),
  );
}

// Browsers may forbid local storage.
function recall(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}

function remember(name, value) {
  try { localStorage.setItem(name, value); } catch { /* not stored */ }
}

function listenToTheme() {
  const themes = ["auto", "light", "dark"];
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    get("theme").textContent = `Theme: ${theme}`;
  };
  let theme = recall("ucn-theme");
  if (!themes.includes(theme)) theme = "auto";
  apply(theme);
  get("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    remember("ucn-theme", theme);
    apply(theme);
  });
}

async function start() {
  listenToTheme();
  try {
    state.status = await readStatus();
  } catch (error) {
    setStatus("No response from the server.");
    showError(error);
    return;
  }
  fillChoices(state.status);
  listenToPointer();
  listenToKeys();
  listenToFiles();
  listenToTools();
  new ResizeObserver(refresh).observe(get("stage"));
  addEventListener("pagehide", (event) => { if (!event.persisted) leave(); });
  get("weights").value = state.status.default_weights;
  get("sample").value = "0";
  chooseWeights(state.status.default_weights);
  chooseSample(0);
}

start();
