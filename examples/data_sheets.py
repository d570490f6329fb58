"""Draws the sheets of docs/data: the bundled stereo pair as Middlebury, COLMAP, video and own data.

python examples/data_sheets.py [FOLDER]     (by default ./sheets)

It also shows the files that each of these layouts needs. Photographs in FOLDER/photographs, if any, are drawn
as synthetic pairs.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

from ucn.data.catalogue import open_data
from ucn.data.checking import spread
from ucn.data.convert import convert_pairs
from ucn.data.example import example_pair
from ucn.data.io import write_image
from ucn.viz import draw_samples

FOCAL, BASELINE, CENTRE = 994.978, 0.193, (311.193, 254.877)  # calibration of the pair, metres and pixels


def write_middlebury(folder: Path) -> None:
    """The layout of 2014: two images and the left disparity as PFM, rows from the bottom up."""
    scene = folder / "Motorcycle"
    scene.mkdir(parents=True)
    pair = example_pair()
    shutil.copy(pair.image0_path, scene / "im0.png")
    shutil.copy(pair.image1_path, scene / "im1.png")
    disparity = np.where(np.isfinite(pair.disparity), pair.disparity, np.inf).astype("<f4")
    header = f"Pf\n{disparity.shape[1]} {disparity.shape[0]}\n-1\n"
    (scene / "disp0.pfm").write_bytes(header.encode() + disparity[::-1].tobytes())


def write_colmap(folder: Path) -> None:
    """A text model: one camera, two images, and the 3D points of corners with known disparity."""
    images, model = folder / "images", folder / "sparse" / "0"
    images.mkdir(parents=True)
    model.mkdir(parents=True)
    pair = example_pair()
    shutil.copy(pair.image0_path, images / "left.png")
    shutil.copy(pair.image1_path, images / "right.png")
    grey = cv2.imread(str(pair.image0_path), cv2.IMREAD_GRAYSCALE)
    corners = np.asarray(cv2.goodFeaturesToTrack(np.asarray(grey), 400, 0.01, 8)).reshape(-1, 2)
    disparity = pair.disparity[corners[:, 1].round().astype(int), corners[:, 0].round().astype(int)]
    is_known = np.isfinite(disparity) & (corners[:, 0] >= disparity)
    shift = disparity[is_known]
    x, y = (corners[is_known] + 0.5).T  # COLMAP puts pixel centres at 0.5
    height, width = pair.disparity.shape
    intrinsics = f"{FOCAL} {FOCAL} {CENTRE[0]} {CENTRE[1]}"
    (model / "cameras.txt").write_text(f"1 PINHOLE {width} {height} {intrinsics}\n")
    left = " ".join(f"{a} {b} {i + 1}" for i, (a, b) in enumerate(zip(x, y, strict=True)))
    right = " ".join(f"{a} {b} {i + 1}" for i, (a, b) in enumerate(zip(x - shift, y, strict=True)))
    poses = ("1 1 0 0 0 0 0 0 1 left.png", f"2 1 0 0 0 {-BASELINE} 0 0 1 right.png")
    (model / "images.txt").write_text(f"{poses[0]}\n{left}\n{poses[1]}\n{right}\n")
    depth = FOCAL * BASELINE / shift
    positions = zip((x - CENTRE[0]) * depth / FOCAL, (y - CENTRE[1]) * depth / FOCAL, depth, strict=True)
    lines = [f"{i + 1} {a} {b} {c} 128 128 128 0.3 1 {i} 2 {i}" for i, (a, b, c) in enumerate(positions)]
    (model / "points3D.txt").write_text("\n".join(lines) + "\n")


def write_frames(folder: Path) -> None:
    """Frames of a video: a camera that rolls and moves forward."""
    folder.mkdir(parents=True)
    image = np.asarray(cv2.imread(str(example_pair().image0_path)))
    for frame in range(11):
        motion = cv2.getRotationMatrix2D((370, 250), 1.2 * frame, 1 + 0.012 * frame)
        moved = cv2.warpAffine(image, motion, (image.shape[1], image.shape[0]))
        cv2.imwrite(str(folder / f"{frame:03}.png"), moved[40:460, 60:680])


def draw(name: str, folder: Path, sheet: Path, count: int = 1, **options: str) -> None:
    """As `ucn data show`."""
    data = open_data(name, folder, options=options)
    samples = [data.read(index) for index in spread(len(data), count)]
    write_image(sheet, draw_samples(samples, width=800), overwrite=True)
    print(f"{sheet}: {len(samples)} of {len(data)} pairs")


def main() -> None:
    """Writes the folders, then draws their sheets."""
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "sheets")
    output.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        write_middlebury(work / "stereo")
        write_colmap(work / "scene")
        write_frames(work / "video")
        convert_pairs(open_data("middlebury-stereo", work / "stereo"), work / "own", max_points=40)
        draw("middlebury-stereo", work / "stereo", output / "middlebury-stereo.jpg")
        draw("own", work / "own", output / "own.jpg")
        draw("colmap", work / "scene", output / "colmap.jpg")
        draw("video", work / "video", output / "video.jpg", gap="8")
    if (output / "photographs").is_dir():
        draw("synthetic", output / "photographs", output / "synthetic.jpg", count=4)


if __name__ == "__main__":
    main()
