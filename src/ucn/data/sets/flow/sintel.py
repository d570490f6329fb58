"""MPI Sintel: frames of an animated film with exact flow and occlusion masks."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ucn.data.descriptions import SINTEL as INFO
from ucn.data.io import read_header_hw, read_image, read_mask
from ucn.data.pairs import check_choice
from ucn.data.sets.flow.dense_pairs import DenseData, DensePair, GroundTruthFile, SizeHW, read_flow_for
from ucn.data.sets.layout import find_root, list_numbered
from ucn.errors import DataError
from ucn.geometry.warp import targets_of_flow

VALIDATION_SCENES = ("bandage_1", "bandage_2", "temple_2", "temple_3")
"""Held out by split val: 196 of 1,041 pairs. Two locations of the film, one of small motion, one of large."""


def open_folder(
    folder: Path, split: str, *, render_pass: str = "clean", keep_occluded: bool = False
) -> Sintel:
    """Opens MPI Sintel.

    Args:
        folder: holds ``training``.
        split: training (all scenes), val (`VALIDATION_SCENES`), or train (the others).
        render_pass: clean, or final, which has motion blur, defocus and mist.
        keep_occluded: keep pixels that are occluded in the next frame; their flow is known, too.
    """
    check_choice(render_pass, ("clean", "final"), "option render_pass of sintel")
    if (folder / "test").is_dir() and not (folder / "training").is_dir():
        raise DataError(
            f"{folder} holds only Sintel's test frames, whose ground truth is not public; get training"
        )
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
        self.require_pairs(split, f"no training/flow/SCENE/frame_NNNN.flo of a scene of that split in {root}")

    def _add_scene(self, training: Path, scene: str, render_pass: str, masks: tuple[str, ...]) -> None:
        images = training / render_pass / scene
        with_flow = list_numbered(training / "flow" / scene, r"frame_([0-9]{4})\.flo").keys()
        numbers = with_flow | list_numbered(images, r"frame_([0-9]{4})\.[a-z]+").keys()
        for number in sorted(numbers):
            if number in with_flow or number + 1 in numbers:  # the last frame of a scene has no next one
                frame = f"frame_{number:04}.png"
                files = [GroundTruthFile(training / mask / scene / frame, "mask") for mask in masks]
                files.append(GroundTruthFile(training / "flow" / scene / f"frame_{number:04}.flo", "flow"))
                first, second = images / f"frame_{number:04}", images / f"frame_{number + 1:04}"
                name = f"{render_pass}/{scene}/{first.name}"
                self.add_pair(name, first, second, tuple(files), first.name)

    def read_targets(self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW) -> Tensor:
        """The flow of all pixels that no mask excludes."""
        flow = read_flow_for(pair.ground_truth[-1].path, pair.image0, image0_hw)
        for mask in pair.ground_truth[:-1]:
            # Sintel's README: 0 is visible and valid, anything else is not.
            flow[read_mask(mask.path, image0_hw)] = torch.nan
        return targets_of_flow(flow[None])[0]

    def check_ground_truth(self, pair: DensePair, file: GroundTruthFile) -> object:
        """Reads the flow or a mask."""
        image_hw = read_header_hw(pair.image0)
        if file.kind == "flow":
            return read_flow_for(file.path, pair.image0, image_hw)
        return read_image(file.path) if image_hw is None else read_mask(file.path, image_hw)
