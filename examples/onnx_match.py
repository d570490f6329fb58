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
FINE_STEPS = 8
"""Positions per cell and axis that are compared below the cell."""


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
    fixed = (int(metadata["width"]), int(metadata["height"])) if "width" in metadata else None
    (image0, scale0), (image1, scale1) = (read_image(path, *sides, fixed) for path in (path0, path1))
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


def read_image(
    path: str, min_side: int, max_side: int, fixed: tuple[int, int] | None = None
) -> tuple[Array, Array]:
    """An image (1, 3, H, W) RGB in [0, 1], reduced to the longest side, and the scale of its points (x, y).

    A long thin image is reduced less, since the network needs a minimum side; one of fixed size gets that.
    """
    with PIL.Image.open(path) as file:
        image = PIL.ImageOps.exif_transpose(file).convert("RGB")
    width, height = image.size
    if min(width, height) < min_side:
        sys.exit(
            f"{path} must have at least {min_side} pixels a side, got {width} × {height}; enlarge it first"
        )
    factor = min(1.0, max(max_side / max(width, height), min_side / min(width, height)))
    size = fixed or (round(width * factor), round(height * factor))
    image = image.resize(size, PIL.Image.Resampling.BILINEAR)
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255
    return np.ascontiguousarray(pixels), np.array([width / image.width, height / image.height])


def match_cells(map0: Array, map1: Array, stride: int, offset: float) -> tuple[Array, Array, Array]:
    """Mutual nearest neighbours: points (N, 2) of both images, and their cosine similarities.

    Those of the first image are cells, those of the second are refined below the cell.
    """
    cells0, cells1 = (features.reshape(len(features), -1) for features in (map0, map1))
    to1, _ = find_nearest(cells0, cells1)
    to0, _ = find_nearest(cells1, cells0)
    mutual = np.flatnonzero(to0[to1] == np.arange(len(to1)))
    columns = map0.shape[2]
    points0 = np.stack([mutual % columns, mutual // columns], axis=-1)
    points1, similarities = refine_cells(cells0[:, mutual].T, map1, to1[mutual])
    return points0 * stride + offset, points1 * stride + offset, similarities


def refine_cells(queries: Array, features: Array, nearest: Array) -> tuple[Array, Array]:
    """Moves matches from cells to where the interpolated descriptor is most similar, as ucn does.

    The descriptor between cells is the normalised bilinear interpolation of the cells around it. It is
    compared at a fine grid of positions; a parabola through the best and its neighbours gives the peak.

    Args:
        queries: (N, D) descriptors of the first image.
        features: (D, h, w) of the second image.
        nearest: (N,) the most similar cell of each query.

    Returns:
        (N, 2) x and y in cells, and (N,) cosine similarities.
    """
    height, width = features.shape[1:]
    steps = np.arange(-1, 2)
    rows = (nearest // width)[:, None, None] + steps[:, None] + 0 * steps
    columns = (nearest % width)[:, None, None] + 0 * steps[:, None] + steps
    is_inside = ((rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)).reshape(-1, 9)
    around = features[:, rows.clip(0, height - 1), columns.clip(0, width - 1)]  # (D, N, 3, 3)
    cells = around.reshape(len(features), -1, 9).transpose(1, 2, 0)  # (N, 9, D)
    offsets = np.arange(-FINE_STEPS, FINE_STEPS + 1) / FINE_STEPS
    along = (1 - np.abs(offsets[:, None] - steps)).clip(0)
    weights = (along[:, None, :, None] * along[None, :, None, :]).reshape(
        -1, 9
    )  # of the cells at each position
    products = (cells @ queries[:, :, None])[..., 0] @ weights.T
    gram = (cells @ cells.transpose(0, 2, 1)).reshape(-1, 81)
    lengths = gram @ (weights[:, :, None] * weights[:, None, :]).reshape(-1, 81).T
    surface = products / np.sqrt(lengths.clip(1e-12))
    surface[~is_inside @ (weights > 0).T] = -2.0
    best = surface.argmax(axis=1)
    size = len(offsets)
    x = offsets[best % size] + fit_peak(surface, best, best % size, 1)
    y = offsets[best // size] + fit_peak(surface, best, best // size, size)
    similarities = surface[np.arange(len(best)), best].clip(-1, 1)
    return np.stack([nearest % width + x, nearest // width + y], axis=-1), similarities


def fit_peak(surface: Array, best: Array, position: Array, step: int) -> Array:
    """Offset of the peak of a parabola through the best position and its two neighbours along an axis."""
    every, last = np.arange(len(best)), surface.shape[1] - 1
    low, middle, high = (surface[every, (best + move).clip(0, last)] for move in (-step, 0, step))
    curvature = low - 2 * middle + high
    has_both = (position > 0) & (position < 2 * FINE_STEPS) & (low > -1.5) & (high > -1.5)
    is_peak = has_both & (curvature < -1e-9)
    peak = 0.5 * (low - high) / np.where(is_peak, curvature, -1.0)
    return np.asarray(np.where(is_peak, peak, 0.0).clip(-0.5, 0.5) / FINE_STEPS)


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
