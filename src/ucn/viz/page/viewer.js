// The view of a sparse reconstruction. `THREE` is three.js; the page holds the scene as JSON, whose arrays are
// base64 of little-endian numbers. Positions are relative to the middle of the scene.
const scene = JSON.parse(document.getElementById("scene").textContent);
const element = (id) => document.getElementById(id);
const root = document.documentElement;

function decode(text, Type) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Type(bytes.buffer);
}

const positions = decode(scene.positions, Float32Array);
const colours = decode(scene.colours, Uint8Array);
const errors = decode(scene.errors, Float32Array);
const rays = decode(scene.rays, Float32Array); // of each camera: its centre, then four corners relative to it
const cameraCount = scene.names.length;

element("title").textContent = scene.title;
document.title = scene.title;
const shown = positions.length / 3;
const format = (number) => number.toLocaleString("en");
element("counts").textContent = `${format(cameraCount)} images, ` + (shown === scene.point_count
  ? `${format(shown)} points` : `${format(shown)} of ${format(scene.point_count)} points (evenly chosen)`);
scene.names.forEach((name, index) => element("image").append(new Option(name, String(index))));

element("size").value = String(Math.min(5, Math.max(2, 7.5 - Math.log10(shown + 1)))); // fewer are larger

// ---- Rendering

const view = element("view");
let renderer;
try {
  renderer = new THREE.WebGLRenderer({ canvas: view, antialias: true });
} catch (error) {
  element("failure").textContent = `This page needs WebGL, which this browser does not offer here: ${error.message}`;
  element("failure").hidden = false;
  throw error;
}

const radius = scene.radius;
const camera = new THREE.PerspectiveCamera(50, 1, radius / 500, radius * 500);
camera.up.set(0, 0, 1);
const world = new THREE.Scene();
const model = new THREE.Group(); // turns the axes of the model to right, ahead and up
const [right, ahead, up] = scene.axes;
model.matrix.set(...right, 0, ...ahead, 0, ...up, 0, 0, 0, 0, 1);
model.matrixAutoUpdate = false;
world.add(model);

const pointMaterial = new THREE.ShaderMaterial({
  uniforms: { size: { value: 3 }, reach: { value: radius }, limit: { value: Infinity } },
  vertexShader: `
    uniform float size, reach, limit;
    attribute vec3 colour;
    attribute float error;
    varying vec3 shade;
    void main() {
      shade = colour;
      vec4 place = modelViewMatrix * vec4(position, 1.0);
      gl_Position = error > limit ? vec4(2.0, 2.0, 2.0, 1.0) : projectionMatrix * place;
      gl_PointSize = clamp(size * reach / max(-place.z, 1e-6), 1.0, 40.0);
    }`,
  fragmentShader: `
    varying vec3 shade;
    void main() {
      if (length(gl_PointCoord - 0.5) > 0.5) discard;
      gl_FragColor = vec4(shade, 1.0);
    }`,
});
const pointGeometry = new THREE.BufferGeometry();
pointGeometry.setAttribute("position", new THREE.BufferAttribute(positions, 3));
pointGeometry.setAttribute("colour", new THREE.BufferAttribute(colours, 3, true));
pointGeometry.setAttribute("error", new THREE.BufferAttribute(errors, 1));
const points = new THREE.Points(pointGeometry, pointMaterial);
points.frustumCulled = false;
model.add(points);

// A frustum has eight edges and six triangles; vertex 0 is the centre.
const EDGES = [0, 1, 0, 2, 0, 3, 0, 4, 1, 2, 2, 3, 3, 4, 4, 1];
const TRIANGLES = [0, 1, 2, 0, 2, 3, 0, 3, 4, 0, 4, 1, 1, 2, 3, 1, 3, 4];
const corners = new THREE.BufferAttribute(new Float32Array(rays.length), 3);
const indices = (pattern) => new THREE.BufferAttribute(
  Uint32Array.from({ length: cameraCount * pattern.length },
    (_, place) => 5 * Math.floor(place / pattern.length) + pattern[place % pattern.length]), 1);

function makeFrusta(pattern) {
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", corners);
  geometry.setIndex(indices(pattern));
  return geometry;
}

