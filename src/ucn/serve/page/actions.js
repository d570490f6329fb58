// State of the page, and the actions that change it.

import { draw, drawHeat, spread } from "./drawing.js";
import { describe, fillTable, save } from "./results.js";
import { requestMatches, requestCsv, sendImage } from "./server.js";

export const get = (id) => document.getElementById(id);
export const views = [get("view0"), get("view1")];

export const state = {
  status: null,
  sizes: [null, null], // { image, width, height, title }
  weights: "geometric",
  points: [],
  active: -1,
  preview: null,
  cursor: null,
  all: null, // all mutual matches, once requested
  pairScore: null,
  generation: 0, // responses for earlier images or weights are dropped
};

export const isOn = (id) => get(id).getAttribute("aria-pressed") === "true";

export function setStatus(text) {
  get("status").textContent = text;
}

export function showError(error) {
  get("problem-text").textContent = error.message;
  get("problem").hidden = false;
}

function setBusy(text) {
  for (const side of [0, 1]) {
    get(`busy${side}`).hidden = !text;
    get(`busy${side}`).textContent = text;
    views[side].setAttribute("aria-busy", String(Boolean(text)));
  }
}

function makeRequest(points, similaritiesOf = null) {
  const [image0, image1] = state.sizes.map((size) => size.image);
  return { image0, image1, weights: state.weights, points, similarities_of: similaritiesOf };
}

function shownMutual() {
  const isShown = isOn("mutual") && state.all && state.sizes[0];
  return isShown ? spread(state.all, Number(get("count").value), state.sizes[0]) : [];
}

export function refresh() {
  draw({
    stage: get("stage"),
    overlay: get("overlay"),
    views,
    ...state,
    mutual: shownMutual(),
    useLines: isOn("lines"),
  });
}

export function refreshAll() {
  refresh();
  fillTable(get("rows"), state.points, state.active, { choose: activate, remove: removePoint });
  get("empty").hidden = state.points.length > 0;
  get("undo").disabled = get("clear").disabled = state.points.length === 0;
  const isMutual = isOn("mutual") && state.all !== null;
  const count = isMutual ? state.all.length : state.points.length;
  const what = isMutual ? "matches" : count === 1 ? "point" : "points";
  get("download-label").textContent = count ? `Download ${count.toLocaleString("en")} ${what}` : "Download";
  get("csv").disabled = get("json").disabled = count === 0;
  get("count-field").hidden = !isOn("mutual");
  const score = state.pairScore;
  const verdict = score >= 0.5 ? "likely" : "unlikely";
  get("pair-score").textContent = score === null ? "–" : `${verdict} (${score.toFixed(2)})`;
}

export function showHeat(found) {
  const isShown = Boolean(found) && isOn("heat") && !isOn("mutual");
  if (isShown) drawHeat(get("heat-map"), found, state.sizes[1]);
  else get("heat-map").hidden = true;
  views[1].classList.toggle("dimmed", isShown);
  get("legend").hidden = !isShown;
}

// Requests the similarity map of the active point and overlays it on B.
async function activate(index) {
  if (index === state.active && !get("heat-map").hidden) return;
  state.active = index;
  [...get("rows").children].forEach((row, number) => row.classList.toggle("active", number === index));
  refresh();
  await showActiveHeat();
}

export async function showActiveHeat() {
  const match = state.points[state.active];
  if (!match || !isOn("heat")) {
    showHeat(null);
    return;
  }
  const generation = state.generation;
  try {
    const response = await requestMatches(makeRequest([[match.x0, match.y0]], 0));
    const isCurrent = generation === state.generation && state.points[state.active] === match;
    if (isCurrent && !state.preview) showHeat(response.similarities);
  } catch (error) {
    showError(error);
  }
}

function hasRoom() {
  if (state.points.length < state.status.max_points) return true;
  showError(new Error(`At most ${state.status.max_points} points; remove some first.`));
  return false;
}

export async function addPoint(x, y) {
  if (!state.sizes[0] || !state.sizes[1] || !hasRoom()) return;
  const generation = state.generation;
  try {
    const response = await requestMatches(makeRequest([[x, y]], 0));
    if (generation !== state.generation) return;
    state.points.push(response.matches[0]);
    state.active = state.points.length - 1;
    state.preview = null;
    state.pairScore = response.pair_score;
    showHeat(response.similarities);
    refreshAll();
    setStatus(`${describe(response.matches[0], state.active)} ${Math.round(response.milliseconds)} ms.`);
  } catch (error) {
    showError(error);
  }
}

// A stroke is sent as one request when it ends.
export async function addStroke(points) {
  if (!hasRoom()) return;
  const room = state.status.max_points - state.points.length;
  const generation = state.generation;
  try {
    const response = await requestMatches(makeRequest(points.slice(0, room)));
    if (generation !== state.generation) return;
    state.points.push(...response.matches);
    state.active = state.points.length - 1;
    refreshAll();
    setStatus(`${response.matches.length} points added; ${state.points.length} in all.`);
    await showActiveHeat();
  } catch (error) {
    showError(error);
  }
}

