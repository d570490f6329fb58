"""Middlebury flow: eight scenes with public truth, from hidden fluorescent texture or rendered."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ucn.data.catalogue import DataInfo
from ucn.data.pairs import check_choice
from ucn.data.sets.flow.dense import DenseData, DensePair, SizeHW, TruthFile, read_flow_of, read_header_hw
from ucn.data.sets.layout import find_image, find_root
from ucn.errors import DataError
from ucn.geometry.warp import targets_of_flow

INFO = DataInfo(
    name="middlebury-flow",
    title="Middlebury optical flow, the other set with public truth (2007)",
    task="geometric",
    truth="dense flow; places hidden in the next frame are not marked, and not dropped",
    layout=(
        "other-data/SCENE/frame10.png and frame11.png (or other-data-gray)",
        "other-gt-flow/SCENE/flow10.flo",
    ),
    splits=("all",),
    licence="no licence is given; free for research by custom, cite its authors",
    source="https://vision.middlebury.edu/flow/data/",
    markers=("other-gt-flow",),
)

_IMAGE_FOLDERS = ("other-data", "other-data-gray")


def open_folder(folder: Path, split: str) -> MiddleburyFlow:
    """Opens Middlebury flow.

    Args:
        folder: holds ``other-gt-flow`` and ``other-data``.
        split: all.
    """
    check_choice(split, INFO.splits, "split")
    return MiddleburyFlow(find_root(folder, INFO.markers, INFO.inside), split)


class MiddleburyFlow(DenseData):
    """Frames 10 and 11 of the scenes whose flow is public."""

    def __init__(self, root: Path, split: str) -> None:
        super().__init__(root)
        images = next((root / name for name in _IMAGE_FOLDERS if (root / name).is_dir()), None)
        if images is None:
            raise DataError(f"{root} has no images: expected the folder {' or '.join(_IMAGE_FOLDERS)} in it")
        truth = root / "other-gt-flow"
        for scene in sorted(path.name for path in truth.iterdir() if path.is_dir()):
            self._add(scene, images / scene, truth / scene / "flow10.flo")
        self.require_pairs(split, "other-gt-flow/SCENE/flow10.flo")
        # Four of the official twelve have no public flow (Beanbags, DogDance, MiniCooper, Walking).
        without = [p.name for p in images.iterdir() if p.is_dir() and not (truth / p.name).is_dir()]
        if without:
            self.notes.append(f"left out, since their flow is not there: {', '.join(sorted(without))}")

    def _add(self, scene: str, images: Path, flow: Path) -> None:
        image0, image1 = find_image(images / "frame10"), find_image(images / "frame11")
        if not flow.is_file():
            self.add_fault(flow, "no such file, though its folder is there; unpack the flow again")
        elif image0 is None or image1 is None:
            path = images / ("frame10.png" if image0 is None else "frame11.png")
            self.add_fault(path, f"no such file, though {scene} has flow; unpack the images again")
        else:
            self.pairs.append(DensePair(scene, image0, image1, (TruthFile(flow, "flow"),)))

    def read_targets(self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW) -> Tensor:
        """Where the pixels with known flow go; the format marks unknown vectors by more than 1e9."""
        flow = read_flow_of(pair.truth[-1].path, pair.image0, image0_hw)
        return targets_of_flow(flow[None])[0]

    def check_truth(self, pair: DensePair, file: TruthFile) -> object:
        """Reads the flow."""
        return read_flow_of(file.path, pair.image0, read_header_hw(pair.image0))
