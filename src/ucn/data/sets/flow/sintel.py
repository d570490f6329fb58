"""MPI Sintel: frames of an animated film with exact flow and masks of what is hidden in the next frame."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from ucn.data.catalogue import DataInfo
from ucn.data.io import read_image, read_mask
from ucn.data.pairs import check_choice
from ucn.data.sets.flow.dense import DenseData, DensePair, SizeHW, TruthFile, read_flow_of, read_header_hw
from ucn.data.sets.layout import find_image, find_root
from ucn.errors import DataError
from ucn.geometry.warp import targets_of_flow

INFO = DataInfo(
    name="sintel",
    title="MPI Sintel flow (2012)",
    task="geometric",
    truth="exact dense flow to the next frame, from the film's 3-D models; the test part has no public truth",
    layout=(
        "training/clean/SCENE/frame_NNNN.png and training/final/SCENE/frame_NNNN.png",
        "training/flow/SCENE/frame_NNNN.flo",
        "training/occlusions/SCENE/frame_NNNN.png and training/invalid/SCENE/frame_NNNN.png",
    ),
    splits=("training", "train", "val"),
    licence="data for research, cite its authors; the film Sintel is CC BY 3.0, © Blender Foundation",
    source="http://sintel.is.tue.mpg.de/",
    markers=("training/flow",),
    inside=("MPI-Sintel-complete", "MPI-Sintel"),
)

VALIDATION_SCENES = ("bandage_1", "bandage_2", "temple_2", "temple_3")
"""Held out by split val: 196 of 1,041 pairs. Whole places of the film, one of small motion, one of large."""


def open_folder(
    folder: Path, split: str, *, render_pass: str = "clean", keep_occluded: bool = False
) -> Sintel:
    """Opens MPI Sintel.

    Args:
        folder: holds ``training``.
        split: training (all scenes), val (`VALIDATION_SCENES`), or train (the others).
        render_pass: clean, or final, which has motion blur, defocus and mist.
        keep_occluded: keep pixels that are hidden in the next frame; their flow is known all the same.
    """
    check_choice(split, INFO.splits, "split")
    check_choice(render_pass, ("clean", "final"), "option render_pass of sintel")
    if (folder / "test").is_dir() and not (folder / "training").is_dir():
        raise DataError(f"{folder} holds only Sintel's test frames, whose truth is not public; get training")
    return Sintel(find_root(folder, INFO.markers, INFO.inside), split, render_pass, keep_occluded)


class Sintel(DenseData):
    """Each frame with the next one of its scene."""

    def __init__(self, root: Path, split: str, render_pass: str, keep_occluded: bool) -> None:
        super().__init__(root)
        training = root / "training"
        masks = ("invalid",) if keep_occluded else ("invalid", "occlusions")
        for needed in (render_pass, *masks):
            if not (training / needed).is_dir():
                raise DataError(f"no folder {training / needed}: unpack Sintel's complete training archive")
        folders = (*(training / "flow").iterdir(), *(training / render_pass).iterdir())
        for scene in sorted({folder.name for folder in folders if folder.is_dir()}):
            if split == "training" or (split == "val") == (scene in VALIDATION_SCENES):
                self._add_scene(training, scene, render_pass, masks)
        self.require_pairs(split, f"training/flow/SCENE/frame_NNNN.flo of a scene of '{split}'")

    def _add_scene(self, training: Path, scene: str, render_pass: str, masks: tuple[str, ...]) -> None:
        images = training / render_pass / scene
        with_flow = _list_numbers(training / "flow" / scene, "flo")
        numbers = with_flow | _list_numbers(images, "[a-z]+")
        for number in sorted(numbers):
            if number in with_flow or number + 1 in numbers:  # the last frame of a scene has no next one
                frame = f"frame_{number:04}.png"
                truth = [TruthFile(training / mask / scene / frame, "mask") for mask in masks]
                truth.append(TruthFile(training / "flow" / scene / f"frame_{number:04}.flo", "flow"))
                self._add(images, number, tuple(truth))

    def _add(self, images: Path, number: int, truth: tuple[TruthFile, ...]) -> None:
        first, second = images / f"frame_{number:04}", images / f"frame_{number + 1:04}"
        image0, image1 = find_image(first), find_image(second)
        missing = [file.path for file in truth if not file.path.is_file()]
        if image0 is None or image1 is None:
            missing.insert(0, (first if image0 is None else second).with_suffix(".png"))
        if missing:
            self.add_fault(missing[0], f"no such file, though {first.name} has others; unpack Sintel again")
        elif image0 is not None and image1 is not None:
            name = f"{images.parent.name}/{images.name}/{first.name}"
            self.pairs.append(DensePair(name, image0, image1, truth))

    def read_targets(self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW) -> Tensor:
        """Where the pixels go that no mask marks."""
        flow = read_flow_of(pair.truth[-1].path, pair.image0, image0_hw)
        for mask in pair.truth[:-1]:
            # Sintel's README: 0 is visible and valid, anything else is not.
            flow[read_mask(mask.path, image0_hw)] = torch.nan
        return targets_of_flow(flow[None])[0]

    def check_truth(self, pair: DensePair, file: TruthFile) -> object:
        """Reads the flow or a mask."""
        image_hw = read_header_hw(pair.image0)
        if file.kind == "flow":
            return read_flow_of(file.path, pair.image0, image_hw)
        return read_image(file.path) if image_hw is None else read_mask(file.path, image_hw)


def _list_numbers(folder: Path, suffix: str) -> set[int]:
    if not folder.is_dir():
        return set()
    found = (re.fullmatch(rf"frame_([0-9]{{4}})\.{suffix}", path.name) for path in folder.iterdir())
    return {int(match[1]) for match in found if match}
