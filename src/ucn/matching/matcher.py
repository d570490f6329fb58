"""`Matcher`: images in, matches out, in the pixels of the images the caller gave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ucn.config import MatchConfig
from ucn.data.io import MaskLike, to_mask, to_tensor
from ucn.data.points import check_points
from ucn.errors import ImageReadError
from ucn.geometry.coords import cell_centres, cells_to_pixels, pixels_to_cells, resize_points, resize_scale
from ucn.geometry.sampling import read_nearest
from ucn.matching.alignment import align_matches, show_same_surface
from ucn.matching.cells import CheckedMatches, match_points, similarity_map, spread_over_pixels
from ucn.matching.keypoints import find_corners, grid_points, read_brightness
from ucn.matching.scoring import score_matches, score_pair
from ucn.nn import MIN_SIDE
from ucn.nn.encoder import Engine, choose_encoder
from ucn.nn.tiling import Encoder, encode_in_tiles, reduce_image
from ucn.runtime.device import choose_device
from ucn.types import FeatureMap, Features, Flow, ImageLike, Matches, PairContext, SimilarityMap
from ucn.weights import LoadedWeights, WeightsInfo, load_weights

_PAIR_CORNERS = 500  # as many as the pair score was calibrated on

Report = Callable[[str], None]
"""Called with a short phrase at the beginning of each stage."""


class Matcher:
    """Finds which point in one image is which point in another.

    Attributes:
        config: how images are matched.
        weights: which weights are in use.
        device: where the network runs.
    """

    def __init__(
        self,
        loaded: LoadedWeights,
        *,
        config: MatchConfig | None = None,
        device: str | None = None,
        engine: Engine = "auto",
    ) -> None:
        if engine not in get_args(Engine):
            raise ValueError(f"engine must be one of {', '.join(get_args(Engine))}, got '{engine}'")
        config = config or MatchConfig()
        self.config = replace(config, max_side=loaded.max_side) if config.max_side == 0 else config
        self.weights: WeightsInfo = loaded.info
        self.device = choose_device(device)
        self._calibration = loaded.calibration
        # torch's annotations do not know memory_format.
        model = loaded.model.to(self.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        self._encoder: Encoder = choose_encoder(model, engine)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = "geometric",
        *,
        config: MatchConfig | None = None,
        device: str | None = None,
        engine: Engine = "auto",
    ) -> Matcher:
        """Loads shipped weights by name, or a weights file by path.

        Args:
            name_or_path: such as "geometric", or a .safetensors file that `ucn train` wrote.
            config: how images are matched; the defaults when None.
            device: "cpu", "cuda", "cuda:1", "mps"; CUDA where there is one, else the CPU, when None.
            engine: "plain" is the network as it stands, in float32. "auto" is faster where that costs nothing
                first: on a CPU with the same descriptors to rounding; on a CUDA device since Ampere in
                bfloat16, captured in graphs for sizes that come often. "fast" also compiles there, for a
                minute or so at each new size: for many images of few sizes.

        Raises:
            WeightsError: the name is unknown or the file is damaged.
            ValueError: there is no such device or engine.
        """
        return cls(load_weights(name_or_path), config=config, device=device, engine=engine)

    def extract(self, image: ImageLike, *, progress: Report | None = None) -> Features:
        """Encodes one image; the result can be matched with many others.

        Args:
            image: path, `PIL.Image`, numpy uint8 (H, W, 3) RGB or (H, W), or torch (3, H, W) in [0, 1].
            progress: called at each stage.

        Raises:
            ImageReadError: the file cannot be read, or a side is shorter than 32 px.
        """
        return self._add_keypoints(*self._encode_image(image, "image", progress))

    @torch.no_grad()
    def encode(self, images: Tensor) -> FeatureMap:
        """Descriptors of images of one size (B, 3, H, W) in [0, 1], at that size, in one forward pass."""
        batch = images.to(self.device).contiguous(memory_format=torch.channels_last)
        return encode_in_tiles(self._encoder, batch, self.config.tile_side)

    def match(
        self,
        image0: ImageLike,
        image1: ImageLike,
        *,
        points: ArrayLike | Tensor | None = None,
        mask0: MaskLike | None = None,
        mask1: MaskLike | None = None,
        progress: Report | None = None,
    ) -> Matches:
        """Matches two images.

        Args:
            image0: as `extract` takes it.
            image1: as `extract` takes it.
            points: (N, 2) points of image 0 to look up: one answer per row, in order. None lets the library
                choose points and keep only the matches that hold.
            mask0: (H, W) of image 0, non-zero where points may be chosen.
            mask1: (H, W) of image 1, non-zero where matches may lie.
            progress: called at each stage.

        Raises:
            ImageReadError: an image cannot be read or is too small.
            PointsError: a point is not finite or lies outside image 0.
            ValueError: a mask does not fit its image.
        """
        encoded0, brightness0 = self._encode_image(image0, "image 0", progress)
        # Points are chosen in image 0 alone, while a GPU still encodes both.
        features1 = self._encode_image(image1, "image 1", progress, has_keypoints=False)[0]
        features0 = self._add_keypoints(encoded0, brightness0)
        return self.match_features(
            features0, features1, points=points, mask0=mask0, mask1=mask1, progress=progress
        )

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
        """Matches what `extract` found in two images.

        Args:
            features0: of image 0.
            features1: of image 1.
            points: as in `match`, like all others.
            mask0: as in `match`.
            mask1: as in `match`.
            context: what `pair_context` found out about the two images, so that a few points of a pair that is
                asked often are answered many times faster; without it the same is computed anew.
            progress: called at each stage.
        """
        use0 = None if mask0 is None else to_mask(mask0, features0.image_hw).to(self.device)
        use1 = None if mask1 is None else to_mask(mask1, features1.image_hw).to(self.device)
        if points is None:
            points0 = self._choose_points(features0, use0)
        else:
            points0 = torch.from_numpy(check_points(points, features0.image_hw)).to(self.device)
        if progress is not None:
            progress("matching")
        found = self._match_points(features0, features1, points0, use0, use1)
        if points is None:
            matches = self._judge(features0, features1, points0, found)
            return self._align(self._keep_good(matches, found), None, features0, features1, use1)
        context = context or self._make_pair_context(features0, features1, use0, use1)
        matches = self._judge(features0, features1, points0, found, context.matches.pair_score)
        return self._align(matches, context, features0, features1, use1)

    @torch.no_grad()
    def pair_context(self, features0: Features, features1: Features) -> PairContext:
        """Finds out what answers about single points of a pair rest on, to be given to `match_features`."""
        return self._make_pair_context(features0, features1, None, None)

    @torch.no_grad()
    def similarities(self, features0: Features, features1: Features, point: ArrayLike) -> SimilarityMap:
        """How alike one point (x, y) of image 0 and every place of image 1 are.

        Raises:
            PointsError: the point is not finite or lies outside image 0.
        """
        checked = torch.from_numpy(check_points(np.asarray(point)[None], features0.image_hw)).to(self.device)
        found = similarity_map(features0.map, features1.map, _encode_points(checked, features0)[0])
        corner = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
        cells = cells_to_pixels(corner, features1.map.stride, features1.map.offset)
        scale = resize_scale(features1.map.image_hw, features1.image_hw)
        (x0, y0), (x1, y1) = resize_points(cells, scale).tolist()
        return SimilarityMap(_to_numpy(found), (x0, y0), (x1 - x0, y1 - y0))

    @torch.no_grad()
    def flow(self, image0: ImageLike, image1: ImageLike, *, progress: Report | None = None) -> Flow:
        """Finds where every pixel of image 0 lies in image 1; images as `extract` takes them."""
        features0 = self._encode_image(image0, "image 0", progress, has_keypoints=False)[0]
        features1 = self._encode_image(image1, "image 1", progress, has_keypoints=False)[0]
        if progress is not None:
            progress("matching every cell")
        starts = _to_caller(cell_centres(features0.map), features0)
        found = self._match_points(features0, features1, starts, None, None)
        displacements = _to_caller(found.points1, features1) - starts
        scores = score_matches(found, self._calibration)
        layers = torch.cat([displacements, scores[:, None]], dim=1)
        spread = spread_over_pixels(layers, scores.square(), features0.map, features0.image_hw)
        return Flow(_to_numpy(spread[..., :2]), _to_numpy(spread[..., 2]))

    @torch.no_grad()
    def _encode_image(
        self, image: ImageLike, name: str, progress: Report | None, has_keypoints: bool = True
    ) -> tuple[Features, Tensor | None]:
        """What `extract` finds but keypoints, and the brightness in which corners are found, if they are.

        `name` is what the image is called in messages.
        """
        pixels = to_tensor(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        if min(image_hw) < MIN_SIDE:
            raise ImageReadError(
                f"{name} must be at least {MIN_SIDE} px a side, got {image_hw[1]} × {image_hw[0]} "
                "(width × height); enlarge it first"
            )
        if progress is not None:
            progress(f"encoding {name}")
        pixels = reduce_image(pixels.to(self.device), self.config.max_side)
        # Before a GPU has more to do, so that this waits for little.
        has_corners = has_keypoints and self.config.keypoints == "corners"
        brightness = read_brightness(pixels) if has_corners else None

        def report_tile(tile: str) -> None:
            if progress is not None:
                progress(f"encoding {name}, {tile}")

        batch = pixels[None].contiguous(memory_format=torch.channels_last)
        feature_map = encode_in_tiles(self._encoder, batch, self.config.tile_side, report_tile)
        grey = (pixels.mean(dim=0) * 255).round().clamp(0, 255).to(torch.uint8)
        return Features(feature_map, image_hw, torch.zeros(0, 2, device=self.device), grey), brightness

    def _add_keypoints(self, features: Features, brightness: Tensor | None) -> Features:
        """The features with corners, or a grid where there is no brightness to find them in."""
        if brightness is not None:
            detected = find_corners(brightness, self.config.max_keypoints)
        else:
            step = self.config.grid_step
            while len(detected := grid_points(features.map.image_hw, step)) > self.config.max_keypoints:
                step += 1  # a coarser grid, so that the whole image stays evenly covered
        scale = resize_scale(features.map.image_hw, features.image_hw)
        return replace(features, keypoints=resize_points(detected.to(self.device), scale))

    def _choose_points(self, features: Features, use: Tensor | None) -> Tensor:
        points = features.keypoints.to(self.device)
        return points if use is None else points[read_nearest(use, points)]

    def _match_points(
        self,
        features0: Features,
        features1: Features,
        points0: Tensor,
        use0: Tensor | None,
        use1: Tensor | None,
    ) -> CheckedMatches:
        return match_points(
            features0.map,
            features1.map,
            _encode_points(points0, features0),
            second_best_radius=self.config.second_best_radius,
            is_allowed0=_cells_in_mask(features0, use0),
            is_allowed1=_cells_in_mask(features1, use1),
            use_refinement=self.config.use_refinement,
            memory_bytes=self.config.memory_bytes,
        )

    def _judge(
        self,
        features0: Features,
        features1: Features,
        points0: Tensor,
        found: CheckedMatches,
        pair_score: float | None = None,
    ) -> Matches:
        """All matches in the caller's pixels, with their scores, and that of the pair unless it is known."""
        scores = score_matches(found, self._calibration)
        is_mutual = found.round_trip_errors <= self.config.mutual_tolerance
        if pair_score is None:
            encoded0 = _encode_points(points0, features0)
            pair_score = score_pair(scores, is_mutual, encoded0, found.points1, self._calibration)
        return Matches(
            points0=_to_numpy(points0),
            points1=_to_numpy(_to_caller(found.points1, features1)),
            scores=_to_numpy(scores),
            is_mutual=is_mutual.cpu().numpy(),
            pair_score=pair_score,
            image0_hw=features0.image_hw,
            image1_hw=features1.image_hw,
        )

    def _make_pair_context(
        self, features0: Features, features1: Features, use0: Tensor | None, use1: Tensor | None
    ) -> PairContext:
        # A caller's points may lie anywhere; corners tell whether, and how, the images match.
        corners = self._choose_points(features0, use0)[:_PAIR_CORNERS]
        found = self._match_points(features0, features1, corners, use0, use1)
        guides = self._keep_good(self._judge(features0, features1, corners, found), found)
        grey0, grey1 = self._read_greys(features0, features1)
        if grey0 is None or grey1 is None:
            return PairContext(guides, False)
        points = _to_encoded(guides, features0, features1, grey0.device)
        is_same = show_same_surface(grey0, grey1, *points, max_shift=features1.map.stride)
        return PairContext(guides, is_same)

    def _align(
        self,
        matches: Matches,
        context: PairContext | None,
        features0: Features,
        features1: Features,
        use1: Tensor | None,
    ) -> Matches:
        """The matches, moved to where the pixels round them agree; see `align_matches`."""
        grey0, grey1 = self._read_greys(features0, features1)
        if grey0 is None or grey1 is None:
            return matches
        device = grey0.device
        found = align_matches(
            grey0,
            grey1,
            *_to_encoded(matches, features0, features1, device),
            None if context is None else _to_encoded(context.matches, features0, features1, device),
            is_same_surface=None if context is None else context.is_same_surface,
            max_shift=features1.map.stride,
        )
        moved = _to_caller(found.points1, features1)
        is_usable = True if use1 is None else read_nearest(use1.to(device), moved)
        is_moved = found.is_aligned & is_usable
        chosen = torch.where(is_moved[:, None], moved, torch.from_numpy(matches.points1).to(device))
        return replace(matches, points1=_to_numpy(chosen))

    def _read_greys(self, features0: Features, features1: Features) -> tuple[Tensor | None, Tensor | None]:
        """The encoded images in [0, 1] that matches are aligned by; None where they are not to be."""
        is_asked = self.config.use_alignment and self.config.use_refinement
        if not is_asked or features0.grey is None or features1.grey is None:
            return None, None
        # Not on mps, which lacks some of the small matrix operations.
        device = torch.device("cpu") if self.device.type == "mps" else self.device
        return features0.grey.to(device) / 255, features1.grey.to(device) / 255

    def _keep_good(self, matches: Matches, found: CheckedMatches) -> Matches:
        """The matches that pass the configured checks, best first."""
        keep = np.isfinite(matches.points1).all(axis=1) & (matches.scores >= self.config.min_score)
        if self.config.use_mutual:
            keep &= matches.is_mutual
        if self.config.ratio < 1:
            best, rival = (
                torch.sqrt((2 - 2 * s).clamp_min(0)) for s in (found.similarities, found.second_best)
            )
            keep &= (best <= self.config.ratio * rival).cpu().numpy()
        order = np.flatnonzero(keep)
        return matches.select(order[np.argsort(-matches.scores[order], kind="stable")])


