"""PASCAL VOC 2011 with the keypoints that Bourdev and others annotated at Berkeley: 20 classes.

One XML file per object. The origin of its coordinates is not documented; they are fractions from an
annotation tool, and all publications use them as they are, as does this reader (if they counted from 1, that
would be an error of one pixel in 500). PCK's length is the longer side of the image that is returned: of the
crop around the object, or of the whole image.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.descriptions import PASCAL_BERKELEY as INFO
from ucn.data.pairs import Problem, limit_problems
from ucn.data.sets.layout import find_root
from ucn.data.sets.semantic.image_lists import OUTSIDE_SPLIT, read_image_list
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.sets.semantic.parts import Box, Example, Keypoints, mirror_by_names, object_window
from ucn.errors import DataError
from ucn.files.reading import read_binary

_ANIMAL = (
    "L_B_Elbow L_B_Paw L_EarBase L_Eye L_F_Elbow L_F_Paw Nose R_B_Elbow R_B_Paw R_EarBase R_Eye R_F_Elbow "
    "R_F_Paw TailBase Throat Withers"
)
PART_NAMES = {
    "aeroplane": "Bot_Rudder Bot_Rudder_Front L_Stabilizer L_WingTip Left_Engine_Back Left_Engine_Front "
    "Left_Wing_Base NoseTip Nose_Bottom Nose_Top R_Stabilizer R_WingTip Right_Engine_Back "
    "Right_Engine_Front Right_Wing_Base Top_Rudder",
    "bicycle": "B_WheelCenter B_WheelEnd B_WheelIntersection CranksetCenter F_WheelCenter F_WheelEnd "
    "F_WheelIntersection HandleCenter L_HandleTip R_HandleTip SeatBase",
    "bird": "Beak_Base Beak_Tip Left_Eye Left_Wing_Base Left_Wing_Tip Leg_Center Lower_Neck_Base Right_Eye "
    "Right_Wing_Base Right_Wing_Tip Tail_Tip Upper_Neck_Base",
    "boat": "Hull_Back_Bot Hull_Back_Top Hull_Front_Bot Hull_Front_Top Hull_Mid_Left_Bot Hull_Mid_Left_Top "
    "Hull_Mid_Right_Bot Hull_Mid_Right_Top Mast_Top Sail_Left Sail_Right",
    "bottle": "L_Base L_Neck L_Shoulder L_Top R_Base R_Neck R_Shoulder R_Top",
    "bus": "L_B_Base L_B_RoofTop L_F_Base L_F_RoofTop R_B_Base R_B_RoofTop R_F_Base R_F_RoofTop",
    "car": "L_B_RoofTop L_B_WheelCenter L_F_RoofTop L_F_WheelCenter L_HeadLight L_SideviewMirror L_TailLight "
    "R_B_RoofTop R_B_WheelCenter R_F_RoofTop R_F_WheelCenter R_HeadLight R_SideviewMirror R_TailLight",
    "cat": _ANIMAL,
    "chair": "BackRest_Top_Left BackRest_Top_Right Leg_Left_Back Leg_Left_Front Leg_Right_Back "
    "Leg_Right_Front Seat_Left_Back Seat_Left_Front Seat_Right_Back Seat_Right_Front",
    "cow": _ANIMAL,
    "diningtable": "Bot_Left_Back Bot_Left_Front Bot_Right_Back Bot_Right_Front Top_Left_Back Top_Left_Front "
    "Top_Right_Back Top_Right_Front",
    "dog": _ANIMAL,
    "horse": _ANIMAL,
    "motorbike": "B_WheelCenter B_WheelEnd ExhaustPipeEnd F_WheelCenter F_WheelEnd HandleCenter L_HandleTip "
    "R_HandleTip SeatBase TailLight",
    "person": "B_Head HeadBack L_Ankle L_Ear L_Elbow L_Eye L_Foot L_Hip L_Knee L_Shoulder L_Toes L_Wrist "
    "Nose R_Ankle R_Ear R_Elbow R_Eye R_Foot R_Hip R_Knee R_Shoulder R_Toes R_Wrist",
    "pottedplant": "Bottom_Left Bottom_Right Top_Back_Middle Top_Front_Middle Top_Left Top_Right",
    "sheep": _ANIMAL,
    "sofa": "Back_Base_Left Back_Base_Right Back_Top_Left Back_Top_Right Front_Base_Left Front_Base_Right "
    "Handle_Front_Left Handle_Front_Right Handle_Left_Junction Handle_Right_Junction Left_Junction "
    "Right_Junction",
    "train": "Base_Back_Left Base_Back_Right Base_Front_Left Base_Front_Right Roof_Back_Left Roof_Back_Right "
    "Roof_Front_Middle",
    "tvmonitor": "B_Bottom_Left B_Bottom_Right B_Top_Left B_Top_Right F_Bottom_Left F_Bottom_Right "
    "F_Top_Left F_Top_Right",
}
"""Names of the parts of each class, separated by blanks; their ids count from 0 in this order."""

_IMAGE_FOLDERS = (
    "JPEGImages",
    *(f"{place}/JPEGImages" for place in ("VOC2011", "VOCdevkit/VOC2011", "TrainVal/VOCdevkit/VOC2011")),
)
_MAX_XML_BYTES = 2**20
_REMEDY = "get the file again, or remove it"
_LAST_CLEAN_YEAR = 2008


class BerkeleyData(KeypointData):
    """Pairs of objects."""

    crop: bool = True

    def keypoints(self, example: Example) -> Keypoints:
        """The parts of an object, and its box; unknown part names are ignored with a note."""
        path = example.annotation
        root = _read_xml(path)
        image = (root.findtext("image") or "").strip()
        if image != example.image.stem:
            raise DataError(
                f"{path}: expected <image> {example.image.stem}, as in its name, got {image[:60]!r}; "
                f"{_REMEDY}"
            )
        index = {name: part for part, name in enumerate(PART_NAMES[example.category].split())}
        points, is_visible = np.full((len(index), 2), np.nan), np.zeros(len(index), np.bool_)
        for element in root.iterfind("keypoints/keypoint"):
            name = element.get("name", "")
            if name not in index:
                self.add_note(f"{path}: a {example.category} has no part {name[:40]!r}; ignored")
            elif element.get("visible") == "1":
                points[index[name]] = [_read_number(element, key, path) for key in ("x", "y")]
                is_visible[index[name]] = True
        return Keypoints(points, is_visible, path, box=_read_bounds(root, path))

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The longer side of the image."""
        return float(max(size_hw))

    def mirror_table(self, category: str) -> NDArray[np.int64]:
        """Left and right are exchanged, by the names of the parts."""
        return mirror_by_names(self.part_names_of(category))

    def part_names_of(self, category: str) -> Sequence[str]:
        """The names in the annotation files."""
        return PART_NAMES[category].split()

    def window(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> tuple[int, int, int, int] | None:
        """The object, unless `crop` is off."""
        return object_window(keypoints, size_hw) if self.crop else None


def open_folder(
    folder: Path, split: str, *, crop: bool = True, uncleaned: bool = False, list_file: str = ""
) -> BerkeleyData:
    """Opens the data set.

    Args:
        folder: holds annotations and JPEGImages.
        split: train, test or all. The 80 % that its authors trained on were not published; here a fifth of
            the images, chosen by a checksum of their names, is the test split.
        crop: crop to the object's bounds, enlarged to contain all its visible parts; otherwise the whole
            image is used, which may show other objects of the class, or the other object of the pair.
        uncleaned: include people in images after 2008, whose annotations had not been cleaned at the release.
        list_file: a text file of the objects to use, one per line such as aeroplane/2008_000021_1, or of the
            pairs to use, two per line; its path, absolute or in the folder.
    """
    root = find_root(folder, INFO.markers, INFO.inside)
    found, problems = _find_objects(root)
    notes: list[str] = []
    if not uncleaned:
        clean = [example for example in found if not _is_uncleaned(example)]
        if len(clean) < len(found):
            words = f"people in images after {_LAST_CLEAN_YEAR}, which are not cleaned, excluded"
            notes.append(f"{len(found) - len(clean):,} {words}")
        found = clean
    examples = [example for example in found if split == "all" or _is_test(example) == (split == "test")]
    pairs = None
    if list_file:
        rows = {name: OUTSIDE_SPLIT for example in found for name in _names(example)}
        rows |= {name: row for row, example in enumerate(examples) for name in _names(example)}
        chosen = read_image_list(root, list_file, rows)
        examples, pairs = chosen.choose(examples), chosen.pairs
        problems += chosen.problems
        notes += chosen.notes
    data = BerkeleyData(root, examples, pairs=pairs, problems=problems, notes=notes)
    data.crop = crop
    return data.require_pairs(
        split, f"no two objects of a class in annotations/CLASS/*.xml of {root} with their images"
    )


def _names(example: Example) -> tuple[str, str]:
    return example.name, f"{example.name}.xml"


def _is_test(example: Example) -> bool:
    # By name, so that an image is in the same split for all classes, whichever files exist.
    return zlib.crc32(example.image.stem.encode()) % 5 == 0


def _is_uncleaned(example: Example) -> bool:
    """The release notes warn of people in later years; image names begin with the year."""
    year = example.image.stem[:4]
    return example.category == "person" and year.isdigit() and int(year) > _LAST_CLEAN_YEAR


def _find_objects(root: Path) -> tuple[list[Example], list[Problem]]:
    """Objects of known classes with an image, sorted by class and name; problems of the others."""
    images = next((root / name for name in _IMAGE_FOLDERS if (root / name).is_dir()), None)
    if images is None:
        raise DataError(f"{root} has no images: expected PASCAL VOC 2011 in {' or '.join(_IMAGE_FOLDERS)}")
    present = {path.name for path in images.iterdir()}
    examples, problems = [], []
    # One pattern only: on case-insensitive file systems both find the same files.
    pattern = next(marker for marker in INFO.markers if next(root.glob(marker), None) is not None)
    for path in sorted(root.glob(pattern)):
        category, stem = path.parent.name, path.stem.rpartition("_")[0]
        if category not in PART_NAMES:
            message = f"'{category[:40]}' is none of the 20 classes of PASCAL VOC; remove the file"
            problems.append(Problem(path, message))
        elif f"{stem}.jpg" not in present:
            place = images.relative_to(root).as_posix()
            problems.append(Problem(path, f"no image {place}/{stem[:60]}.jpg; get it, or remove this file"))
        else:
            examples.append(Example(f"{category}/{path.stem}", category, images / f"{stem}.jpg", path))
    return examples, limit_problems(problems)


def _read_xml(path: Path) -> ElementTree.Element:
    """Reads an <annotation>; document types are refused, since their entities can grow without bound."""
    content = read_binary(path, "annotation", _MAX_XML_BYTES)
    if b"<!DOCTYPE" in content.upper() or b"<!ENTITY" in content.upper() or b"\0" in content:
        raise DataError(f"{path}: expected plain XML without a document type or entities; {_REMEDY}")
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        line = f":{error.position[0]}" if isinstance(error, ElementTree.ParseError) else ""
        raise DataError(f"{path}{line}: expected XML ({str(error)[:80]}); {_REMEDY}") from error
    if root.tag != "annotation":
        raise DataError(f"{path}: expected <annotation>, got <{root.tag[:40]}>; {_REMEDY}")
    return root


def _read_number(element: ElementTree.Element, key: str, path: Path) -> float:
    text = element.get(key, "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        name = element.get("name") or element.tag
        raise DataError(f"{path}: expected a number as {key} of {name[:40]}, got {text[:40]!r}; {_REMEDY}")
    return value


def _read_bounds(root: ElementTree.Element, path: Path) -> Box:
    bounds = root.find("visible_bounds")
    if bounds is None:
        raise DataError(f"{path}: expected <visible_bounds> with xmin, ymin, width and height; {_REMEDY}")
    x, y, width, height = (_read_number(bounds, key, path) for key in ("xmin", "ymin", "width", "height"))
    if width <= 0 or height <= 0:
        raise DataError(
            f"{path}: expected visible_bounds with an area, got {width:g} × {height:g}; {_REMEDY}"
        )
    return x, y, x + width, y + height
