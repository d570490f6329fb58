"""Homographies of several images to one plane, from the homographies of pairs.

Pairs of images that share a homography are links of a graph. The strongest links form a tree, along which
every image is chained to a central one, the reference; then all homographies are refined together, so that
errors do not add up along the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_ROUNDS = 8  # of the joint refinement, each with new weights
_STEPS = 10  # of a round
_SCALE = 4.0  # of the weights, in standard deviations of the inliers' errors
_MIN_SCALE = 0.1  # pixels, also for matches that fit better
_MEDIAN = np.sqrt(2 * np.log(2))  # of the length of a normal error in two dimensions
_MIN_GAIN = 1e-4  # a round ends when the cost falls by less than this share
_MAX_DISAGREEMENT = 0.1  # of a link with the tree, as a share of the spread of its points
_MIN_DISAGREEMENT = 4.0  # pixels, which is allowed in any case
_UNIT = 1e-3  # of the coordinates in which the systems are solved, in 1 / pixels


@dataclass(frozen=True)
class Link:
    """Two images of which a homography maps one to the other.

    Attributes:
        image0: index of one image.
        image1: index of the other.
        points0: (N, 2) inliers in pixels of image 0, N at least 4.
        points1: (N, 2) inliers in pixels of image 1, row by row.
        H_0to1: (3, 3), which maps pixels of image 0 to pixels of image 1.
    """

    image0: int
    image1: int
    points0: Array
    points1: Array
    H_0to1: Array

    @property
    def weight(self) -> int:
        """Number of inliers."""
        return len(self.points0)

    def reverse(self) -> Link:
        """The same link with the images in the other order."""
        return Link(
            self.image1, self.image0, self.points1, self.points0, np.asarray(np.linalg.inv(self.H_0to1))
        )


def find_connected(count: int, links: Sequence[Link]) -> Indices:
    """Indices of the largest set of images that links connect; of equal sets, the one with most inliers.

    Args:
        count: number of images, at least 1.
        links: at most one for each pair.
    """
    _, labels = csgraph.connected_components(_to_graph(count, links), directed=False)
    sizes = np.bincount(labels)
    inliers = np.zeros(len(sizes))
    for link in links:
        inliers[labels[link.image0]] += link.weight
    best = max(range(len(sizes)), key=lambda label: (sizes[label], inliers[label], -label))
    return np.flatnonzero(labels == best)


def chain_homographies(count: int, links: Sequence[Link]) -> tuple[int, Array]:
    """Chains homographies along the tree of the links with most inliers.

    Args:
        count: number of images, at least 1.
        links: at most one for each pair.

    Returns:
        The most central of the images that `find_connected` gives, which is the reference, and the
        homographies (count, 3, 3) to it; NaN for images that are not connected.
    """
    members = find_connected(count, links)
    graph = _to_graph(count, links)
    graph.data = 1 / graph.data  # of all trees, the one with most inliers has the smallest sum of inverses
    tree = csgraph.minimum_spanning_tree(graph)
    tree = (tree + tree.T).tocsr()
    hops = csgraph.shortest_path(tree, directed=False, unweighted=True, indices=members)[:, members].sum(
        axis=1
    )
    strength = np.asarray(_to_graph(count, links).sum(axis=0)).ravel()[members]
    reference = int(members[np.lexsort((members, -strength, hops))[0]])
    order, parents = csgraph.breadth_first_order(tree, reference, directed=False)
    known = {(link.image0, link.image1): link.H_0to1 for link in (*links, *map(Link.reverse, links))}
    found = np.full((count, 3, 3), np.nan)
    found[reference] = np.eye(3)
    for image in order[1:]:
        chained = found[parents[image]] @ known[int(image), int(parents[image])]
        found[image] = chained / np.linalg.norm(chained)
    return reference, found


def refine_jointly(H_to_reference: Array, links: Sequence[Link], reference: int) -> Array:
    """Minimises the transfer errors of all links together, over the homographies of all images.

    Errors are measured in pixels of the images, in both directions of every link. They are weighted by Geman
    and McClure's function, whose scale follows the median error of each link. Links that contradict the start
    are ignored: repeated structures may link images that do not overlap.

    Args:
        H_to_reference: (N, 3, 3) of each image to the reference; rows of NaN are images without links.
        links: between the images.
        reference: the image whose homography stays.

    Returns:
        (N, 3, 3), which map the centre of each image's inliers to a positive depth.
    """
    used = [link for link in links if _agrees(H_to_reference, link)]
    directed = [*used, *map(Link.reverse, used)]
    if not directed:
        return H_to_reference.copy()
    to_unit = _find_units(len(H_to_reference), directed)
    from_unit = np.linalg.inv(to_unit)
    found = _normalise(to_unit[reference] @ H_to_reference @ from_unit)
    scaled = [_rescale(link, to_unit) for link in directed]
    for _ in range(_ROUNDS):
        found = _descend(found, scaled, [_weigh(found, link) for link in scaled], reference)
    return np.where(np.isfinite(H_to_reference), from_unit[reference] @ found @ to_unit, np.nan)


def measure_links(H_to_reference: Array, links: Sequence[Link]) -> Array:
    """Transfer errors of the inliers of all links, in pixels of their second images."""
    errors = [np.linalg.norm(_transfer(H_to_reference, link) - link.points1, axis=1) for link in links]
    return np.concatenate(errors) if errors else np.zeros(0)


def _to_graph(count: int, links: Sequence[Link]) -> sparse.csr_matrix:
    """(count, count), symmetric, with the number of inliers of each link."""
    ends = np.array([(link.image0, link.image1) for link in links], np.int64).reshape(-1, 2)
    rows, columns = np.concatenate([ends, ends[:, ::-1]]).T
    weights = np.array([link.weight for link in links] * 2, np.float64)
    return sparse.csr_matrix((weights, (rows, columns)), shape=(count, count))


def _agrees(H_to_reference: Array, link: Link) -> bool:
    """Whether a link fits to the homographies, but for what errors along a tree explain."""
    if not np.isfinite(H_to_reference[[link.image0, link.image1]]).all():
        return False
    for way in (link, link.reverse()):
        errors = np.linalg.norm(_transfer(H_to_reference, way) - way.points1, axis=1)
        spread = float(np.ptp(way.points1, axis=0).max())
        if not np.median(errors) <= max(_MAX_DISAGREEMENT * spread, _MIN_DISAGREEMENT):
            return False
    return True


def _transfer(H_to_reference: Array, link: Link) -> Array:
    """Points of image 0 of a link in pixels of image 1."""
    moved = _to_homogeneous(link.points0) @ _chain(H_to_reference, link).T
    return np.asarray(moved[:, :2] / moved[:, 2:])


def _to_homogeneous(points: Array) -> Array:
    return np.column_stack([points, np.ones(len(points))])


def _find_units(count: int, links: Sequence[Link]) -> Array:
    """(count, 3, 3): maps of pixels to coordinates around 0, in which systems are well conditioned."""
    found = np.tile(np.diag([_UNIT, _UNIT, 1.0]), (count, 1, 1))
    for image in range(count):
        points = [link.points0 for link in links if link.image0 == image]
        if points:
            found[image, :2, 2] = -_UNIT * np.concatenate(points).mean(axis=0)
    return found


def _rescale(link: Link, to_unit: Array) -> Link:
    points0, points1 = (
        _UNIT * points + to_unit[image][:2, 2]
        for points, image in ((link.points0, link.image0), (link.points1, link.image1))
    )
    return Link(link.image0, link.image1, points0, points1, link.H_0to1)


def _normalise(homographies: Array) -> Array:
    """Homographies of norm 1 that map the origin to a positive depth."""
    signs = np.where(homographies[:, 2, 2] < 0, -1.0, 1.0)
    norms = np.linalg.norm(homographies, axis=(1, 2))
    return np.asarray(homographies * (signs / norms)[:, None, None])


def _weigh(homographies: Array, link: Link) -> Array:
    """Weights (N,) of the matches of a link."""
    errors = np.linalg.norm(_transfer(homographies, link) - link.points1, axis=1)
    scale = max(_SCALE * float(np.median(errors)) / _MEDIAN, _MIN_SCALE * _UNIT)
    return np.asarray((1 + (errors / scale) ** 2) ** -2)


def _descend(start: Array, links: Sequence[Link], weights: Sequence[Array], reference: int) -> Array:
    """Levenberg and Marquardt's method over the entries of all homographies but the reference's."""
    free = np.flatnonzero(np.isfinite(start).all(axis=(1, 2)) & (np.arange(len(start)) != reference))
    entries = (9 * free[:, None] + np.arange(9)).ravel()
    found, damping = start, 1e-4
    cost, normal, gradient = _linearise(found, links, weights)
    if not np.isfinite(cost):
        return found
    for _ in range(_STEPS):
        system = normal[np.ix_(entries, entries)]
        # The damping also fixes the scale of each homography, which no error determines.
        system = system + damping * np.diag(np.diag(system) + 1e-9 * np.trace(system) + 1e-30)
        step = np.zeros(found.size)
        step[entries] = -np.linalg.solve(system, gradient[entries])
        trial = _normalise(found + step.reshape(found.shape))
        trial_cost, trial_normal, trial_gradient = _linearise(trial, links, weights)
        if not trial_cost < cost:
            damping *= 10
            continue
        is_done = trial_cost > (1 - _MIN_GAIN) * cost
        found, cost, normal, gradient = trial, trial_cost, trial_normal, trial_gradient
        damping = max(damping / 10, 1e-9)
        if is_done:
            break
    return found


def _linearise(
    homographies: Array, links: Sequence[Link], weights: Sequence[Array]
) -> tuple[float, Array, Array]:
    """Weighted squared errors of all links, their normal matrix (9 N, 9 N) and half gradient (9 N,).

    The cost is infinite where a point lies behind the camera of the other image.
    """
    size = 9 * len(homographies)
    cost, normal, gradient = 0.0, np.zeros((size, size)), np.zeros(size)
    for link, link_weights in zip(links, weights, strict=True):
        moved = _to_homogeneous(link.points0) @ _chain(homographies, link).T
        if not (moved[:, 2] > 0).all():
            return np.inf, normal, gradient
        residuals = moved[:, :2] / moved[:, 2:] - link.points1
        jacobian = _differentiate(homographies, link, moved)
        rows = np.concatenate([9 * link.image0 + np.arange(9), 9 * link.image1 + np.arange(9)])
        cost += float((link_weights * (residuals**2).sum(axis=1)).sum())
        weighted = (jacobian * link_weights[:, None, None]).reshape(-1, 18)
        normal[np.ix_(rows, rows)] += weighted.T @ jacobian.reshape(-1, 18)
        gradient[rows] += weighted.T @ residuals.ravel()
    return cost, normal, gradient


def _chain(homographies: Array, link: Link) -> Array:
    """The homography of a link, by those of its images."""
    return np.asarray(np.linalg.solve(homographies[link.image1], homographies[link.image0]))


def _differentiate(homographies: Array, link: Link, moved: Array) -> Array:
    """Derivatives (N, 2, 18) of the transfer of a link by the entries of both homographies.

    With G the homographies, the transfer is G1⁻¹ G0 p; its change is G1⁻¹ (dG0 p - dG1 G1⁻¹ G0 p).

    Args:
        homographies: of all images.
        link: of two of them.
        moved: (N, 3), the homogeneous G1⁻¹ G0 p.
    """
    projection = np.zeros((len(moved), 2, 3))
    projection[:, 0, 0] = projection[:, 1, 1] = 1
    projection[:, :, 2] = -moved[:, :2] / moved[:, 2:]
    change = projection @ np.linalg.inv(homographies[link.image1]) / moved[:, 2, None, None]
    by_image0, by_image1 = (
        (change[..., None] * points[:, None, None]).reshape(-1, 2, 9)
        for points in (_to_homogeneous(link.points0), -moved)
    )
    return np.concatenate([by_image0, by_image1], axis=-1)