def _encode_points(points: Tensor, features: Features) -> Tensor:
    """From pixels of the image as given to those of the image as encoded."""
    return resize_points(points, resize_scale(features.image_hw, features.map.image_hw))


def _to_caller(points: Tensor, features: Features) -> Tensor:
    """Points of the encoded image in the caller's pixels, kept on the image; NaN stays."""
    moved = resize_points(points, resize_scale(features.map.image_hw, features.image_hw))
    height, width = features.image_hw
    limit = moved.new_tensor([width - 0.5, height - 0.5])
    return torch.minimum(moved.clamp_min(-0.5), limit)


def _to_encoded(
    matches: Matches, features0: Features, features1: Features, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Both sides of matches in pixels of the encoded images."""
    points0, points1 = (torch.from_numpy(points).to(device) for points in (matches.points0, matches.points1))
    return _encode_points(points0, features0), _encode_points(points1, features1)


def _cells_in_mask(features: Features, use: Tensor | None) -> Tensor | None:
    """Bool (h * w,): the cells whose centres a mask (H, W) of the caller's image uses; None for no mask."""
    if use is None:
        return None
    centres = _to_caller(cell_centres(features.map), features)
    is_used = read_nearest(use, centres)
    if is_used.any() or not use.any():
        return is_used
    # A mask so small that it misses all centres still names a place: the cells its pixels lie in.
    encoded = _encode_points(use.nonzero().flip(-1).float(), features)
    cells = pixels_to_cells(encoded, features.map.stride, features.map.offset).round().long()
    h, w = features.map.grid_hw
    is_used[cells[:, 1].clamp(0, h - 1) * w + cells[:, 0].clamp(0, w - 1)] = True
    return is_used


def _to_numpy(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ascontiguousarray(values.detach().float().cpu().numpy())
