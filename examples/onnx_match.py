"""Match two images with an exported network, with onnxruntime and numpy only, without torch and ucn.

    ucn export geometric -o ucn.onnx          # or with --pair
    python examples/onnx_match.py ucn.onnx a.jpg b.jpg matches.csv

Both kinds of file work; the metadata of the file describes its kind and its inputs.
"""

import sys
from typing import Any

import numpy as np
import onnxruntime
import PIL.Image
import PIL.ImageOps

Array = np.ndarray[Any, Any]

AT_ONCE = 2048
"""Cells that are compared with all cells of the other image at a time."""


def main() -> None:
    """Matches the images named on the command line."""
    if len(sys.argv) == 1:
        print(__doc__)
        return
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    network, path0, path1, output = sys.argv[1:]
    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    sides = int(metadata["min_side"]), int(metadata["max_side"])
    (image0, scale0), (image1, scale1) = (read_image(path, *sides) for path in (path0, path1))
    if metadata["kind"] == "pair":
        points0, points1, scores, is_mutual = session.run(None, {"image0": image0, "image1": image1})
        keep = is_mutual & (scores >= 0.5)
        points0, points1, scores = points0[keep], points1[keep], scores[keep]
    else:
        map0, map1 = (session.run(None, {"images": image})[0][0] for image in (image0, image1))
        points0, points1, scores = match_cells(map0, map1, int(metadata["stride"]), float(metadata["offset"]))
    # Pixel centres are at integers, so half a pixel is added before scaling and subtracted after it.
    points0, points1 = (points0 + 0.5) * scale0 - 0.5, (points1 + 0.5) * scale1 - 0.5
    rows = np.column_stack([points0, points1, scores])
    np.savetxt(output, rows, "%.3f", ",", header="x0,y0,x1,y1,score", comments="")
    print(f"{len(rows)} matches in {output}; weights {metadata['weights']}, licence: {metadata['licence']}")


def read_image(path: str, min_side: int, max_side: int) -> tuple[Array, Array]:
    """An image (1, 3, H, W) RGB in [0, 1], reduced to the longest side, and the scale of its points (x, y).

    A long thin image is reduced less, since the network needs a minimum side.
    """
    with PIL.Image.open(path) as file:
        image = PIL.ImageOps.exif_transpose(file).convert("RGB")
    width, height = image.size
    if min(width, height) < min_side:
        sys.exit(
            f"{path} must have at least {min_side} pixels a side, got {width} × {height}; enlarge it first"
        )
    factor = min(1.0, max(max_side / max(width, height), min_side / min(width, height)))
    image = image.resize((round(width * factor), round(height * factor)), PIL.Image.Resampling.BILINEAR)
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255
    return np.ascontiguousarray(pixels), np.array([width / image.width, height / image.height])


def match_cells(map0: Array, map1: Array, stride: int, offset: float) -> tuple[Array, Array, Array]:
    """Mutual nearest neighbours: points (N, 2) of both images, and their cosine similarities."""
    cells0, cells1 = (features.reshape(len(features), -1) for features in (map0, map1))
    to1, similarities = find_nearest(cells0, cells1)
    to0, _ = find_nearest(cells1, cells0)
    mutual = np.flatnonzero(to0[to1] == np.arange(len(to1)))
    points0, points1 = (
        np.stack([cells % features.shape[2], cells // features.shape[2]], axis=-1) * stride + offset
        for cells, features in ((mutual, map0), (to1[mutual], map1))
    )
    return points0, points1, similarities[mutual]


def find_nearest(queries: Array, cells: Array) -> tuple[Array, Array]:
    """Index and similarity of the most similar cell (D, M) for each query (D, N), in blocks."""
    indices, similarities = [], []
    for start in range(0, queries.shape[1], AT_ONCE):
        block = queries[:, start : start + AT_ONCE].T @ cells
        indices.append(block.argmax(axis=1))
        similarities.append(block.max(axis=1))
    return np.concatenate(indices), np.concatenate(similarities)


if __name__ == "__main__":
    main()
