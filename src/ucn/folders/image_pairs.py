"""Pairs of image files: from a list of names, or from two folders; and a file name for the output of each."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ucn.data.sets.layout import resolve_inside
from ucn.errors import DataError
from ucn.files.reading import find_real_path
from ucn.folders.extraction import list_image_names
from ucn.folders.pairing import Pair, pair_by_stem, pair_exhaustively
from ucn.formats.hloc_pairs import read_pair_list

_BLOCK_IMAGES = 16
_MAX_STEM_BYTES = 180  # file systems allow 255 for a name, with its digest and suffix
_UNSAFE = re.compile(r"[^\w. +=@,()-]")


@dataclass(frozen=True)
class ImagePair:
    """Two image files to match.

    Attributes:
        names: of both images, relative to their folders.
        paths: of both files.
    """

    names: Pair
    paths: tuple[Path, Path]


@dataclass(frozen=True)
class PairedFolders:
    """The pairs of two folders of images.

    Attributes:
        pairs: in the order of the images of the first folder.
        unpaired0: images of the first folder without a partner.
        unpaired1: images of the second folder without a partner.
    """

    pairs: tuple[ImagePair, ...]
    unpaired0: tuple[str, ...] = ()
    unpaired1: tuple[str, ...] = ()


def read_image_pairs(path: Path, root: Path) -> tuple[ImagePair, ...]:
    """Reads a list of pairs as `ucn pairs` and hloc write it, two names per line.

    A pair that comes again, in either order, is read once, as hloc does. Single images may be missing.

    Args:
        path: the list.
        root: the folder that its names are relative to.

    Raises:
        DataError: the list cannot be read or names no pair, a line is not two names of files inside
            `root`, or none of the images is there.
    """
    names = read_pair_list(path)
    if not names:
        raise DataError(f"{path} names no pair; expected two names of images per line; add them")
    pairs = tuple(
        ImagePair(pair, (resolve_inside(root, pair[0]), resolve_inside(root, pair[1]))) for pair in names
    )
    if not any(image.is_file() for pair in pairs for image in pair.paths):
        raise DataError(
            f"no image of {path} is in the folder {root} (the first one is {names[0][0]!r:.80}); give the "
            "folder that its names are relative to (root)"
        )
    return pairs


def pair_folders(folder0: Path, folder1: Path, all_pairs: bool = False) -> PairedFolders:
    """Pairs the images of two folders, searched recursively.

    Images with equal names below their folders are a pair, as are images whose names differ in the suffix
    alone.

    Args:
        folder0: of the first images.
        folder1: of the second images.
        all_pairs: pair every image of one with every image of the other, whatever their names; where both are
            one folder, every image with every other one.

    Raises:
        DataError: a folder is missing or has no image, or no names agree.
    """
    names0, names1 = list_image_names(folder0), list_image_names(folder1)
    is_same = find_real_path(folder0) == find_real_path(folder1)
    if all_pairs:
        names = pair_exhaustively(names0) if is_same else [(a, b) for a in names0 for b in names1]
    elif is_same:
        raise DataError(
            f"{folder0} is given twice, and an image is not matched with itself; give two folders, or pair "
            "all images by all_pairs=True"
        )
    else:
        names = pair_by_stem(names0, names1)
    if not names:
        raise DataError(
            f"no image of {folder0} ({_list_some(names0)}) has the name of one of {folder1} "
            f"({_list_some(names1)}); rename them, list the pairs in a file, or pair all images by "
            "all_pairs=True"
        )
    used0, used1 = ({pair[view] for pair in names} for view in (0, 1))
    return PairedFolders(
        tuple(ImagePair(pair, (folder0 / pair[0], folder1 / pair[1])) for pair in names),
        () if is_same else tuple(name for name in names0 if name not in used0),
        () if is_same else tuple(name for name in names1 if name not in used1),
    )


def name_outputs(pairs: Sequence[Pair]) -> list[str]:
    """File names without suffix for the outputs of pairs: flat, and different also where case is ignored.

    ``left/1.jpg`` and ``right/1.jpg`` give ``left-1__right-1``. Where other pairs would have the same name,
    or where it is very long, a hash of both names follows.

    Raises:
        DataError: a pair comes twice.
    """
    stems = ["__".join(map(_flatten, pair)) for pair in pairs]
    counts = Counter(stem.casefold() for stem in stems)
    names = [
        stem
        if counts[stem.casefold()] == 1 and len(stem.encode()) <= _MAX_STEM_BYTES
        else _add_digest(stem, pair)
        for stem, pair in zip(stems, pairs, strict=True)
    ]
    taken: dict[str, Pair] = {}
    for name, pair in zip(names, pairs, strict=True):
        other = taken.get(name.casefold())
        if other is not None:
            raise DataError(
                f"the pairs {' '.join(other)!r:.160} and {' '.join(pair)!r:.160} have one name for their "
                "outputs; remove one of them"
            )
        taken[name.casefold()] = pair
    return names


def order_by_images(pairs: Sequence[Pair]) -> list[int]:
    """Rows of pairs, in an order in which images recur soon: blocks of a few images with each other.

    Every image with every other one, in the order of a list, would come again after all others.
    """
    numbers: dict[str, int] = {}
    for pair in pairs:
        for name in pair:
            numbers.setdefault(name, len(numbers))

    def find_block(row: int) -> tuple[int, int]:
        first, second = sorted(numbers[name] // _BLOCK_IMAGES for name in pairs[row])
        return first, second

    return sorted(range(len(pairs)), key=find_block)


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (", …" if len(names) > 2 else "")


def _flatten(name: str) -> str:
    """A name without its suffix as part of a file name: no folders, no leading dot or dash."""
    flat = str(PurePosixPath(name).with_suffix("")).replace("/", "-")
    return _UNSAFE.sub("_", unicodedata.normalize("NFC", flat)).lstrip(".-") or "_"


def _add_digest(stem: str, pair: Pair) -> str:
    digest = hashlib.sha256(json.dumps(pair).encode()).hexdigest()[:12]
    return f"{stem.encode()[:_MAX_STEM_BYTES].decode(errors='ignore')}-{digest}"
