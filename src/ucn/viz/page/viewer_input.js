// What a visitor does with the view of viewer.js, which this continues.

// ---- Cameras: hovering and selecting

const caster = new THREE.Raycaster();
let selected = -1;
let hovered = -1;

function toScreen(vector) {
  const placed = vector.clone().project(camera);
  return [(placed.x + 1) / 2 * view.clientWidth, (1 - placed.y) / 2 * view.clientHeight];
}

function findCamera(x, y) {
  if (through !== null || element("length").valueAsNumber === 0) return -1;
  const place = new THREE.Vector2(x / view.clientWidth * 2 - 1, 1 - y / view.clientHeight * 2);
  caster.setFromCamera(place, camera);
  const [hit] = caster.intersectObject(bodies, false);
  return hit ? Math.floor(hit.faceIndex / 6) : -1;
}

function showPart(part, index, pattern) {
  part.visible = index >= 0;
  part.geometry.setDrawRange(Math.max(index, 0) * pattern.length, pattern.length);
}

function select(index) {
  selected = index;
  element("image").value = String(index);
  element("card").hidden = index < 0;
  if (index >= 0) {
    element("name").textContent = scene.names[index];
    element("seen").textContent = `${format(scene.observations[index])} points seen`;
  }
  showPart(selectedBody, index, TRIANGLES);
  showPart(selectedEdges, index, EDGES);
  draw();
}

function hover(index, x, y) {
  const tip = element("tip");
  if (index !== hovered) {
    hovered = index;
    tip.hidden = index < 0;
    if (index >= 0) tip.textContent = scene.names[index];
    view.classList.toggle("pointing", index >= 0);
    showPart(hoveredBody, index, TRIANGLES);
    draw();
  }
  if (index >= 0) {
    tip.style.left = `${Math.min(x + 14, view.clientWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.min(y + 14, view.clientHeight - tip.offsetHeight - 4)}px`;
  }
}

function centreOnPoint(x, y) {
  caster.params.Points.threshold = state.distance / 100;
  caster.setFromCamera(
    new THREE.Vector2(x / view.clientWidth * 2 - 1, 1 - y / view.clientHeight * 2), camera);
  const hits = caster.intersectObject(points, false)
    .filter((hit) => errors[hit.index] <= pointMaterial.uniforms.limit.value)
    .sort((one, other) => one.distanceToRay - other.distanceToRay);
  if (hits.length === 0) return;
  leaveCamera();
  state.target.copy(hits[0].point);
  draw();
}

// ---- Pointers and keys

const pressed = new Map(); // pointers that are down
let travelled = 0;

view.addEventListener("pointerdown", (event) => {
  view.setPointerCapture(event.pointerId);
  pressed.set(event.pointerId, [event.clientX, event.clientY]);
  if (pressed.size === 1) travelled = 0;
  hover(-1);
});

view.addEventListener("pointermove", (event) => {
  const before = pressed.get(event.pointerId);
  if (before === undefined) {
    if (event.pointerType !== "touch") hover(findCamera(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
    return;
  }
  const [x, y] = [event.clientX - before[0], event.clientY - before[1]];
  travelled += Math.hypot(x, y);
  if (pressed.size === 2) {
    const [other] = [...pressed].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    const distances = [before, [event.clientX, event.clientY]].map(
      ([px, py]) => Math.max(Math.hypot(px - other[0], py - other[1]), 1));
    zoom(distances[0] / distances[1]);
    move(x / 2, y / 2);
  } else if (travelled > 4) {
    view.classList.add("dragging");
    if (event.buttons & 2 || event.shiftKey || event.ctrlKey) move(x, y);
    else rotate(x * 0.006, y * 0.006);
  }
  pressed.set(event.pointerId, [event.clientX, event.clientY]);
});

function release(event) {
  const isClick = pressed.delete(event.pointerId) && travelled <= 4 && pressed.size === 0;
  view.classList.remove("dragging");
  if (isClick && event.type === "pointerup" && event.button === 0) {
    const found = findCamera(event.offsetX, event.offsetY);
    if (found >= 0 || selected >= 0) select(found);
  }
}
view.addEventListener("pointerup", release);
view.addEventListener("pointercancel", release);
view.addEventListener("pointerleave", () => hover(-1));
view.addEventListener("contextmenu", (event) => event.preventDefault());
view.addEventListener("dblclick", (event) => centreOnPoint(event.offsetX, event.offsetY));
view.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(Math.min(60, Math.max(-60, event.deltaY * (event.deltaMode ? 20 : 1))) * 0.0035));
}, { passive: false });

