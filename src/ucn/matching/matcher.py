"""`Matcher`: images in, matches out, in the pixels of the images that the caller gave.

From a pair to matches in four files: `Matcher.match` here encodes both images with the network
(`ucn.nn.model`), detects keypoints in image 0, and matches them in the feature maps
(`ucn.matching.cells.match_points`), which searches for nearest descriptors (`ucn.knn.search.nearest`).

A match gets its sub-pixel position in two steps: sub-cell refinement on the feature maps, of the point and of
the cells around it (`ucn.matching.sub_cell`), then photometric refinement on the pixels
(`ucn.matching.alignment`). Scores are computed in `ucn.matching.scoring`. `ucn.nn.encoder` chooses what runs
the network on this device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ucn.config import MIN_VISIBLE_SCORE, MatchConfig
from ucn.config.matching import change_config
from ucn.data.io import MaskLike, read_reduced_image, to_mask, to_tensor
from ucn.data.points import check_points
from ucn.errors import ConfigError, ImageReadError, PointsError
from ucn.geometry.coords import cell_centres, cells_to_pixels, resize_points, resize_scale
from ucn.geometry.sampling import read_nearest
from ucn.matching.alignment import passes_same_surface_test, refine_photometric
from ucn.matching.cells import (
    PointMatches,
    add_prior,
    interpolate_to_pixels,
    match_points,
    similarity_map,
)
from ucn.matching.consensus import Consensus, measure_consensus
from ucn.matching.cuda.corners import MAX_PIXELS, detect_by_graphs, read_corners
from ucn.matching.cuda.pairs import match_by_graphs
from ucn.matching.keypoints import average_channels, detect_corners, grid_points
from ucn.matching.levels import find_parts_scale, shows_parts, without_semantic
from ucn.matching.many import CACHE_BYTES, CountReport, SharedFeatures, count_items, split_pair
from ucn.matching.scoring import (
    PAIR_SCORE_CORNERS,
    measure_uniformity,
    measure_visibility,
    score_matches,
    score_pair,
)
from ucn.matching.stored import describe_points, receive, receive_pair
from ucn.matching.sub_cell import interpolate_shift
from ucn.matching.transfer import TransferredPoints, check_labelled, collect_votes, decide
from ucn.matching.views import (
    AlignedViews,
    Box,
    align_views,
    cells_in_mask,
    change_view,
    to_caller,
    to_encoded,
)
from ucn.nn import MIN_SIDE
from ucn.nn.encoder import Engine, choose_encoder
from ucn.nn.model import Encoder, drop_semantic
from ucn.nn.tiling import encode_in_tiles, reduce_image
from ucn.runtime.device import choose_device
from ucn.runtime.graphs import RecurringGraphs
from ucn.types import (
    FeatureMap,
    Features,
    Flow,
    ImageLike,
    Matches,
    SimilarityMap,
    ViewChange,
    refer_to_image,
)
from ucn.weights import LoadedWeights, WeightsInfo, load_weights

_MAX_GRAPHS = 8  # of corners and of pairs, for the sizes that recur

Report = Callable[[str], None]
"""Called with a short phrase at the beginning of each stage."""


@dataclass(frozen=True)
class PairContext:
    """What `Matcher.pair_context` computes once for a pair, so that queries for single points are quick.

    Attributes:
        matches: consistent matches of the keypoints of image 0, with the score of the pair.
        is_same_surface: the images agree photometrically around these matches, so that other matches may be
            refined photometrically.
        views: both images as they are matched, with their consensus.
    """

    matches: Matches
    is_same_surface: bool
    views: AlignedViews


@dataclass(frozen=True)
class _Picture:
    """An image as it is encoded.

    Attributes:
        name: what progress calls it.
        pixels: (3, H, W) in [0, 1], reduced, on the device of the network.
        image_hw: (H, W) of the caller's image.
        corner_grey: (H, W) uint8 on the CPU, to detect corners in; None where none are needed there.
        corners: of `detect_by_graphs`; None where they were not detected.
    """

    name: str
    pixels: Tensor
    image_hw: tuple[int, int]
    corner_grey: Tensor | None = None
    corners: Tensor | None = None


class Matcher:
    """Finds corresponding points of two images.

    Attributes:
        config: how images are matched.
        weights: which weights are in use.
        device: where the network runs.
    """

    def __init__(
        self,
        weights: LoadedWeights | str | Path = "geometric",
        *,
        config: MatchConfig | None = None,
        device: str | None = None,
        engine: Engine = "auto",
        **settings: Any,
    ) -> None:
        """Loads weights, as `from_pretrained` does, or takes loaded ones.

        Args:
            weights: a name, a path, or what `ucn.load_weights` returned.
            config: as in `from_pretrained`.
            device: likewise.
            engine: likewise.
            settings: likewise.
        """
        if engine not in get_args(Engine):
            raise ValueError(f"engine must be one of {', '.join(get_args(Engine))}, got '{engine}'")
        chosen = change_config(config or MatchConfig(), settings)
        loaded = weights if isinstance(weights, LoadedWeights) else load_weights(weights)
        self._max_side = loaded.max_side
        self.config = self._resolve(chosen)
        self.weights: WeightsInfo = loaded.info
        self.device = choose_device(device)
        self._calibration = loaded.calibration
        # torch's annotations do not know memory_format.
        model = loaded.model.to(self.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        # Most pairs need no semantic level, which parts of objects do.
        self._encoder: Encoder = choose_encoder(drop_semantic(model), engine)
        self._parts_encoder = None if model.semantic is None else choose_encoder(model, engine)
        is_fast = self.device.type == "cuda" and engine != "plain"
        self._graphs = RecurringGraphs(_MAX_GRAPHS) if is_fast else None

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = "geometric",
        *,
        config: MatchConfig | None = None,
        device: str | None = None,
        engine: Engine = "auto",
        **settings: Any,
    ) -> Matcher:
        """Loads shipped weights by name, or a weights file by path.

        Args:
            name_or_path: such as "geometric", or a .safetensors file that `ucn train` wrote.
            config: how images are matched; the defaults when None.
            device: "cpu", "cuda", "cuda:1", "mps"; CUDA where there is one, else the CPU, when None.
            engine: "plain" runs the reference network in float32. "auto" is faster without any preparation:
                on a CPU with the same descriptors up to rounding; on a CUDA device since Ampere in bfloat16,
                with CUDA graphs for sizes that recur. "fast" also compiles on CUDA, which takes about a
                minute for each new size: for many images of few sizes.
            settings: fields of `config` to set, such as ``min_score=0.3`` or ``max_side=512``.

        Raises:
            WeightsError: the name is unknown or the file is damaged.
            ConfigError: a setting is unknown or out of range.
            ValueError: there is no such device or engine.
        """
        return cls(name_or_path, config=config, device=device, engine=engine, **settings)

    def with_config(self, config: MatchConfig | None = None, **settings: Any) -> Matcher:
        """A matcher with other settings that shares this one's network.

        Args:
            config: how images are matched; as now when None.
            settings: fields of `config` to set.

        Raises:
            ConfigError: a setting is unknown or out of range.
        """
        other = copy.copy(self)
        other.config = self._resolve(change_config(config or self.config, settings))
        return other

    def __repr__(self) -> str:
        return f"Matcher({self.weights.name}, {self.device}, max_side={self.config.max_side})"

    def match(
        self,
        image0: ImageLike | Features,
        image1: ImageLike | Features,
        *,
        points: ArrayLike | Tensor | None = None,
        mask0: MaskLike | None = None,
        mask1: MaskLike | None = None,
        progress: Report | None = None,
    ) -> Matches:
        """Matches two images.

        Args:
            image0: as `extract` takes it, or what it returned.
            image1: likewise.
            points: (N, 2) query points of image 0: one result per row, in order. None detects keypoints and
                keeps only matches that pass the checks of `config`.
            mask0: (H, W) of image 0, non-zero where keypoints may lie.
            mask1: (H, W) of image 1, non-zero where matches may lie.
            progress: called at each stage.

        Raises:
            ImageReadError: an image cannot be read or is too small.
            PointsError: a point is not finite or lies outside image 0.
            ValueError: a mask does not fit its image.
        """
        # Files are encoded one by one, since a GPU encodes the first while the second is decoded.
        apart = (str, Path, Features)
        if self._graphs is not None and not isinstance(image0, apart) and not isinstance(image1, apart):
            features0, features1 = self._encode_both(image0, image1, progress)
        else:
            given = (
                image0 if isinstance(image0, Features) else self._encode_image(image0, "image 0", progress)
            )
            features1 = self._encode_dense(image1, "image 1", progress)
            # Corners are detected on the CPU, while a GPU still encodes both.
            features0 = given if isinstance(given, Features) else self._add_keypoints(*given)
        matches = self.match_features(
            features0, features1, points=points, mask0=mask0, mask1=mask1, progress=progress
        )
        return replace(matches, sources=(refer_to_image(image0), refer_to_image(image1)))

    def match_pairs(
        self,
        pairs: Iterable[tuple[ImageLike | Features, ImageLike | Features]],
        *,
        cache_bytes: int = CACHE_BYTES,
        progress: CountReport | None = None,
    ) -> Iterator[Matches]:
        """Matches many pairs, one after another; an image that occurs in several of them is encoded once.

        Args:
            pairs: image 0 and image 1 of each pair, as `match` takes them.
            cache_bytes: memory for the features of the images used last; the last two always stay. An image
                of 1024 × 768 takes 28 MB.
            progress: called after each pair with the numbers of pairs done and in all; the second is the
                first where `pairs` has no length.

        Yields:
            The matches of each pair, in order, as `match` returns them.

        Raises:
            ImageReadError: an image cannot be read or is too small.
            TypeError: an item is not a pair.
        """
        shared = SharedFeatures(self.extract, cache_bytes)
        for number, item in enumerate(pairs, start=1):
            image0, image1 = split_pair(item, number)
            matches = self.match_features(shared.get(image0), shared.get(image1))
            if progress is not None:
                progress(number, count_items(pairs, number))
            yield replace(matches, sources=(refer_to_image(image0), refer_to_image(image1)))

    def transfer(
        self,
        references: Sequence[tuple[ImageLike | Features, ArrayLike]],
        image: ImageLike | Features,
        *,
        min_score: float = MIN_VISIBLE_SCORE,
        names: Sequence[str] | None = None,
    ) -> TransferredPoints:
        """Finds the points of one or several labelled images on another image.

        Each labelled image votes by its matches, and agreement decides (`ucn.matching.transfer`). For many
        images, extract the references once and give their features.

        Args:
            references: labelled images, as `match` takes them, each with the same points (N, 2) in one order,
                NaN where a point is not labelled on it.
            image: the image that the points are searched in.
            min_score: the score from which a point counts as visible.
            names: of the N points; left and right in them mark the sides of an object, one of which is hidden
                in a mirrored view.

        Raises:
            ImageReadError: an image cannot be read or is too small.
            PointsError: there is no reference, they differ in their number of points, or a point is outside.
            ConfigError: `min_score` is out of range.
        """
        if not 0 <= min_score <= 1:
            raise ConfigError(f"min_score must be in [0, 1], got {min_score}")
        labelled = check_labelled(references)
        if names is not None and len(names) != len(labelled[0]):
            raise PointsError(f"names must be one for each of {len(labelled[0])} points, got {len(names)}")
        target = self._encode_dense(image, "image", None)
        features = [each if isinstance(each, Features) else self.extract(each) for each, _ in references]
        votes = collect_votes(self.match_features, list(zip(features, labelled, strict=True)), target)
        return decide(votes, target.image_hw, min_score, None if names is None else list(names))

    def extract_many(
        self,
        images: Iterable[ImageLike],
        *,
        cache_bytes: int = CACHE_BYTES,
        progress: CountReport | None = None,
    ) -> Iterator[Features]:
        """Extracts the features of many images, one after another; one that occurs again is encoded once.

        Args:
            images: as `extract` takes them.
            cache_bytes: as in `match_pairs`.
            progress: likewise, of images.

        Yields:
            The features of each image, in order.

        Raises:
            ImageReadError: as in `extract`.
        """
        shared = SharedFeatures(self.extract, cache_bytes)
        for number, image in enumerate(images, start=1):
            features = shared.get(image)
            if progress is not None:
                progress(number, count_items(images, number))
            yield features

    def extract(self, image: ImageLike, *, progress: Report | None = None) -> Features:
        """Encodes one image and detects its keypoints; the result can be matched with many others.

        Args:
            image: path, `PIL.Image`, numpy uint8 (H, W, 3) RGB or (H, W), or torch (3, H, W) in [0, 1].
            progress: called at each stage.

        Raises:
            ImageReadError: the file cannot be read, or a side is shorter than 32 px.
        """
        return self._add_keypoints(*self._encode_image(image, "image", progress))

    @torch.no_grad()
    def describe(self, features: Features, points: ArrayLike | Tensor) -> Tensor:
        """Descriptors of an image at any of its points, interpolated between feature cells.

        Args:
            features: of the image.
            points: (N, 2) pixels of the caller's image; N may be 0.

        Returns:
            (N, D) float32 of unit norm, on the matcher's device; `ucn.nearest` searches them.

        Raises:
            PointsError: a point is not finite or lies outside the image.
        """
        checked = torch.from_numpy(check_points(points, features.image_hw)).to(self.device)
        return describe_points(receive(features, self.device), checked)

    @torch.no_grad()
    def encode(self, images: Tensor) -> FeatureMap:
        """Encodes images of one size (B, 3, H, W) in [0, 1], at that size, in one forward pass."""
        batch = images.to(self.device).contiguous(memory_format=torch.channels_last)
        return encode_in_tiles(self._encoder, batch, self.config.tile_side)

    @torch.no_grad()
    def match_features(
        self,
        features0: Features,
        features1: Features,
        *,
        points: ArrayLike | Tensor | None = None,
        mask0: MaskLike | None = None,
        mask1: MaskLike | None = None,
        context: PairContext | None = None,
        progress: Report | None = None,
    ) -> Matches:
        """Matches the features that `extract` returned for two images.

        Args:
            features0: of image 0.
            features1: of image 1.
            points: as in `match`.
            mask0: as in `match`.
            mask1: as in `match`.
            context: the result of `pair_context` for these two images, which makes repeated queries of a few
                points many times faster; computed anew when None.
            progress: called at each stage.

        Raises:
            PointsError: as in `match`.
            ValueError: a mask does not fit its image, or the features are of different weights.
        """
        features0, features1 = receive_pair(features0, features1, self.device)
        use0 = None if mask0 is None else to_mask(mask0, features0.image_hw).to(self.device)
        use1 = None if mask1 is None else to_mask(mask1, features1.image_hw).to(self.device)
        if points is None:
            points0 = self._select_keypoints(features0, use0)
        else:
            points0 = torch.from_numpy(check_points(points, features0.image_hw)).to(self.device)
        if progress is not None:
            progress("matching")
        if points is None and use0 is None and use1 is None and self._graphs is not None:
            has_levels = self._parts_encoder is not None
            settings = self.config, self._calibration
            fast = match_by_graphs(self._graphs, features0, features1, *settings, has_levels=has_levels)
            if fast is not None:
                return fast
        if points is None:
            views = self.align_views(features0, features1, use0, use1, progress)
            found = self._match_points(views, points0, use0, use1)
            matches = self._filter(self._score(views, points0, found), found)
            return self._refine_photometric(matches, None, views, use1)
        if context is None:
            views = self.align_views(features0, features1, use0, use1, progress)
            context = self._build_pair_context(views, use0, use1)
        found = self._match_points(context.views, points0, use0, use1)
        matches = self._score(context.views, points0, found, context.matches.pair_score)
        return self._refine_photometric(matches, context, context.views, use1)

    @torch.no_grad()
    def pair_context(self, features0: Features, features1: Features) -> PairContext:
        """Computes what queries of single points of a pair share, for `match_features`."""
        features0, features1 = receive_pair(features0, features1, self.device)
        return self._build_pair_context(self.align_views(features0, features1), None, None)

    @torch.no_grad()
    def similarities(self, features0: Features, features1: Features, point: ArrayLike) -> SimilarityMap:
        """Computes the similarity of one point (x, y) of image 0 to every cell of image 1.

        Raises:
            PointsError: the point is not finite or lies outside image 0.
        """
        features0, features1 = receive_pair(features0, features1, self.device)
        checked = torch.from_numpy(check_points(np.asarray(point)[None], features0.image_hw)).to(self.device)
        found = similarity_map(features0.map, features1.map, to_encoded(checked, features0)[0])
        corner = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
        cells = cells_to_pixels(corner, features1.map.stride, features1.map.offset)
        scale = resize_scale(features1.map.image_hw, features1.image_hw)
        (x0, y0), (x1, y1) = resize_points(cells, scale).tolist()
        return SimilarityMap(_to_numpy(found), (x0, y0), (x1 - x0, y1 - y0))

    @torch.no_grad()
    def flow(
        self, image0: ImageLike | Features, image1: ImageLike | Features, *, progress: Report | None = None
    ) -> Flow:
        """Computes where every pixel of image 0 lies in image 1; images as `match` takes them."""
        features0 = self._encode_dense(image0, "image 0", progress)
        features1 = self._encode_dense(image1, "image 1", progress)
        features0, features1 = receive_pair(features0, features1, self.device)
        if progress is not None:
            progress("matching every cell")
        starts = to_caller(cell_centres(features0.map), features0)
        views = self.align_views(features0, features1, progress=progress)
        found = self._match_points(views, starts, None, None)
        displacements = to_caller(found.points1, views.features1) - starts
        encoded0 = to_encoded(starts, views.features0)
        scores = self._score_visible(views, encoded0, found)
        layers = torch.cat([displacements, scores[:, None]], dim=1)
        dense = interpolate_to_pixels(layers, scores.square(), features0.map, features0.image_hw)
        return Flow(_to_numpy(dense[..., :2]), _to_numpy(dense[..., 2]))

    def _resolve(self, config: MatchConfig) -> MatchConfig:
        """Replaces a `max_side` of "auto" by that of the weights."""
        return replace(config, max_side=self._max_side) if config.max_side == "auto" else config

    def _encode_dense(self, image: ImageLike | Features, name: str, progress: Report | None) -> Features:
        """Features, with keypoints only where they are given."""
        if isinstance(image, Features):
            return image
        return self._encode_image(image, name, progress, has_keypoints=False)[0]

    def _encode_image(
        self, image: ImageLike, name: str, progress: Report | None, has_keypoints: bool = True
    ) -> tuple[Features, _Picture]:
        """Features without keypoints, and the image as it was encoded, for `_add_keypoints`.

        `name` is what errors and progress call the image.
        """
        picture = self._read_image(image, name, has_keypoints)
        return self._encode_pictures([picture], progress)[0], picture

    def _encode_both(
        self, image0: ImageLike, image1: ImageLike, progress: Report | None
    ) -> tuple[Features, Features]:
        """Features of two images, with keypoints of image 0; in one forward pass where sizes agree."""
        picture0 = self._read_image(image0, "image 0", has_keypoints=True)
        picture1 = self._read_image(image1, "image 1", has_keypoints=False)
        pictures, largest = [picture0, picture1], max(picture0.pixels.shape)
        if picture0.pixels.shape == picture1.pixels.shape and largest <= self.config.tile_side:
            features0, features1 = self._encode_pictures(pictures, progress)
        else:
            features0, features1 = (self._encode_pictures([each], progress)[0] for each in pictures)
        return self._add_keypoints(features0, picture0), features1

    @torch.no_grad()
    def _read_image(self, image: ImageLike, name: str, has_keypoints: bool) -> _Picture:
        """Reads an image to the device, and reduces it."""
        side = self._max_side if self.config.max_side == "auto" else self.config.max_side
        if isinstance(image, (str, Path)):
            found = read_reduced_image(image, side)
            pixels, image_hw = found.pixels, found.image_hw
        else:
            pixels = to_tensor(image, self.device)
            image_hw = (pixels.shape[-2], pixels.shape[-1])
        if min(image_hw) < MIN_SIDE:
            where = f"{name} ({image})" if isinstance(image, (str, Path)) else name
            raise ImageReadError(
                f"{where} must be at least {MIN_SIDE} px a side, got {image_hw[1]} × {image_hw[0]} "
                "(width × height); enlarge it first"
            )
        pixels = reduce_image(pixels.to(self.device), side)
        picture = _Picture(name, pixels, image_hw)
        if not has_keypoints or self.config.keypoints != "corners":
            return picture
        grey = average_channels(pixels)
        if self._graphs is not None and grey.is_cuda and grey.numel() <= MAX_PIXELS:
            return replace(picture, corners=detect_by_graphs(self._graphs, grey, self.config.max_keypoints))
        # Copied to the CPU before the network is launched: later the copy would wait for the network.
        return replace(picture, corner_grey=grey.cpu())

    @torch.no_grad()
    def _encode_pictures(self, pictures: Sequence[_Picture], progress: Report | None) -> list[Features]:
        """Features without keypoints of images of one size, in one forward pass."""
        names = " and ".join(each.name for each in pictures)

        def report_tile(tile: str) -> None:
            if progress is not None:
                progress(f"encoding {names}, {tile}")

        if progress is not None:
            progress(f"encoding {names}")
        batch = torch.stack([each.pixels for each in pictures])
        batch = batch.contiguous(memory_format=torch.channels_last)
        maps = encode_in_tiles(self._encoder, batch, self.config.tile_side, report_tile)
        no_points = torch.zeros(0, 2, device=self.device)
        return [
            Features(maps[i], each.image_hw, no_points, _to_grey(each.pixels), _to_bytes(each.pixels))
            for i, each in enumerate(pictures)
        ]

    def _add_keypoints(self, features: Features, picture: _Picture) -> Features:
        """Adds corners of an image, or a grid where none are wanted, to its features."""
        max_count = self.config.max_keypoints
        if picture.corners is not None:
            keypoints = read_corners(picture.corners)
        elif picture.corner_grey is not None:
            keypoints = detect_corners(picture.corner_grey, max_count).points
        else:
            keypoints = grid_points(features.map.image_hw, self.config.grid_step, max_count)
        scale = resize_scale(features.map.image_hw, features.image_hw)
        return replace(features, keypoints=resize_points(keypoints.to(self.device), scale))

    def _select_keypoints(self, features: Features, use: Tensor | None) -> Tensor:
        """Keypoints (K, 2) on the pixels that a mask (H, W) uses; all of them without a mask."""
        points = features.keypoints.to(self.device)
        return points if use is None else points[read_nearest(use, points)]

    @torch.no_grad()
    def align_views(
        self,
        features0: Features,
        features1: Features,
        use0: Tensor | None = None,
        use1: Tensor | None = None,
        progress: Report | None = None,
    ) -> AlignedViews:
        """Both images as they are matched: as given, or encoded again where scale or rotation differ much.

        With a semantic level in the network, images that do not show the same surface may be matched by the
        descriptors of all levels (`ucn.matching.levels`). All others, and all without consensus, are matched
        by fine descriptors.

        Args:
            features0: of image 0.
            features1: of image 1.
            use0: (H, W) bool of image 0, on the device of the network; None uses all of it.
            use1: (H, W) bool of image 1, likewise.
            progress: called before each encoding.
        """
        if not self.config.consensus:
            return AlignedViews(features0, features1, None, None)

        def measure(first: Features, second: Features) -> Consensus:
            is_swapped = first.image is not features0.image  # the search compares in both orders
            masks = (use1, use0) if is_swapped else (use0, use1)
            return measure_consensus(
                first.map,
                second.map,
                is_allowed0=cells_in_mask(first, masks[0]),
                is_allowed1=cells_in_mask(second, masks[1]),
                memory_bytes=self.config.memory_bytes,
            )

        def encode(features: Features, scale: float, degrees: float, box: Box | None = None) -> Features:
            if progress is not None:
                progress("encoding views")
            return self._encode_view(self._encoder, features, scale, degrees, box)

        is_empty = any(use is not None and not use.any() for use in (use0, use1))
        if self.config.use_views and not is_empty:
            views = align_views(features0, features1, encode, measure)
        else:
            views = AlignedViews(features0, features1, measure(features0, features1), None)
        views = self._add_prior(views, use0, use1)
        parts_encoder = self._parts_encoder
        has_images = features0.image is not None and features1.image is not None
        if parts_encoder is None or not has_images or self._shows_same_surface(views):
            return views
        parts0, parts1 = (
            self._encode_view(parts_encoder, features, find_parts_scale(features), 0.0)
            for features in (features0, features1)
        )
        change = ViewChange() if self.config.use_views else None
        parts, fine_parts = (
            self._add_prior(AlignedViews(*pair, measure(*pair), change), use0, use1)
            for pair in ((parts0, parts1), (without_semantic(parts0), without_semantic(parts1)))
        )
        return parts if shows_parts(parts.consensus, fine_parts.consensus) else views

    def _encode_view(
        self, encoder: Encoder, features: Features, scale: float, degrees: float, box: Box | None = None
    ) -> Features:
        """Encodes the image of features again, as `change_view` changes it."""
        assert features.image is not None
        pixels, view = change_view(features.image.to(self.device).float() / 255, scale, degrees, box)
        batch = pixels[None].contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            found = encode_in_tiles(encoder, batch, self.config.tile_side)
        return replace(features, map=found, grey=_to_grey(pixels), view=view)

    def _shows_same_surface(self, views: AlignedViews) -> bool:
        """Whether patches around matches of the strongest corners of image 0 look alike in both images."""
        grey0, grey1 = views.features0.grey, views.features1.grey
        if grey0 is None or grey1 is None:
            return False
        greys = grey0.to(self.device) / 255, grey1.to(self.device) / 255
        corners = detect_corners(grey0.cpu(), PAIR_SCORE_CORNERS).points.to(self.device)
        points0 = to_caller(corners, views.features0)
        found = self._match_points(views, points0, None, None)
        matches = self._filter(self._score(views, points0, found, pair_score=0.0), found)
        points = _both_encoded(matches, views, greys[0].device)
        return passes_same_surface_test(*greys, *points, max_shift=views.features1.map.stride)

    def _add_prior(self, views: AlignedViews, use0: Tensor | None, use1: Tensor | None) -> AlignedViews:
        """Adds the local affine prior to the consensus of views."""
        assert views.consensus is not None
        guidance = add_prior(
            views.features0.map,
            views.features1.map,
            views.consensus,
            is_allowed0=cells_in_mask(views.features0, use0),
            is_allowed1=cells_in_mask(views.features1, use1),
            memory_bytes=self.config.memory_bytes,
        )
        return replace(views, consensus=guidance)

    def _match_points(
        self, views: AlignedViews, points0: Tensor, use0: Tensor | None, use1: Tensor | None
    ) -> PointMatches:
        """Calls `match_points` with the settings of this matcher; `points0` are in the caller's pixels."""
        map0, map1 = views.features0.map, views.features1.map
        encoded0 = to_encoded(points0, views.features0)
        is_allowed1 = cells_in_mask(views.features1, use1)
        found = match_points(
            map0,
            map1,
            encoded0,
            second_best_radius=self.config.second_best_radius,
            consensus=views.consensus,
            is_allowed0=cells_in_mask(views.features0, use0),
            is_allowed1=is_allowed1,
            use_refinement=self.config.use_refinement,
            memory_bytes=self.config.memory_bytes,
        )
        if not self.config.use_refinement:
            return found
        memory_bytes = self.config.memory_bytes
        points1 = interpolate_shift(map0, map1, encoded0, found.points1, is_allowed1, memory_bytes)
        return replace(found, points1=points1)

    def _score(
        self,
        views: AlignedViews,
        points0: Tensor,
        found: PointMatches,
        pair_score: float | None = None,
    ) -> Matches:
        """All matches in the caller's pixels, with their scores; the pair's score is computed when None."""
        encoded0 = to_encoded(points0, views.features0)
        scores = self._score_visible(views, encoded0, found)
        is_mutual = found.round_trip_errors <= self.config.mutual_tolerance
        if pair_score is None:
            pair_score = score_pair(
                scores,
                is_mutual,
                encoded0,
                found.points1,
                found.similarities,
                measure_uniformity(found),
                self._calibration,
            )
        return Matches(
            points0=_to_numpy(points0),
            points1=_to_numpy(to_caller(found.points1, views.features1)),
            scores=_to_numpy(scores),
            is_mutual=is_mutual.cpu().numpy(),
            pair_score=pair_score,
            image0_hw=views.features0.image_hw,
            image1_hw=views.features1.image_hw,
            view_change=views.change,
        )

    def _score_visible(self, views: AlignedViews, encoded0: Tensor, found: PointMatches) -> Tensor:
        """Scores (N,) of matches of points (N, 2) of the encoded image 0; 0 where there is nothing to see."""
        scores = score_matches(found, self._calibration)
        for features, points in ((views.features0, encoded0), (views.features1, found.points1)):
            if features.grey is not None:
                scores = scores * measure_visibility(features.grey.to(self.device) / 255, points)
        return scores

    def _filter(self, matches: Matches, found: PointMatches) -> Matches:
        """The matches that pass the score threshold, the cycle check and the ratio test, best first."""
        keep = np.isfinite(matches.points1).all(axis=1) & (matches.scores >= self.config.min_score)
        if self.config.use_mutual:
            keep &= matches.is_mutual
        if self.config.ratio < 1:
            best, second_best = (
                torch.sqrt((2 - 2 * s).clamp_min(0)) for s in (found.similarities, found.second_best)
            )
            keep &= (best <= self.config.ratio * second_best).cpu().numpy()
        order = np.flatnonzero(keep)
        return matches.select(order[np.argsort(-matches.scores[order], kind="stable")])

    def _build_pair_context(
        self, views: AlignedViews, use0: Tensor | None, use1: Tensor | None
    ) -> PairContext:
        """Matches the strongest corners: query points may lie anywhere, so the pair is judged by corners."""
        corners = self._select_keypoints(views.features0, use0)[:PAIR_SCORE_CORNERS]
        found = self._match_points(views, corners, use0, use1)
        matches = self._filter(self._score(views, corners, found), found)
        greys = self._photometric_greys(views)
        if greys is None:
            return PairContext(matches, False, views)
        points = _both_encoded(matches, views, greys[0].device)
        is_same = passes_same_surface_test(*greys, *points, max_shift=views.features1.map.stride)
        return PairContext(matches, is_same, views)

    def _refine_photometric(
        self,
        matches: Matches,
        context: PairContext | None,
        views: AlignedViews,
        use1: Tensor | None,
    ) -> Matches:
        """Moves matches to where the pixels around them correlate best; see `refine_photometric`."""
        greys = self._photometric_greys(views)
        if greys is None:
            return matches
        device = greys[0].device
        found = refine_photometric(
            *greys,
            *_both_encoded(matches, views, device),
            None if context is None else _both_encoded(context.matches, views, device),
            is_same_surface=None if context is None else context.is_same_surface,
            max_shift=views.features1.map.stride,
        )
        moved = to_caller(found.points1, views.features1)
        is_usable = True if use1 is None else read_nearest(use1.to(device), moved)
        is_moved = found.is_aligned & is_usable
        chosen = torch.where(is_moved[:, None], moved, torch.from_numpy(matches.points1).to(device))
        return replace(matches, points1=_to_numpy(chosen))

    def _photometric_greys(self, views: AlignedViews) -> tuple[Tensor, Tensor] | None:
        """Both encoded images, grey in [0, 1]; None where photometric refinement is off or impossible."""
        is_on = self.config.use_alignment and self.config.use_refinement
        grey0, grey1 = views.features0.grey, views.features1.grey
        if not is_on or grey0 is None or grey1 is None:
            return None
        # Not on mps, which lacks some of the small matrix operations.
        device = torch.device("cpu") if self.device.type == "mps" else self.device
        return grey0.to(device) / 255, grey1.to(device) / 255


def _both_encoded(matches: Matches, views: AlignedViews, device: torch.device) -> tuple[Tensor, Tensor]:
    """Points of both images of matches, in pixels of the encoded images."""
    points0, points1 = (torch.from_numpy(points).to(device) for points in (matches.points0, matches.points1))
    return to_encoded(points0, views.features0), to_encoded(points1, views.features1)


def _to_grey(pixels: Tensor) -> Tensor:
    """The mean of the channels of (3, H, W) in [0, 1], as uint8 (H, W)."""
    return (pixels.mean(dim=0) * 255).round().clamp(0, 255).to(torch.uint8)


def _to_bytes(pixels: Tensor) -> Tensor:
    """(3, H, W) in [0, 1] as uint8."""
    return (pixels * 255).round().clamp(0, 255).to(torch.uint8)


def _to_numpy(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ascontiguousarray(values.detach().float().cpu().numpy())