const flat = (options) => new THREE.MeshBasicMaterial(
  { side: THREE.DoubleSide, transparent: true, depthWrite: false, toneMapped: false, ...options });
const bodies = new THREE.Mesh(makeFrusta(TRIANGLES), flat({ opacity: 0.14 }));
const edges = new THREE.LineSegments(makeFrusta(EDGES), new THREE.LineBasicMaterial({ toneMapped: false }));
const selectedBody = new THREE.Mesh(makeFrusta(TRIANGLES), flat({ opacity: 0.45 }));
const selectedEdges = new THREE.LineSegments(makeFrusta(EDGES), new THREE.LineBasicMaterial({ toneMapped: false }));
const hoveredBody = new THREE.Mesh(makeFrusta(TRIANGLES), flat({ opacity: 0.35 }));
for (const part of [bodies, edges, selectedBody, selectedEdges, hoveredBody]) {
  part.frustumCulled = false;
  model.add(part);
}

function setLength(factor) {
  for (let place = 0; place < rays.length; place += 15) {
    for (let axis = 0; axis < 15; axis += 1) {
      corners.array[place + axis] = rays[place + (axis % 3)] + (axis < 3 ? 0 : factor * rays[place + axis]);
    }
  }
  corners.needsUpdate = true;
  bodies.geometry.computeBoundingSphere();
}

let isDirty = true;
function draw() {
  isDirty = true;
}

// ---- The view: a direction and a distance from a target

const state = { target: new THREE.Vector3(), azimuth: 0, elevation: 0, distance: 1 };
let through = null; // the index of the camera that is looked through

function reset() {
  through = null;
  camera.fov = 50;
  const distance = 2.1 * radius * Math.max(1, innerHeight / innerWidth);
  Object.assign(state, { target: new THREE.Vector3(), azimuth: -0.35, elevation: 0.42, distance });
  draw();
}

function placeCamera() {
  const flatPart = Math.cos(state.elevation);
  const back = new THREE.Vector3(
    Math.sin(state.azimuth) * flatPart, -Math.cos(state.azimuth) * flatPart, Math.sin(state.elevation));
  camera.up.set(0, 0, 1);
  camera.position.copy(state.target).addScaledVector(back, state.distance);
  camera.lookAt(state.target);
}

// The centre (0) or a corner (1 to 4) of a camera, for frusta of full length.
function corner(index, which) {
  const read = (place) => new THREE.Vector3(rays[place], rays[place + 1], rays[place + 2]);
  const found = read(15 * index);
  if (which > 0) found.add(read(15 * index + 3 * which));
  return found.applyMatrix4(model.matrix);
}

function placeInCamera(index) {
  const [apex, a, b, c, d] = [0, 1, 2, 3, 4].map((which) => corner(index, which));
  const middle = a.clone().add(b).add(c).add(d).divideScalar(4);
  camera.up.copy(a.clone().sub(d)).normalize();
  camera.position.copy(apex).addScaledVector(middle.clone().sub(apex), 1e-3);
  camera.lookAt(middle);
}

function rotate(x, y) {
  leaveCamera();
  state.azimuth -= x;
  state.elevation = Math.min(1.55, Math.max(-1.55, state.elevation + y));
  draw();
}

function move(x, y) {
  leaveCamera();
  const scale = 2 * state.distance * Math.tan((camera.fov * Math.PI) / 360) / view.clientHeight;
  const [rightward, upward] = [new THREE.Vector3(), new THREE.Vector3()];
  camera.matrixWorld.extractBasis(rightward, upward, new THREE.Vector3());
  state.target.addScaledVector(rightward, -x * scale).addScaledVector(upward, y * scale);
  draw();
}

function zoom(factor) {
  leaveCamera();
  state.distance = Math.min(100 * radius, Math.max(radius / 100, state.distance * factor));
  draw();
}

function leaveCamera() {
  if (through === null) return;
  // Orbit from where this camera is, around a target ahead of it.
  const direction = new THREE.Vector3();
  camera.getWorldDirection(direction);
  state.distance = radius;
  state.target.copy(camera.position).addScaledVector(direction, radius);
  state.elevation = Math.asin(Math.min(1, Math.max(-1, -direction.z)));
  state.azimuth = Math.atan2(-direction.x, direction.y);
  through = null;
  camera.fov = 50;
}
