"""The table of shipped weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class WeightsInfo:
    """Task, data, licence and limits of weights.

    Attributes:
        name: what `Matcher.from_pretrained` takes.
        sha256: of the file.
        task: 'geometric', 'semantic' or both.
        data: what it was trained on.
        licence: of the weights.
        restrictions: limits of use.
        metrics: by name of data set, split and metric, measured by the command on the card.
        description: one sentence.
        file_bytes: size of the file; 0 where unknown.
    """

    name: str
    sha256: str
    task: str
    data: str
    licence: str
    restrictions: str
    description: str
    metrics: dict[str, float] = field(default_factory=dict)
    file_bytes: int = 0

    @classmethod
    def of_file(cls, path: Path, sha256: str, file_bytes: int) -> Self:
        """The entry of a file that is not in the table."""
        unknown = "not in the table of shipped weights"
        return cls(str(path), sha256, unknown, unknown, unknown, unknown, unknown, {}, file_bytes)


_GEOMETRIC = WeightsInfo(
    name="geometric",
    sha256="7c0484a360f30556a1ec57f4ec400dc56a0a95d580153570a29e96644449039b",
    task="geometric",
    data="synthetic views of 467 photographs and real views of 4 scenes, all under open licences; trunk from "
    "BVLC GoogLeNet (ImageNet)",
    licence="MIT (training photographs under licences that allow any use, see the card)",
    restrictions="same scene only, not semantic; scale changes up to about 4",
    description="Finds the same point of one scene in two photographs of it.",
    metrics={"HPatches pck@3": 87.1, "HPatches pck@5": 94.5, "HPatches pck@10": 97.3},
)

_BIRDS = WeightsInfo(
    name="birds",
    sha256="e2f2a718475a7e7ce2627b126768c2d29591fce5c5d8d66c449a9ad39c5ff0fd",
    task="semantic",
    data="parts of 5,994 photographs of birds (CUB-200-2011); trunk from BVLC GoogLeNet (ImageNet)",
    licence="MIT (the authors' rights; training photographs for non-commercial research, see the card)",
    restrictions="birds only; images are reduced to 160 px",
    description="Finds the same part (beak, eye, wing, …) of another bird.",
    metrics={"CUB test pck@0.1": 95.3, "CUB test pck@0.05": 88.5, "CUB test pck@0.025": 71.6},
)

_UNIVERSAL = WeightsInfo(
    name="universal",
    sha256="5dcb839280fb1999aabe0b9be3dda6327438bd62884f876e65e3aebc38ec4a58",
    task="geometric and semantic",
    data="synthetic views of 2,128 photographs, parts of 5,994 photographs of birds, 68 points of 400 faces, "
    "40 frames of KITTI odometry, 23 scenes with COLMAP reconstructions, objects, pets and Caltech 101 "
    "without points; trunk from `birds`, semantic level from BVLC GoogLeNet",
    licence="MIT (the authors' rights; training images for non-commercial use, see the card)",
    restrictions="research use: birds, faces, streets, objects and some scenes were published for "
    "non-commercial use",
    description="One network for the same point of a scene and the same part of another object.",
    metrics={
        "PF-WILLOW pck@0.15": 87.6,
        "PF-WILLOW pck@0.1": 74.8,
        "PF-WILLOW pck@0.05": 44.2,
    },
)

_GEOMETRIC_LITE = WeightsInfo(
    name="geometric-lite",
    sha256="5a4e06ccf1e0e11b6ba98c1b48d85ff30b2e4ca8c99999260b67d36d87ec935e",
    task="geometric",
    data="synthetic views of 2,128 photographs, distilled from an earlier `geometric`",
    licence="MIT (the authors' rights; training photographs under mixed licences, see the card)",
    restrictions="as geometric, with less accurate positions; many "
    "photographs were published for non-commercial research",
    description="As geometric, many times faster on a CPU and less accurate.",
    metrics={"HPatches pck@3": 84.3, "HPatches pck@5": 92.4, "HPatches pck@10": 96.4},
)

SHIPPED: dict[str, WeightsInfo] = {
    info.name: info for info in (_GEOMETRIC, _GEOMETRIC_LITE, _BIRDS, _UNIVERSAL)
}


def shipped_path(info: WeightsInfo) -> Path:
    """The file of shipped weights."""
    return Path(__file__).with_name(f"{info.name}.safetensors")


def list_weights() -> tuple[WeightsInfo, ...]:
    """All shipped weights, with their file sizes."""
    return tuple(replace(info, file_bytes=shipped_path(info).stat().st_size) for info in SHIPPED.values())