const KEYS = {
  ArrowLeft: () => rotate(0.08, 0),
  ArrowRight: () => rotate(-0.08, 0),
  ArrowUp: () => rotate(0, 0.08),
  ArrowDown: () => rotate(0, -0.08),
  "+": () => zoom(0.9),
  "=": () => zoom(0.9),
  "-": () => zoom(1 / 0.9),
  r: reset,
  R: reset,
  Escape: () => select(-1),
};
view.addEventListener("keydown", (event) => {
  if (event.key in KEYS && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

// ---- Controls

const sorted = Float32Array.from(errors).sort();
const errorAt = (percent) => percent >= 100 || sorted.length === 0
  ? Infinity : sorted[Math.floor(percent / 100 * (sorted.length - 1))];

function limitErrors() {
  const limit = errorAt(element("error").valueAsNumber);
  pointMaterial.uniforms.limit.value = limit === Infinity ? 3e38 : limit;
  const all = sorted.length ? `all, up to ${sorted[sorted.length - 1].toFixed(2)} px` : "no points";
  element("error-value").textContent = limit === Infinity ? all : `${limit.toFixed(2)} px`;
  draw();
}

function setTheme(name) {
  root.dataset.theme = name;
  element("theme").textContent = name === "dark" ? "Light" : "Dark";
  const style = getComputedStyle(root);
  const read = (variable) => new THREE.Color(style.getPropertyValue(variable).trim());
  renderer.setClearColor(read("--ground"));
  for (const part of [bodies, edges, hoveredBody]) part.material.color.copy(read("--camera"));
  for (const part of [selectedBody, selectedEdges]) part.material.color.copy(read("--selected"));
  draw();
}

element("size").addEventListener("input", () => draw());
element("error").addEventListener("input", limitErrors);
element("length").addEventListener("input", (event) => {
  setLength(event.target.valueAsNumber);
  draw();
});
element("image").addEventListener("change", (event) => select(Number(event.target.value)));
element("look").addEventListener("click", () => {
  through = selected;
  camera.fov = Math.min(150, 1.08 * scene.fields_of_view[selected]);
  draw();
});
element("reset").addEventListener("click", reset);
element("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
element("fold").addEventListener("click", (event) => {
  const isOpen = element("controls").hidden;
  element("controls").hidden = !isOpen;
  event.target.textContent = isOpen ? "Hide" : "Show";
  event.target.setAttribute("aria-expanded", String(isOpen));
});
const preference = matchMedia("(prefers-color-scheme: dark)");
preference.addEventListener("change", () => setTheme(preference.matches ? "dark" : "light"));

// ---- Drawing on demand

function resize() {
  renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
  renderer.setSize(innerWidth, innerHeight, false);
  camera.aspect = innerWidth / innerHeight;
  draw();
}
addEventListener("resize", resize);

function render() {
  requestAnimationFrame(render);
  if (!isDirty) return;
  isDirty = false;
  if (through === null) placeCamera();
  else placeInCamera(through);
  pointMaterial.uniforms.size.value = element("size").valueAsNumber * renderer.getPixelRatio();
  pointMaterial.uniforms.reach.value = through === null ? 2.1 * radius : radius;
  for (const part of [bodies, edges]) part.visible = through === null;
  selectedBody.visible = through === null && selected >= 0;
  camera.updateProjectionMatrix();
  camera.updateMatrixWorld();
  renderer.render(world, camera);
}

setLength(1);
select(-1);
showPart(hoveredBody, -1, TRIANGLES);
limitErrors();
reset();
setTheme(preference.matches ? "dark" : "light");
resize();
render();
// For scripts: where the middle of a camera's image is on the screen, in CSS pixels.
window.viewer = {
  findOnScreen(index) {
    const middle = [0, 1, 2, 3, 4].map((which) => corner(index, which));
    return toScreen(middle.reduce((sum, place) => sum.add(place), new THREE.Vector3()).divideScalar(5));
  },
  findSelected: () => selected,
};
