"""Homographies of several images: the tree by hand, and errors that a loop of links takes back."""

import numpy as np
import pytest
from numpy.typing import NDArray

from support.stitch_cases import transfer
from ucn.geometry.joint_homography import (
    Link,
    chain_homographies,
    find_connected,
    measure_links,
    refine_jointly,
)

Array = NDArray[np.float64]


def shift(x: float, y: float) -> Array:
    return np.array([[1.0, 0, x], [0, 1, y], [0, 0, 1]])


def make_link(image0: int, image1: int, H: Array, count: int = 20, noise: float = 0.0) -> Link:
    rng = np.random.default_rng(10 * image0 + image1)
    points0 = rng.uniform(0, [640, 480], (count, 2))
    points1 = transfer(H, points0) + rng.normal(0, noise, (count, 2))
    return Link(image0, image1, points0, points1, H)


def make_ring(noise: float) -> tuple[Array, list[Link]]:
    """Homographies of six views to the first, and links of each to the next."""
    rng = np.random.default_rng(3)
    true = np.stack([shift(*rng.uniform(-60, 60, 2)) for _ in range(6)])
    true[:, :2, :2] += rng.normal(0, 0.03, (6, 2, 2))
    true[:, 2, :2] = rng.normal(0, 1e-4, (6, 2))
    true = np.linalg.inv(true[0]) @ true
    links = []
    for image in range(6):
        other = (image + 1) % 6
        H = np.linalg.inv(true[other]) @ true[image]
        links.append(make_link(image, other, H / H[2, 2], 60, noise))
    return true, links


def test_largest_set_then_most_inliers() -> None:
    one = make_link(0, 1, np.eye(3), 10)
    two, three = make_link(2, 3, np.eye(3), 12), make_link(3, 4, np.eye(3), 4)
    assert find_connected(6, [one, two, three]).tolist() == [2, 3, 4]
    assert find_connected(5, [one, two]).tolist() == [2, 3]
    assert find_connected(3, []).tolist() == [0]
    assert find_connected(1, []).tolist() == [0]


def test_chain_runs_along_the_strongest_links_to_the_middle() -> None:
    links = [
        make_link(0, 1, shift(10, 0), 50),
        make_link(2, 1, shift(-20, 5), 40),
        make_link(0, 2, shift(99, 99), 30),  # wrong, and weaker than the tree
    ]
    reference, found = chain_homographies(4, links)
    assert reference == 1
    np.testing.assert_allclose(found[1], np.eye(3))
    np.testing.assert_allclose(found[0] / found[0, 2, 2], shift(10, 0), atol=1e-12)
    np.testing.assert_allclose(found[2] / found[2, 2, 2], shift(-20, 5), atol=1e-12)
    assert np.isnan(found[3]).all()


def test_reversed_link() -> None:
    link = make_link(0, 1, shift(10, -3))
    back = link.reverse()
    assert (back.image0, back.image1, back.weight) == (1, 0, 20)
    np.testing.assert_allclose(back.H_0to1, shift(-10, 3))
    np.testing.assert_array_equal(back.points0, link.points1)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_refinement_closes_the_loop(noise: float) -> None:
    true, links = make_ring(noise)
    # The homographies of the pairs are inaccurate, and one link is left out of the tree.
    rough = [
        Link(*link_ends(link), link.points0, link.points1, link.H_0to1 @ shift(1.5, -1)) for link in links
    ]
    reference, start = chain_homographies(6, rough)
    found = refine_jointly(start, rough, reference)
    before, after = (np.median(measure_links(each, rough)) for each in (start, found))
    assert after < (1e-3 if noise == 0 else 0.8)
    assert after < before / 3
    corners = np.array([[0.0, 0], [639, 0], [639, 479], [0, 479]])
    for image in range(6):
        expected = transfer(np.linalg.inv(true[reference]) @ true[image], corners)
        assert np.abs(transfer(found[image], corners) - expected).max() < (0.01 if noise == 0 else 3)


def link_ends(link: Link) -> tuple[int, int]:
    return link.image0, link.image1


def test_wrong_matches_of_a_link_count_little() -> None:
    link = make_link(0, 1, shift(10, 0), 200)
    link.points1[:20] += 4.0
    found = refine_jointly(np.stack([shift(10.5, 0), np.eye(3)]), [link], 1)
    moved = transfer(found[0], np.array([[100.0, 100], [500, 400]]))
    assert np.abs(moved - [[110, 100], [510, 400]]).max() < 0.1


def test_a_link_that_contradicts_the_others_is_ignored() -> None:
    good = [make_link(0, 1, shift(10, 0), 60), make_link(1, 2, shift(20, 0), 60)]
    wrong = make_link(0, 2, shift(-300, 90), 30)
    reference, start = chain_homographies(3, [*good, wrong])
    found = refine_jointly(start, [*good, wrong], reference)
    np.testing.assert_allclose(found[0] / found[0, 2, 2], shift(10, 0), atol=1e-3)


def test_images_without_links_stay_unknown_and_no_links_change_nothing() -> None:
    links = [make_link(0, 1, shift(10, 0))]
    reference, start = chain_homographies(3, links)
    found = refine_jointly(start, links, reference)
    assert reference == 0
    assert np.isnan(found[2]).all()
    np.testing.assert_allclose(found[1] / found[1, 2, 2], shift(-10, 0), atol=1e-6)
    np.testing.assert_array_equal(refine_jointly(np.eye(3)[None], [], 0), np.eye(3)[None])
    assert measure_links(np.eye(3)[None], []).shape == (0,)
