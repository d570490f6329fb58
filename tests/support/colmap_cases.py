"""A small reconstruction, written as COLMAP documents its files."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import PIL.Image

Keypoint = tuple[float, float, int]


def make_circle(degrees: Sequence[int], count: int, size: tuple[int, int]) -> FakeModel:
    """Cameras on a circle around one place, where all points are; keypoints of image i move by i pixels."""
    images = {}
    for number, angle in enumerate(degrees):
        centre = (10 * math.cos(math.radians(angle)), 10 * math.sin(math.radians(angle)), 0.0)
        keypoints = [(2.5 + row + number, 10.5, row + 1) for row in range(count)]
        images[number + 1] = ([1, 0, 0, 0, *(-value for value in centre)], 3, f"{number}.png", keypoints)
    points = dict.fromkeys(range(1, count + 1), 0.5)
    return FakeModel(size=size, images=images, points=points, positions=dict.fromkeys(points, (0.0, 0, 0)))


@dataclass
class FakeModel:
    """A model of three images, 40 × 30 pixels: 1 and 2 have three 3D points in common, 2 and 3 have one."""

    cameras: dict[int, tuple[int, list[float]]] = field(
        default_factory=lambda: {3: (1, [50.0, 50.0, 20.0, 15.0]), 9: (4, [50.0] * 8)}
    )
    size: tuple[int, int] = (40, 30)
    images: dict[int, tuple[list[float], int, str, list[Keypoint]]] = field(
        default_factory=lambda: {
            7: (
                [1, 0, 0, 0, 0, 0, 0],
                3,
                "b.png",
                [(0.5, 0.5, 100), (10, 20, -1), (40, 30, 5), (8.25, 2, 70)],
            ),
            2: (
                [np.sqrt(0.5), 0, 0, np.sqrt(0.5), 1, 2, 3],
                3,
                "a ü.png",
                [(3, 4, 70), (5.5, 6.5, 100), (7, 8, 5), (9, 9, 6)],
            ),
            4: ([1, 0, 0, 0, 0, 0, 5], 9, "sub/c.png", [(1, 1, 6), (2, 2, -1)]),
        }
    )
    positions: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    points: dict[int, float] = field(default_factory=lambda: {5: 0.5, 100: 1.5, 70: 3.0, 6: -1.0})

    def write_photographs(self, folder: Path, size: tuple[int, int] | None = None) -> None:
        for number, (_, _, name, _) in self.images.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            width, height = size or self.size
            pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)
            PIL.Image.fromarray(pixels).save(folder / name)

    def tracks(self, point: int) -> list[tuple[int, int]]:
        return [
            (image, row)
            for image, (*_, keypoints) in self.images.items()
            for row, keypoint in enumerate(keypoints)
            if keypoint[2] == point
        ]

    def position(self, point: int) -> tuple[float, float, float]:
        return self.positions.get(point, (1.5, 2.5, -3.5))

    def write_text(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = {1: "PINHOLE", 4: "OPENCV"}
        cameras = "".join(
            f"{number} {names[model]} {self.size[0]} {self.size[1]} {' '.join(map(str, parameters))}\n"
            for number, (model, parameters) in self.cameras.items()
        )
        head = (
            "# Camera list with one line of data per camera:\n#   CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]\n"
        )
        (folder / "cameras.txt").write_text(head + cameras, encoding="utf-8")
        images = "# Image list with two lines of data per image:\n"
        for number, (pose, camera, name, keypoints) in self.images.items():
            images += f"{number} {' '.join(map(repr, map(float, pose)))} {camera} {name}\n"
            images += " ".join(f"{x} {y} {point}" for x, y, point in keypoints) + "\n"
        (folder / "images.txt").write_text(images, encoding="utf-8")
        points = "# 3D point list with one line of data per point:\n"
        for number, error in self.points.items():
            track = " ".join(f"{image} {row}" for image, row in self.tracks(number))
            points += f"{number} {' '.join(map(repr, self.position(number)))} 10 20 30 {error} {track}\n"
        (folder / "points3D.txt").write_text(points, encoding="utf-8")

    def write_binary(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        cameras = struct.pack("<Q", len(self.cameras))
        for number, (model, parameters) in self.cameras.items():
            cameras += struct.pack("<IiQQ", number, model, *self.size)
            cameras += struct.pack(f"<{len(parameters)}d", *parameters)
        (folder / "cameras.bin").write_bytes(cameras)
        images = struct.pack("<Q", len(self.images))
        for number, (pose, camera, name, keypoints) in self.images.items():
            images += struct.pack("<I7dI", number, *pose, camera) + name.encode() + b"\0"
            images += struct.pack("<Q", len(keypoints))
            images += b"".join(struct.pack("<ddq", *keypoint) for keypoint in keypoints)
        (folder / "images.bin").write_bytes(images)
        points = struct.pack("<Q", len(self.points))
        for number, error in self.points.items():
            track = self.tracks(number)
            points += struct.pack("<Q3d3Bd", number, *self.position(number), 10, 20, 30, error)
            points += struct.pack("<Q", len(track)) + b"".join(struct.pack("<II", *place) for place in track)
        (folder / "points3D.bin").write_bytes(points)

    def write(self, folder: Path, form: str) -> None:
        self.write_text(folder) if form == "txt" else self.write_binary(folder)
