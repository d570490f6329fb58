"""NN transfer: whose parts are copied, and where to."""

import math

import pytest
import torch
from torch import Tensor

from support.photo_cases import make_photo
from ucn.features.hog import DenseHog
from ucn.paper.transfer import PartGallery, compute_object_descriptor, from_relative, to_relative


def make_gallery() -> PartGallery:
    """Three objects with two parts; the first does not show its second part, the last is of another kind."""
    return PartGallery(
        descriptors=torch.eye(3),
        parts=torch.tensor([[[0.1, 0.2], [9.0, 9.0]], [[0.3, 0.4], [0.5, 0.6]], [[0.7, 0.7], [0.8, 0.8]]]),
        is_visible=torch.tensor([[True, False], [True, True], [True, True]]),
        kinds=["bird", "bird", "car"],
    )


def copied(descriptor: Tensor, kind: str, wanted: list[int]) -> list[list[float]]:
    found = make_gallery().transfer(descriptor, kind, torch.tensor(wanted, dtype=torch.int64))
    return [[round(value, 4) for value in point] for point in found.tolist()]


def test_parts_of_the_most_similar_object_of_the_kind() -> None:
    assert copied(torch.tensor([0.1, 0.9, 0.0]), "bird", [1, 0, 1]) == [[0.5, 0.6], [0.3, 0.4], [0.5, 0.6]]
    assert copied(torch.tensor([0.1, 0.2, 0.9]), "bird", [0]) == [[0.3, 0.4]]
    assert copied(torch.tensor([0.9, 0.9, 0.1]), "car", [0]) == [[0.7, 0.7]]


def test_a_hidden_part_comes_from_the_next_object() -> None:
    assert copied(torch.tensor([0.9, 0.1, 0.5]), "bird", [0, 1]) == [[0.1, 0.2], [0.5, 0.6]]


def test_parts_that_are_visible_nowhere() -> None:
    gallery = make_gallery()
    hidden = PartGallery(
        gallery.descriptors, gallery.parts, gallery.is_visible.new_zeros(3, 2), gallery.kinds
    )
    found = hidden.transfer(torch.tensor([1.0, 0.0, 0.0]), "bird", torch.tensor([0, 1]))
    assert torch.isnan(found).all()
    assert torch.isnan(gallery.transfer(torch.tensor([1.0, 0.0, 0.0]), "boat", torch.tensor([0]))).all()
    assert gallery.transfer(torch.tensor([1.0, 0, 0]), "bird", torch.zeros(0, dtype=torch.int64)).shape == (
        0,
        2,
    )


def test_relative_to_a_box_by_hand() -> None:
    box = (10.0, 20.0, 19.0, 39.0)  # 10 × 20 pixels
    points = torch.tensor([[9.5, 19.5], [19.5, 39.5], [12.0, 29.5]])
    relative = to_relative(points, box)
    assert relative.tolist() == [[0, 0], [1, 1], [0.25, 0.5]]
    assert torch.allclose(from_relative(relative, box), points)
    wide = (0.0, 0.0, 39.0, 19.0)
    assert from_relative(relative, wide).tolist() == [[-0.5, -0.5], [39.5, 19.5], [9.5, 9.5]]


def test_the_descriptor_depends_on_the_box_only() -> None:
    photo, other = make_photo(96, 96, seed=0, grain=7), make_photo(96, 96, seed=1, grain=7)
    box = (30.0, 20.0, 77.0, 67.0)
    pasted = other.clone()
    pasted[:, 20:68, 30:78] = photo[:, 20:68, 30:78]
    found = compute_object_descriptor(DenseHog(), photo, box)
    assert found.norm().item() == pytest.approx(1, rel=1e-5)
    assert torch.allclose(found, compute_object_descriptor(DenseHog(), pasted, box), atol=1e-6)
    assert float(found @ compute_object_descriptor(DenseHog(), other, box)) < 0.95


def test_boxes_that_leave_the_image() -> None:
    photo = make_photo(40, 50, seed=0, grain=7)
    whole = compute_object_descriptor(DenseHog(), photo, (0.0, 0.0, 49.0, 39.0))
    assert torch.equal(compute_object_descriptor(DenseHog(), photo, (-9.0, -3.0, 80.0, 60.0)), whole)
    assert torch.equal(compute_object_descriptor(DenseHog(), photo, (70.0, 0.0, 90.0, 30.0)), whole)
    thin = compute_object_descriptor(DenseHog(), photo, (3.0, 3.0, 3.0, 3.0))
    assert math.isclose(float(thin.norm()), 1, rel_tol=1e-5)
