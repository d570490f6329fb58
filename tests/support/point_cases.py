"""Points files that tests share."""

import json
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> Path:
    """Writes text as it is, in UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def write_json(path: Path, values: Any) -> Path:
    """Writes a JSON file."""
    return write_text(path, json.dumps(values))


def coco_values() -> dict[str, Any]:
    """COCO keypoints: two birds in two images; the right eye is missing in both."""
    return {
        "images": [
            {"id": 1, "file_name": "a.png", "width": 20, "height": 16},
            {"id": 7, "file_name": "sub/b.png", "width": 24, "height": 18},
        ],
        "categories": [{"id": 3, "name": "bird", "keypoints": ["left eye", "right eye", "beak"]}],
        "annotations": [
            {
                "id": 11,
                "image_id": 1,
                "category_id": 3,
                "keypoints": [1, 2, 2, 0, 0, 0, 5, 6, 1],
                "bbox": [0, 1, 10, 12],
            },
            {"id": 12, "image_id": 7, "category_id": 3, "keypoints": [7, 8, 2, 0, 0, 0, 0, 0, 0]},
        ],
    }


def labelme_values() -> dict[str, Any]:
    """A labelme file of ``a.png``: two points and a polygon."""
    return {
        "version": "5.4.1",
        "flags": {},
        "imagePath": "..\\photos\\a.png",
        "imageData": None,
        "imageHeight": 16,
        "imageWidth": 20,
        "shapes": [
            {"label": "left eye", "points": [[1.5, 2.5]], "group_id": None, "shape_type": "point"},
            {"label": "wing", "points": [[1, 1], [2, 2], [3, 1]], "shape_type": "polygon"},
            {
                "label": "beak",
                "points": [[3.5, 4.5]],
                "group_id": 3,
                "shape_type": "point",
                "description": "worn",
            },
        ],
    }
