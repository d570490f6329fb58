"""FlowWeb's sets (Zhou et al. 2015): 12 rigid classes of PASCAL, cropped and scaled to 150 pixels.

Its points are those of PASCAL3D+, moved with the crop. Their origin is not documented; but an unmarked part
lies at minus the scale of the crop, which is where 0 lands if 1 is subtracted before scaling. So the numbers
count from 0 and are used as they are. A part may lie outside the crop; FlowWeb's evaluation ignores such
parts, and so does this reader. PCK's length is the longer side of the image.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.descriptions import FLOWWEB as INFO
from ucn.data.sets.layout import find_root
from ucn.data.sets.semantic.image_lists import find_examples
from ucn.data.sets.semantic.keypoint_pairs import KeypointData, training_count
from ucn.data.sets.semantic.matlab import REMEDY, read_mat
from ucn.data.sets.semantic.parts import Example, Keypoints, mirror_by_names
from ucn.errors import DataError

# Names in PASCAL3D+'s order, which the files keep (verified on cars); a class with another number of parts
# is read without names.
PART_NAMES = {
    "aeroplane": "left_elevator left_wing noselanding right_elevator right_wing rudder_lower rudder_upper "
    "tail",
    "bicycle": "head_center left_back_wheel left_front_wheel left_handle left_pedal_center right_back_wheel "
    "right_front_wheel right_handle right_pedal_center seat_back seat_front",
    "boat": "head head_down head_left head_right tail_left tail_right tail",
    "bottle": "mouth body body_left body_right bottom bottom_left bottom_right",
    "bus": "body_back_left_lower body_back_left_upper body_back_right_lower body_back_right_upper "
    "body_front_left_upper body_front_right_upper body_front_left_lower body_front_right_lower "
    "left_back_wheel left_front_wheel right_back_wheel right_front_wheel",
    "car": "left_front_wheel left_back_wheel right_front_wheel right_back_wheel upper_left_windshield "
    "upper_right_windshield upper_left_rearwindow upper_right_rearwindow left_front_light right_front_light "
    "left_back_trunk right_back_trunk",
    "chair": "back_upper_left back_upper_right seat_upper_left seat_upper_right seat_lower_left "
    "seat_lower_right leg_upper_left leg_upper_right leg_lower_left leg_lower_right",
    "diningtable": "leg_upper_left leg_upper_right leg_lower_left leg_lower_right top_upper_left "
    "top_upper_right top_lower_left top_lower_right top_up top_down top_left top_right",
    "motorbike": "back_seat front_seat head_center headlight_center left_back_wheel left_front_wheel "
    "left_handle_center right_back_wheel right_front_wheel right_handle_center",
    "sofa": "front_bottom_left front_bottom_right seat_bottom_left seat_bottom_right left_bottom_back "
    "right_bottom_back top_left_corner top_right_corner seat_top_left seat_top_right",
    "train": "head_left_bottom head_left_top head_right_bottom head_right_top head_top mid1_left_bottom "
    "mid1_left_top mid1_right_bottom mid1_right_top mid2_left_bottom mid2_left_top mid2_right_bottom "
    "mid2_right_top tail_left_bottom tail_left_top tail_right_bottom tail_right_top",
    "tvmonitor": "front_bottom_left front_bottom_right front_top_left front_top_right back_bottom_left "
    "back_bottom_right back_top_left back_top_right",
}
"""Names of the parts of each class, separated by blanks."""


class FlowWebData(KeypointData):
    """Pairs of objects cropped from PASCAL's images."""

    outside_share = math.inf

    def keypoints(self, example: Example) -> Keypoints:
        """The parts of an object; a file may have none."""
        path = example.annotation
        found = read_mat(path, ["keypts", "keypts_status"])
        points, status = found["keypts"], found["keypts_status"].ravel()
        if points.size == 0:
            return Keypoints(np.zeros((0, 2)), np.zeros(0, np.bool_), path)
        if points.ndim != 2 or points.shape != (2, len(status)):
            shapes = f"{points.shape} and {found['keypts_status'].shape}"
            raise DataError(
                f"{path}: expected keypts of 2 × K and keypts_status of 1 × K, got {shapes}; {REMEDY}"
            )
        is_visible = status == 1
        if not np.isfinite(points[:, is_visible]).all():
            raise DataError(f"{path}: expected finite keypts where keypts_status is 1; {REMEDY}")
        return Keypoints(points.T, is_visible, path)

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The longer side of the image."""
        return float(max(size_hw))

    def mirror_table(self, category: str) -> NDArray[np.int64] | None:
        """Left and right are exchanged, by the names of PASCAL3D+."""
        names = self.part_names_of(category)
        return mirror_by_names(names) if names else None

    def part_names_of(self, category: str) -> Sequence[str]:
        """The names of PASCAL3D+; none for other classes."""
        return PART_NAMES.get(re.sub(r"_set_.*", "", category), "").split()


def open_folder(folder: Path, split: str) -> FlowWebData:
    """Opens the data set.

    Args:
        folder: data, or the folder that holds it.
        split: all; train, the first 80 % of each set by name; or test, the rest.
    """
    root = find_root(folder, INFO.markers, INFO.inside)
    found, problems = find_examples(root, INFO.markers[0])
    examples: list[Example] = []
    for _, group in itertools.groupby(found, lambda example: example.category):
        members = list(group)
        count = training_count(len(members))
        examples += {"all": members, "train": members[:count], "test": members[count:]}[split]
    data = FlowWebData(root, examples, problems=problems)
    return data.require_pairs(split, f"no two images with .mat files in a folder of {root} such as car_set_1")