export function removePoint(index) {
  state.points.splice(index, 1);
  state.active = Math.min(state.active, state.points.length - 1);
  refreshAll();
  showActiveHeat();
  setStatus(`Point ${index + 1} removed; ${state.points.length} left.`);
}

// One preview is requested at a time; of those that come meanwhile only the last one counts.
const hover = { isWaiting: false, next: null };

export async function previewAt(target) {
  if (!state.sizes[0] || !state.sizes[1]) return;
  hover.next = target;
  if (hover.isWaiting) return;
  hover.isWaiting = true;
  const generation = state.generation;
  try {
    while (hover.next && generation === state.generation) {
      const point = hover.next;
      hover.next = null;
      const response = await requestMatches(makeRequest([point], 0));
      if (generation !== state.generation || !state.cursor) break;
      [state.preview] = response.matches;
      showHeat(response.similarities);
      refresh();
    }
  } catch (error) {
    showError(error);
  } finally {
    hover.isWaiting = false;
  }
}

export function endPreview() {
  hover.next = null;
  state.cursor = state.preview = null;
  refresh();
  showActiveHeat();
}

// New images or weights: encode both, then match all points again.
export async function restart(points) {
  state.generation += 1;
  const generation = state.generation;
  Object.assign(state, { points: [], active: -1, preview: null, cursor: null, all: null, pairScore: null });
  showHeat(null);
  refreshAll();
  if (!state.sizes[0] || !state.sizes[1]) return;
  setBusy("Encoding both images …");
  setStatus("Encoding both images; this takes a few seconds, once.");
  try {
    const response = await requestMatches(makeRequest(points));
    if (generation !== state.generation) return;
    state.points = response.matches;
    state.active = response.matches.length - 1;
    state.pairScore = response.pair_score;
    setStatus("Ready: click a point in image A.");
    setBusy("");
    refreshAll();
    await showActiveHeat();
    if (isOn("mutual")) await findMutual();
  } catch (error) {
    if (generation === state.generation) setStatus("No response.");
    showError(error);
  } finally {
    if (generation === state.generation) setBusy("");
  }
}

export async function findMutual() {
  const generation = state.generation;
  setBusy("Matching …");
  try {
    const response = await requestMatches(makeRequest(null));
    if (generation !== state.generation) return;
    state.all = response.matches;
    setStatus(`${response.matches.length.toLocaleString("en")} mutual matches; the best of each region of A are drawn.`);
    refreshAll();
  } catch (error) {
    showError(error);
  } finally {
    if (generation === state.generation) setBusy("");
  }
}

export function showImage(side, image, title) {
  state.sizes[side] = { ...image, title };
  views[side].style.setProperty("--ratio", image.width / image.height);
  get(`image${side}`).src = `/api/images/${image.image}`;
  get(`name${side}`).textContent = `${title}, ${image.width} × ${image.height}`;
}

export async function takeFiles(files, side) {
  const chosen = [...files].slice(0, 2);
  if (chosen.length === 0) return;
  const sides = chosen.length === 2 ? [0, 1] : [side];
  get("problem").hidden = true;
  try {
    const images = [];
    for (const file of chosen) {
      if (file.size > state.status.max_upload_bytes) {
        const limit = (state.status.max_upload_bytes / 2 ** 20).toFixed(0);
        throw new Error(`${file.name} is too large: the limit is ${limit} MiB; reduce it first.`);
      }
      setStatus(`Uploading ${file.name} …`);
      images.push(await sendImage(file));
    }
    // Only now, so that the pair and its points stay where an upload fails.
    images.forEach((image, index) => showImage(sides[index], image, chosen[index].name));
    get("credit").textContent = "";
    get("sample").value = "";
    await restart([]);
  } catch (error) {
    setStatus("The upload failed.");
    showError(error);
  }
}

export function chooseSample(index) {
  const sample = state.status.samples[index];
  if (!sample) return;
  showImage(0, sample.image0, sample.title);
  showImage(1, sample.image1, sample.title);
  get("credit").textContent = `Sample: ${sample.credit}.`;
  restart([]);
}

export async function download(kind) {
  const isMutual = isOn("mutual") && state.all !== null;
  const matches = isMutual ? state.all : state.points;
  const name = `ucn-${isMutual ? "mutual" : "points"}.${kind}`;
  try {
    if (kind === "csv") {
      const points = isMutual ? null : matches.map((match) => [match.x0, match.y0]);
      save(name, await requestCsv(makeRequest(points)), "text/csv");
      return;
    }
    const [image0, image1] = state.sizes.map(({ title, width, height }) => ({ title, width, height }));
    const content = { weights: state.weights, pair_score: state.pairScore, image0, image1, matches };
    save(name, JSON.stringify(content, null, 2), "application/json");
  } catch (error) {
    showError(error);
  }
}

export function chooseWeights(name) {
  state.weights = name;
  const { description, restrictions } = state.status.weights.find((item) => item.name === name);
  get("weights-note").textContent = `Weights “${name}”: ${description} Limits: ${restrictions}.`;
  restart(state.points.map((match) => [match.x0, match.y0]));
}
