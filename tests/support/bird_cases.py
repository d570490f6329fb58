"""A small folder in the layout of CUB-200-2011, of synthetic textures."""

from pathlib import Path

import PIL.Image
from torch import Tensor

from support.photo_cases import make_photo
from support.semantic_files import write_text


def write_photo(path: Path, photo: Tensor) -> None:
    """Writes (3, H, W) in [0, 1]; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray((photo * 255).byte().permute(1, 2, 0).numpy()).save(path)


def write_birds(folder: Path, size_hw: tuple[int, int] = (48, 64)) -> Path:
    """Two species of birds, six training images each, three parts on every image."""
    root = folder / "CUB_200_2011"
    names = [f"{kind:03}.Kind/{image}.png" for kind in (1, 2) for image in range(6)]
    for seed, name in enumerate(names):
        write_photo(root / "images" / name, make_photo(*size_hw, seed=seed))
    ids = range(1, len(names) + 1)
    write_text(root / "images.txt", *(f"{i} {name}" for i, name in zip(ids, names, strict=True)))
    write_text(root / "image_class_labels.txt", *(f"{i} {1 + (i > 6)}" for i in ids))
    write_text(root / "train_test_split.txt", *(f"{i} 1" for i in ids))
    write_text(root / "classes.txt", "1 001.Kind", "2 002.Kind")
    write_text(root / "bounding_boxes.txt", *(f"{i} 4 4 50 40" for i in ids))
    write_text(root / "parts" / "parts.txt", "1 back", "2 left eye", "3 right eye")
    places = [(i, part, 8 * part + i, 10 * part) for i in ids for part in (1, 2, 3)]
    write_text(root / "parts" / "part_locs.txt", *(f"{i} {part} {x} {y} 1" for i, part, x, y in places))
    return folder
