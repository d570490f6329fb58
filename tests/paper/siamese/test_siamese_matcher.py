"""The Siamese network as a method: forward passes counted by hand, answers against all pairs one by one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from support.photo_cases import make_photo
from ucn.data.example import example_pair
from ucn.data.io import read_image
from ucn.errors import WeightsError
from ucn.features.method import MethodFiles
from ucn.geometry.coords import cell_centres
from ucn.geometry.sampling import sample_descriptors
from ucn.paper.registry import METHODS
from ucn.paper.siamese import (
    SHIPPED,
    PatchExtractor,
    SiameseConfig,
    SiameseMatcher,
    build_siamese,
    cut_patches,
    find_best,
    load_siamese,
    save_siamese,
)
from ucn.paper.siamese.matcher import FINE_STEPS, OFFSET, STRIDE
from ucn.paper.siamese.network import DecisionNetwork

TINY = SiameseConfig(patch=32, cell_channels=8, dim=6, hidden=(5, 3))


class Cosine(DecisionNetwork):
    """Decision layers that know what they want."""

    def forward(self, descriptors0: Tensor, descriptors1: Tensor) -> Tensor:
        return (descriptors0 * descriptors1).sum(-1)


def count_rows(module: nn.Module) -> list[int]:
    """Grows by the number of outputs whenever the module runs."""
    counts: list[int] = []
    module.register_forward_hook(lambda _module, _inputs, output: counts.append(output.numel()))
    return counts


@pytest.fixture(scope="module")
def extractor() -> PatchExtractor:
    return PatchExtractor(build_siamese(TINY))


def test_a_patch_for_every_cell(extractor: PatchExtractor) -> None:
    image = make_photo(41, 58, seed=0, grain=5)
    passes = count_rows(extractor.model.branch.projection)
    features = extractor.extract(image)
    h, w = features.map.grid_hw
    # Centres 4, 12, …, 36 in 41 rows, and 4, …, 52 in 58 columns.
    assert (h, w) == (5, 7)
    assert sum(passes) == 35 * TINY.dim
    assert (features.map.stride, features.map.offset) == (STRIDE, OFFSET)
    point = torch.tensor([[[OFFSET + 3 * STRIDE, OFFSET + 2 * STRIDE]]], dtype=torch.float32)
    with torch.no_grad():
        alone = extractor.model.branch(cut_patches(image[None], point, 32)[0])[0]
    assert torch.allclose(features.map.features[0, :, 2, 3], alone, atol=1e-5)
    assert torch.allclose(features.keypoints[2 * w + 3], point[0, 0])


def test_descriptors_one_by_one(extractor: PatchExtractor) -> None:
    image, points = make_photo(60, 60, seed=1), torch.tensor([[5.0, 6.0], [30.3, 40.8], [59.0, 0.0]])
    together = extractor.compute_at(image, points)
    for row, point in enumerate(points):
        assert torch.allclose(extractor.compute_at(image, point[None])[0], together[row], atol=1e-5)
    assert extractor.compute_at(image, points[:0]).shape == (0, TINY.dim)


@pytest.mark.parametrize(("count0", "count1"), [(7, 5), (1, 1), (0, 3), (3, 9000)])
def test_the_best_of_all_pairs(extractor: PatchExtractor, count0: int, count1: int) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(count0, 6, generator=generator), torch.randn(count1, 6, generator=generator)
    passes = count_rows(extractor.model.decision.last)
    found = find_best(extractor.model.decision, one, other)
    assert sum(passes) == count0 * count1
    with torch.no_grad():
        expected = [int(extractor.model.decision(row, other).argmax()) for row in one]
    assert found.tolist() == expected


def test_answers_are_the_most_similar_cells(extractor: PatchExtractor) -> None:
    image = make_photo(64, 80, seed=2, grain=5)
    features = extractor.extract(image)
    matcher = SiameseMatcher(Cosine(TINY))
    centres = cell_centres(features.map)
    same = matcher.align(features.map, features.map).find(centres, use_refinement=False)
    assert torch.equal(same, centres)
    is_allowed = torch.zeros(len(centres), dtype=torch.bool)
    is_allowed[[3, 17]] = True
    found = matcher.align(features.map, features.map, is_allowed).find(centres[[3, 17]], False)
    assert torch.equal(found, centres[[3, 17]])
    nowhere = matcher.align(features.map, features.map, is_allowed & False).find(centres[:2], True)
    assert torch.isnan(nowhere).all()
    assert matcher.align(features.map, features.map).find(centres[:0], True).shape == (0, 2)


def test_refinement_compares_positions_of_the_best_cell(extractor: PatchExtractor) -> None:
    feature_map = extractor.extract(make_photo(64, 80, seed=3, grain=5)).map
    decision = Cosine(TINY)
    # A quarter of a cell right of cell 12: on the fine grid, with the descriptor of the query.
    asked = cell_centres(feature_map)[12][None] + torch.tensor([[STRIDE / 4, 0.0]])
    calls: list[int] = []
    decision.register_forward_hook(lambda _module, _inputs, output: calls.append(output.numel()))
    found = SiameseMatcher(decision).align(feature_map, feature_map).find(asked, use_refinement=True)
    assert torch.allclose(found, asked, atol=1e-4)
    assert sum(calls) == feature_map.features[0, 0].numel() + FINE_STEPS**2
    own = sample_descriptors(feature_map, asked[None])[0]
    best = -2.0
    for dx in (-4.0, -2.0, 0.0, 2.0, 4.0):
        for dy in (-4.0, -2.0, 0.0, 2.0, 4.0):
            place = cell_centres(feature_map)[12] + torch.tensor([dx, dy])
            best = max(best, float(own[0] @ sample_descriptors(feature_map, place[None, None])[0, 0]))
    assert best == pytest.approx(float(own[0] @ sample_descriptors(feature_map, found[None])[0, 0]), abs=1e-5)


def test_maps_of_two_sizes(extractor: PatchExtractor) -> None:
    small, large = extractor.extract(make_photo(32, 33)), extractor.extract(make_photo(50, 90))
    found = SiameseMatcher(extractor.model.decision).align(small.map, large.map)
    points = found.find(torch.tensor([[0.0, 0.0], [32.0, 31.0]]), use_refinement=False)
    assert {tuple(point) for point in points.tolist()} <= {tuple(c) for c in cell_centres(large.map).tolist()}
    assert small.map.grid_hw == (4, 4)


def test_the_method_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_siamese(path, build_siamese(TINY), {})
    (method,) = METHODS.load_dense(["siamese"], MethodFiles(siamese=path)).methods
    assert "patches of 32 px" in method.title and "6 dimensions" in method.title
    assert set(method.key) == {"siamese"} and not method.is_nearest
    assert "siamese" not in {m.name for m in METHODS.load_dense(["sift"]).methods}
    with pytest.raises(WeightsError, match="cannot read a Siamese network"):
        METHODS.load_dense(["siamese"], MethodFiles(siamese=tmp_path / "missing.safetensors"))


def test_the_shipped_network_discriminates_patches_of_the_example() -> None:
    """Each patch finds its own partner among those of all; 41 of 42 did, and 1 of 42 with random weights."""
    pair = example_pair()
    grid = torch.cartesian_prod(torch.linspace(90, 700, 7), torch.linspace(40, 460, 7)).round()
    disparity = torch.from_numpy(pair.disparity)[grid[:, 1].long(), grid[:, 0].long()]
    is_known = disparity.isfinite()
    points0 = grid[is_known]
    points1 = points0 - torch.stack([disparity[is_known], torch.zeros(len(points0))], dim=1)
    extractor = PatchExtractor(load_siamese(SHIPPED))
    found0, found1 = (
        extractor.compute_at(read_image(path).float(), points)
        for path, points in ((pair.image0_path, points0), (pair.image1_path, points1))
    )
    best = find_best(extractor.model.decision, found0, found1)
    share = (best == torch.arange(len(best))).float().mean().item()
    assert len(best) > 35 and share > 0.85, share


def test_the_package_has_a_network_of_its_own() -> None:
    (method,) = METHODS.load_dense(["siamese"]).methods
    assert "patches of 64 px" in method.title
