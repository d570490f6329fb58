"""What weights were trained on, and whether that is measured."""

import pytest

from ucn.features.trained_on import find_overlap, list_training_parts


def test_parts_of_a_training_record() -> None:
    sources = [
        {"name": "cub", "split": "train", "options": []},
        {"name": "cub", "split": "train", "use_warps": True},
        {"name": "multiview", "split": None, "options": ["scenes=lund,plush", "balanced=true"]},
        {"name": "kitti-odometry", "options": ["frames=600-639"]},
        {"name": "kitti-flow"},
        {"name": "synthetic", "folder": "photos"},
        {"name": "own", "split": "train"},
        {"name": "classes"},
    ]
    assert list_training_parts({"sources": sources}) == (
        *("cub train", "multiview lund", "multiview plush", "kitti-odometry 600-639", "kitti-flow training"),
    )
    assert list_training_parts({}) == ()


@pytest.mark.parametrize(
    ("trained", "measured", "shares"),
    [
        ("cub train", "cub test", False),
        ("kitti-flow train", "kitti-flow val", False),
        ("kitti-flow train", "kitti-flow training", True),
        ("sintel training", "sintel val", True),
        ("cub train", "faces test", False),
        ("multiview lund", "multiview lund", True),
        ("multiview lund", "multiview cup", False),
        ("multiview all", "multiview cup", True),
        ("kitti-odometry 600-639", "kitti-odometry 1500-1539", False),
        ("kitti-odometry train", "kitti-odometry 1500-1539", True),
    ],
)
def test_which_parts_share_pairs(trained: str, measured: str, shares: bool) -> None:
    assert find_overlap([trained], [measured]) == ([trained] if shares else [])
