"""Accuracy of reconstructions by detector, with and without keypoint refinement, on training data.

python benchmarks/reconstruction_choice.py [--photos DIR] [--kitti DIR] [--rgbd DIR] [--detectors A,B]

Three synthetic scenes show the corner of a room, two walls and the floor with 16 photographs each, from 9
cameras of 640 × 480 on an arc of 50 degrees, with noise, illumination change and roll angles of 0, 9 and 29
degrees (standard deviation). Their cameras are exact. The fourth scene is every second frame of KITTI
odometry, sequence 05, frames 600 to 639, which is training data; the fifth is every fourth RGB-D frame of a
folder in the layout of 7-Scenes, whose ground truth from KinectFusion has errors of about a centimetre. All
intrinsics are given. Rows are the detectors of `ucn extract`, plain and adjusted, and COLMAP's own SIFT;
errors of camera centres are in mm after similarity alignment; "stricter" is SIFT with the reprojection limit
of adjusted keypoints. With --json, one JSON object.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from command_line import make_parser
from numpy.typing import NDArray

from ucn.data.sets.posed.seven_scenes import open_folder, read_pose
from ucn.errors import DataError
from ucn.evaluate.reconstruction.scoring import centre_errors
from ucn.features.method import MethodInfo
from ucn.folders.detectors import DETECTORS
from ucn.folders.pairing import PairingSettings
from ucn.folders.reconstruction import ReconstructSettings, reconstruct_folder, use_strict_limits
from ucn.folders.worker import ExtractSettings
from ucn.formats.colmap import CameraSettings, MappingSettings, SparseModel, map_incrementally, quiet
from ucn.formats.colmap_sift import make_sift_model
from ucn.paper.registry import METHODS

Array = NDArray[np.float64]
HW = (480, 640)
_TILE, _TILES, _METRES, _FINER = 288, 4, 8.0, 3
_ROLLS = (0.0, 0.15, 0.5)
_EVERY = 4  # step between RGB-D frames
_FORWARD = {"mapper.init_max_forward_motion": 1.0, "mapper.init_min_tri_angle": 2.0}


@dataclass(frozen=True)
class Scene:
    """Images in a folder, and the ground truth."""

    name: str
    folder: Path
    K: Array
    centres: dict[str, Array]
    pairing: PairingSettings = field(default_factory=PairingSettings)
    options: dict[str, Any] = field(default_factory=dict)


def make_wall(paths: Iterator[Path]) -> Array:
    """4 × 4 photographs side by side."""
    rows = []
    for _ in range(_TILES):
        row = []
        for _ in range(_TILES):
            image = np.asarray(cv2.imread(str(next(paths))))
            side = min(image.shape[:2])
            top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
            square = image[top : top + side, left : left + side]
            row.append(cv2.resize(square, (_TILE, _TILE), interpolation=cv2.INTER_AREA))
        rows.append(np.hstack(row))
    return np.vstack(rows).astype(np.float64)


def render_view(walls: list[Array], K: Array, R: Array, centre: Array) -> Array:
    texel = _METRES / (_TILE * _TILES)
    first = [[0, -_METRES, 0], [0, -_METRES, -_METRES], [0, 0, 0]]
    along, down = (
        np.array([[1, 0, 0], [0, 0, 1], [1, 0, 0.0]]),
        np.array([[0, 1, 0], [0, 1, 0], [0, 0, -1.0]]),
    )
    size = (HW[1] * _FINER, HW[0] * _FINER)
    grow = np.array([[_FINER, 0, (_FINER - 1) / 2], [0, _FINER, (_FINER - 1) / 2], [0, 0, 1]])
    image = np.zeros((size[1], size[0], 3), np.float32)
    for wall, start, right, below in zip(walls, first, along, down, strict=True):
        columns = [texel * (R @ right), texel * (R @ below), R @ (np.array(start) - centre)]
        H = grow @ K @ np.stack(columns, axis=1)
        seen = cv2.warpPerspective(wall.astype(np.float32), H, size, flags=cv2.INTER_LINEAR)
        where = cv2.warpPerspective(np.ones(wall.shape[:2], np.float32), H, size, flags=cv2.INTER_NEAREST)
        image[where > 0.5] = seen[where > 0.5]
    return np.asarray(cv2.resize(image, (HW[1], HW[0]), interpolation=cv2.INTER_AREA), np.float64)


def make_scene(photos: list[Path], folder: Path, seed: int) -> Scene:
    rng = np.random.default_rng(seed)
    chosen = iter([photos[row] for row in rng.permutation(len(photos))])
    walls = [make_wall(chosen) for _ in range(3)]
    focal = 1.1 * HW[1]
    K = np.array([[focal, 0, (HW[1] - 1) / 2], [0, focal, (HW[0] - 1) / 2], [0, 0, 1.0]])
    folder.mkdir(parents=True)
    centres = {}
    for number in range(9):
        angle = np.radians(20 + 50 * number / 8)
        centre = np.array([6.5 * np.cos(angle), -2.2, -6.5 * np.sin(angle)]) + rng.normal(size=3) * 0.2
        ahead = np.array([0.8, -1.6, -0.8]) + rng.normal(size=3) * 0.25 - centre
        ahead /= np.linalg.norm(ahead)
        right = np.cross([0.0, 1.0, 0.0], ahead)
        right /= np.linalg.norm(right)
        roll = rng.normal() * _ROLLS[seed]
        turn = np.array([[np.cos(roll), -np.sin(roll), 0], [np.sin(roll), np.cos(roll), 0], [0, 0, 1]])
        R = turn @ np.stack([right, np.cross(ahead, right), ahead])
        image = render_view(walls, K, R, centre) * rng.uniform(0.8, 1.1) + rng.normal(size=(*HW, 3)) * 3
        cv2.imwrite(str(folder / f"{number:03}.png"), image.clip(0, 255).round().astype(np.uint8))
        centres[f"{number:03}.png"] = centre
    return Scene(f"corner {seed}", folder, K, centres)


def copy_kitti(data: Path, folder: Path) -> Scene:
    folder.mkdir(parents=True)
    frames = sorted((data / "sequences" / "05" / "image_0").glob("0006[0-3]?.*"))[::2]
    for path in frames:
        (folder / path.name).write_bytes(path.read_bytes())
    line = (data / "sequences" / "05" / "calib.txt").read_text().splitlines()[0]
    K = np.array(line.split()[1:], np.float64).reshape(3, 4)[:, :3]
    poses = np.loadtxt(data / "poses" / "05.txt").reshape(-1, 3, 4)
    centres = {path.name: poses[int(path.stem), :, 3] for path in frames}
    return Scene("KITTI 600–639", folder, K, centres, PairingSettings("sequential", overlap=5), _FORWARD)


def copy_rgbd(data: Path, folder: Path) -> Scene:
    folder.mkdir(parents=True)
    frames = sorted(data.glob("frame-*.color.*"))[::_EVERY]
    centres = {}
    for path in frames:
        (folder / path.name).write_bytes(path.read_bytes())
        pose = read_pose(path.with_name(f"{path.name[:12]}.pose.txt"))
        centres[path.name] = (pose @ [0.02, 0, 0, 1])[:3]  # the colour camera is beside the depth camera
    K = open_folder(data, "all").intrinsics(0)[0]
    return Scene("RGB-D frames", folder, K, centres)


def score(scene: Scene, model: SparseModel | None) -> dict[str, Any]:
    if model is None:
        return {"registered": 0}
    found = np.stack([model.centre(name) for name in model.registered])
    errors = 1000 * centre_errors(found, np.stack([scene.centres[name] for name in model.registered]))
    return {
        "registered": len(model.registered),
        "points": model.points,
        "track_length": model.track_length,
        "reprojection_px": model.reprojection_error,
        "centre_mm": float(errors.mean()),
    }


def measure(scene: Scene, work: Path, detectors: list[str], keypoints: int, weights: str) -> dict[str, Any]:
    method = METHODS.find_features(weights)
    cameras = CameraSettings(intrinsics=scene.K)
    mapping = MappingSettings(options=scene.options)
    found: dict[str, Any] = {}
    for detector in detectors:
        for use in (False, True):
            extract = ExtractSettings(max_side=None, max_keypoints=keypoints, detector=detector)
            settings = ReconstructSettings(extract, scene.pairing, cameras, mapping, use)
            output = work / f"{scene.folder.name}-{detector}"
            output.mkdir(exist_ok=True)
            model = attempt(partial(make_model, scene.folder, output, method, settings))
            found[f"{detector}, adjusted" if use else detector] = score(scene, model)
    output = work / f"{scene.folder.name}-sift"
    output.mkdir()
    with quiet():
        names = sorted(scene.centres)
        plain = attempt(lambda: make_sift_model(output, scene.folder, names, cameras, mapping))
        found["colmap-sift"] = score(scene, plain)
        paths = (output / "database.db", scene.folder, output / "strict")
        strict = attempt(lambda: map_incrementally(*paths, use_strict_limits(mapping), True))
        found["colmap-sift, stricter"] = score(scene, strict)
    return found


def make_model(folder: Path, output: Path, method: MethodInfo, settings: ReconstructSettings) -> SparseModel:
    return reconstruct_folder(folder, output, method, settings).model


def attempt(make: Callable[[], SparseModel]) -> SparseModel | None:
    """A model; None where the reconstruction fails."""
    try:
        return make()
    except DataError:
        return None


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of photographs, searched recursively")
    parser.add_argument("--kitti", type=Path, help="KITTI odometry")
    parser.add_argument("--rgbd", type=Path, help="RGB-D frames in the layout of 7-Scenes")
    parser.add_argument("--keypoints", type=int, default=4096)
    parser.add_argument("--detectors", default=",".join(DETECTORS))
    parser.add_argument("--weights", default="geometric")
    parser.add_argument("--scenes", type=int, default=len(_ROLLS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    photos = [] if options.photos is None else sorted(options.photos.rglob("*.jpg"))
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        numbers = range(options.scenes if photos else 0)
        scenes = [make_scene(photos, work / f"corner{seed}", seed) for seed in numbers]
        if options.kitti is not None:
            scenes.append(copy_kitti(options.kitti, work / "kitti"))
        if options.rgbd is not None:
            scenes.append(copy_rgbd(options.rgbd, work / "rgbd"))
        for scene in scenes:
            detectors = options.detectors.split(",")
            results[scene.name] = measure(scene, work, detectors, options.keypoints, options.weights)
            if not options.json:
                _print(scene, results[scene.name])
    if options.json:
        print(json.dumps(results, indent=1))


def _print(scene: Scene, results: dict[str, Any]) -> None:
    print(f"\n{scene.name}: {len(scene.centres)} images", flush=True)
    print("| keypoints | registered | points | track length | reprojection, px | centre error, mm |")
    print("|---|---|---|---|---|---|")
    for name, row in results.items():
        if not row["registered"]:
            print(f"| {name} | 0 | – | – | – | – |")
            continue
        numbers = f"{row['track_length']:.2f} | {row['reprojection_px']:.3f} | {row['centre_mm']:.2f}"
        print(f"| {name} | {row['registered']} | {row['points']:,} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
