"""Middlebury flow: eight scenes with public ground truth, from hidden fluorescent texture or rendered."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ucn.data.descriptions import MIDDLEBURY_FLOW as INFO
from ucn.data.io import read_header_hw
from ucn.data.sets.flow.dense_pairs import DenseData, DensePair, GroundTruthFile, SizeHW, read_flow_for
from ucn.data.sets.layout import find_root
from ucn.errors import DataError
from ucn.geometry.warp import targets_of_flow

_IMAGE_FOLDERS = ("other-data", "other-data-gray")


def open_folder(folder: Path, split: str) -> MiddleburyFlow:
    """Opens Middlebury flow.

    Args:
        folder: holds ``other-gt-flow`` and ``other-data``.
        split: all.
    """
    return MiddleburyFlow(find_root(folder, INFO.markers, INFO.inside), split)


class MiddleburyFlow(DenseData):
    """Frames 10 and 11 of the scenes whose flow is public."""

    def __init__(self, root: Path, split: str) -> None:
        super().__init__(root)
        images = next((root / name for name in _IMAGE_FOLDERS if (root / name).is_dir()), None)
        if images is None:
            raise DataError(f"{root} has no images: expected the folder {' or '.join(_IMAGE_FOLDERS)} in it")
        flows = root / "other-gt-flow"
        for scene in sorted(path.name for path in flows.iterdir() if path.is_dir()):
            files = (GroundTruthFile(flows / scene / "flow10.flo", "flow"),)
            self.add_pair(scene, images / scene / "frame10", images / scene / "frame11", files, scene)
        self.require_pairs(split, f"no other-gt-flow/SCENE/flow10.flo in {root}")
        # Four of the official twelve have no public flow (Beanbags, DogDance, MiniCooper, Walking).
        without = [p.name for p in images.iterdir() if p.is_dir() and not (flows / p.name).is_dir()]
        if without:
            self.notes.append(f"excluded, since their flow is missing: {', '.join(sorted(without))}")

    def read_targets(self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW) -> Tensor:
        """The flow of all pixels where it is known."""
        flow = read_flow_for(pair.ground_truth[-1].path, pair.image0, image0_hw)
        return targets_of_flow(flow[None])[0]

    def check_ground_truth(self, pair: DensePair, file: GroundTruthFile) -> object:
        """Reads the flow."""
        return read_flow_for(file.path, pair.image0, read_header_hw(pair.image0))
