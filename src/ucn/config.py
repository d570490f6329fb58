"""Every setting, as frozen dataclasses that refuse unknown keys and values out of range.

Order of precedence: the defaults here, then a recipe file, then the command line. Modules take plain
arguments; only builders (`build_model`, `Matcher`, the training loop) see these classes.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import reprlib
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, Self

from ucn.errors import ConfigError


class Config:
    """Base of all settings: strict reading from plain dictionaries, and back."""

    def __post_init__(self) -> None:
        """Checks the type of every field, however the config is made; subclasses go on with the ranges."""
        for name, hint in typing.get_type_hints(type(self)).items():
            given = getattr(self, name)
            value = _read_value(hint, given, name)
            if value is not given:
                object.__setattr__(self, name, value)  # an int where a float is asked, a list for a tuple

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "") -> Self:
        """Builds the config from nested dictionaries.

        Args:
            values: keys are field names; nested configs are dictionaries.
            where: dotted path printed in errors.

        Raises:
            ConfigError: a key is unknown (the closest legal one is named) or missing, or a value is of the
                wrong type or out of range.
        """
        if not isinstance(values, dict):
            raise ConfigError(f"{where or cls.__name__} must be a mapping, got {type(values).__name__}")
        hints = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        legal = [field.name for field in fields]
        given: dict[str, Any] = {}
        for key, value in values.items():
            name = str(key)[:80]
            path = f"{where}.{name}" if where else name
            if key not in legal:
                close = difflib.get_close_matches(name, legal, n=1)
                hint = f"; did you mean '{close[0]}'?" if close else ""
                raise ConfigError(f"unknown key '{path}'{hint} (legal: {', '.join(legal)})")
            given[key] = _read_value(hints[key], value, path)
        for field in fields:
            if field.name not in given and field.default is dataclasses.MISSING:
                raise ConfigError(f"{where or cls.__name__} lacks the key '{field.name}'")
        try:
            return cls(**given)
        except ConfigError as error:  # a message of `__post_init__` begins with the field's name
            raise ConfigError(f"{where}.{error}" if where else str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries that `from_dict` reads back to an equal config."""
        return _plain(dataclasses.asdict(self))  # type: ignore[call-overload, no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _read_value(hint: Any, value: Any, path: str) -> Any:
    """Checks one value against its annotation; ints become floats and lists tuples where those are asked."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = [a for a in arguments if a is not type(None)]
        return _read_value(hint, value, path)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise ConfigError(f"{path} must be one of {', '.join(map(str, arguments))}, got {_show(value)}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path} must be a list, got {_show(value)}")
        if arguments[-1] is Ellipsis:
            arguments = (arguments[0],) * len(value)
        if len(value) != len(arguments):
            raise ConfigError(f"{path} must have {len(arguments)} values, got {len(value)}")
        return tuple(
            _read_value(a, v, f"{path}[{i}]") for i, (a, v) in enumerate(zip(arguments, value, strict=True))
        )
    if isinstance(hint, type) and issubclass(hint, Config):
        return value if isinstance(value, hint) else hint.from_dict(value, path)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an int beyond all floats
            number = math.inf
        if not math.isfinite(number):
            raise ConfigError(f"{path} must be a finite number, got {_show(value)}")
        return value if isinstance(value, float) else number
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{path} must be {hint.__name__}, got {_show(value)}")
    return value


def _require(condition: bool, rule: str, value: Any) -> None:
    if not condition:
        raise ConfigError(f"{rule}, got {_show(value)}")


def _require_at_most(config: Config, **limits: float) -> None:
    """Bounds sizes and counts far above any use, so that a slip of the keyboard is not an empty memory."""
    for name, limit in limits.items():
        value = getattr(config, name)
        _require(value is None or value <= limit, f"{name} must be at most {limit}", value)


def _show(value: Any) -> str:
    """A value as errors print it: short, however long it is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to print ints of more than 4300 digits
        return f"{type(value).__name__} of very many digits"


@dataclass(frozen=True)
class ModelConfig(Config):
    """The network: GoogLeNet trunk, optional projection, optional convolutional spatial transformer."""

    strides: tuple[int, int, int, int] = (2, 2, 1, 1)
    """Strides of conv1, pool1, pool2, pool3, each 1 or 2; (2, 2, 1, 1) is the paper's, one cell per 4 px."""
    dim: int | None = 128
    """Length of a descriptor; None means inception_4a's 512 channels without a projection."""
    head_norm: Literal["none", "batch", "channel"] = "channel"
    """Normalisation before the head: none, batch statistics, or over the channels of each location."""
    transformer: Literal["none", "after_trunk", "in_branch"] = "after_trunk"
    """Where the convolutional spatial transformer stands; the paper's text puts it after the trunk."""
    transformer_kernel: int = 3
    """Side k of the transformer's kernel, odd. Unused in_branch, where the branches' own 3 and 5 hold."""
    context_layers: int = 0
    """Convolutions of the coarse branch that looks further than the trunk, 0..8; 0 leaves it out."""
    context_dilation: int = 1
    """How many times further each convolution of that branch reaches than the one before, 1..4."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        _require(all(s in (1, 2) for s in self.strides), "strides must each be 1 or 2", self.strides)
        _require(self.dim is None or 1 <= self.dim <= 4096, "dim must be 1..4096 or null", self.dim)
        k = self.transformer_kernel
        _require(k % 2 == 1 and 1 <= k <= 15, "transformer_kernel must be odd and 1..15", k)
        _require(0 <= self.context_layers <= 8, "context_layers must be 0..8", self.context_layers)
        _require(1 <= self.context_dilation <= 4, "context_dilation must be 1..4", self.context_dilation)
        _require(
            self.context_layers == 0 or math.prod(self.strides) <= 8,
            "context_layers must be 0 where the strides multiply to more than 8",
            self.context_layers,
        )


@dataclass(frozen=True)
class Calibration(Config):
    """Logistic curves, fitted on held-out pairs, that turn similarities into probabilities.

    Every number is in [-10000, 10000].
    """

    match_bias: float = -2.0
    """Constant of a match's logit."""
    match_similarity: float = 3.0
    """Weight of the cosine similarity of the two points."""
    match_margin: float = 6.0
    """Weight of its lead over the best similarity elsewhere in image 1."""
    match_miss: float = -4.0
    """Weight of the pixels by which the way back misses the start, up to 16, divided by 16."""
    pair_bias: float = -4.0
    """Constant of a pair's logit."""
    pair_support: float = 16.0
    """Weight of the mean score over all queries, those without a mutual match counting 0."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            _require(abs(value) <= 1e4, f"{field.name} must be in [-10000, 10000]", value)


@dataclass(frozen=True)
class MatchConfig(Config):
    """How images are matched."""

    max_side: int | None = 0
    """Larger images are reduced to this longest side, in pixels, before encoding; 0 takes the side that the
    weights were made for (1024 for geometric, 160 for birds), None keeps full size."""
    tile_side: int = 1536
    """Images with a longer side than this, in pixels, are encoded in overlapping tiles; multiple of 32."""
    keypoints: Literal["corners", "grid"] = "corners"
    """What is matched when the caller gives no points: corners of image 0, or a regular grid."""
    max_keypoints: int = 4096
    """At most this many keypoints of an image are matched; 1..1,000,000."""
    grid_step: int = 4
    """Distance of grid keypoints in pixels of the encoded image."""
    use_mutual: bool = True
    """Keep only matches that lead back to where they came from."""
    mutual_tolerance: float = 3.0
    """How far, in pixels of the encoded image, the way back may miss the start."""
    ratio: float = 1.0
    """Largest distance ratio of the best match to the best one elsewhere, in (0, 1]; 1 switches it off."""
    elsewhere_radius: float = 16.0
    """Pixels round a match within which other candidates count as the same match."""
    min_score: float = 0.5
    """Matches with a smaller score, in [0, 1], are dropped; 0.5 keeps those likelier right than wrong."""
    use_refinement: bool = True
    """Place matches between cells by the shape of the similarity peak."""
    use_alignment: bool = True
    """Then move them by parts of a pixel to where the images round them agree, if both show the same
    surfaces; needs `use_refinement`."""
    memory_bytes: int = 256 * 2**20
    """Budget of the nearest-neighbour search's largest temporary."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        max_side = self.max_side
        is_legal = max_side is None or max_side == 0 or max_side >= 32
        _require(is_legal, "max_side must be at least 32, 0 or null", max_side)
        _require(
            self.tile_side >= 256 and self.tile_side % 32 == 0,
            "tile_side must be a multiple of 32 and at least 256",
            self.tile_side,
        )
        _require(self.max_keypoints >= 1, "max_keypoints must be at least 1", self.max_keypoints)
        _require(self.grid_step >= 1, "grid_step must be at least 1", self.grid_step)
        _require(self.mutual_tolerance > 0, "mutual_tolerance must be above 0", self.mutual_tolerance)
        _require(0 < self.ratio <= 1, "ratio must be in (0, 1]", self.ratio)
        radius = self.elsewhere_radius
        _require(radius >= 0, "elsewhere_radius must be at least 0", radius)
        _require(0 <= self.min_score <= 1, "min_score must be in [0, 1]", self.min_score)
        _require(self.memory_bytes >= 2**20, "memory_bytes must be at least 1 MiB", self.memory_bytes)
        sizes = dict.fromkeys(("max_side", "tile_side", "max_keypoints", "grid_step"), 1_000_000)
        _require_at_most(self, **sizes, memory_bytes=2**40)


@dataclass(frozen=True)
class SyntheticConfig(Config):
    """Pairs made from photographs by random maps or planes in depth, and photometric change.

    Pairs are homographies, but for the shares of the other kinds.
    """

    side: int = 256
    """Side of both square views, pixels, a multiple of 32."""
    points: int = 1000
    """Correspondences per pair."""
    upright_share: float = 0.5
    """Share of pairs turned only by up to `upright_degrees`; the rest by up to 180 degrees."""
    upright_degrees: float = 30.0
    """Largest turn of the upright pairs, in [0, 180]."""
    max_scale: float = 2.0
    """Largest ratio of the scales of the two views, at least 1; drawn log-uniformly, either way round."""
    perspective: float = 0.2
    """How far corners move for the perspective part, as a share of the side, in [0, 0.4]."""
    zoom: tuple[float, float] = (0.6, 1.25)
    """Source pixels per pixel of view 0, smallest and largest."""
    photometric: float = 1.0
    """Strength of colour, light, blur and noise changes; 0 switches them off."""
    relight: float = 0.0
    """Strength of hard changes of light (lamps, shadows, relief, exposure, tones), at least 0; 0: none."""
    recolour: float = 0.0
    """Share of pairs, in [0, 1], whose photograph gets other colours before both views are made of it."""
    mirror: float = 0.0
    """Share of pairs, in [0, 1], whose photograph is mirrored before both views are made of it."""
    blend_share: float = 0.0
    """Share of planes, in [0, 1], that show two photographs at once, as a double exposure does."""
    crop_degrees: float = 0.0
    """Largest turn of view 0 against the photograph, in [0, 180]."""
    crop_stretch: float = 1.0
    """Largest ratio of the scales of view 0 along the photograph's two axes, in [1, 2]."""
    border: Literal["mirror", "other"] = "mirror"
    """What views show beyond a photograph: its mirror image, or another photograph."""
    affine_share: float = 0.0
    """Share of pairs, in [0, 1], whose views differ by an affine map: a stretch instead of perspective."""
    spline_share: float = 0.0
    """Share of pairs, in [0, 1], whose views differ by a homography and a bend (thin-plate spline)."""
    parallax_share: float = 0.0
    """Share of pairs, in [0, 1], that show several planes in depth; the three shares sum to at most 1."""
    stretch: float = 2.0
    """Largest ratio of the scales along and across a random axis of affine pairs, in [1, 4]."""
    spline: float = 0.15
    """How far a bend moves its control points, as a share of their distance, in [0, 0.19]: it cannot fold."""
    spline_grid: int = 4
    """Control points of a bend along each side, 3..8."""
    parallax: float = 0.2
    """How far the nearest plane moves against the background, as a share of the side, in [0, 0.5]."""
    parallax_planes: int = 3
    """Most planes of a scene, the background among them, 2..5; each scene has at least 2."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        side, degrees, zoom = self.side, self.upright_degrees, self.zoom
        _require(side >= 64 and side % 32 == 0, "side must be a multiple of 32 from 64", side)
        _require(self.points >= 1, "points must be at least 1", self.points)
        _require(0 <= self.upright_share <= 1, "upright_share must be in [0, 1]", self.upright_share)
        _require(0 <= degrees <= 180, "upright_degrees must be in [0, 180]", degrees)
        _require(self.max_scale >= 1, "max_scale must be at least 1", self.max_scale)
        _require(0 <= self.perspective <= 0.4, "perspective must be in [0, 0.4]", self.perspective)
        _require(0 < zoom[0] <= zoom[1], "zoom must be two rising positive numbers", zoom)
        _require(self.photometric >= 0, "photometric must be at least 0", self.photometric)
        _require_at_most(self, side=8192, points=1_000_000)
        ranges: dict[str, tuple[float, float]]
        ranges = {"relight": (0, 2), "recolour": (0, 1), "mirror": (0, 1), "blend_share": (0, 1)}
        ranges |= {"crop_degrees": (0, 180), "crop_stretch": (1, 2)}
        ranges |= {
            "affine_share": (0, 1),
            "spline_share": (0, 1),
            "parallax_share": (0, 1),
            "stretch": (1, 4),
        }
        ranges |= {
            "spline": (0, 0.19),
            "spline_grid": (3, 8),
            "parallax": (0, 0.5),
            "parallax_planes": (2, 5),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            _require(low <= value <= high, f"{name} must be in [{low}, {high}]", value)
        shares = self.affine_share + self.spline_share + self.parallax_share
        rule = "parallax_share must leave the sum with affine_share and spline_share at most 1"
        _require(shares <= 1 + 1e-9, rule, shares)


@dataclass(frozen=True)
class LossConfig(Config):
    """Which loss, over which negatives."""

    kind: Literal["infonce", "contrastive", "triplet", "one_contrastive"] = "infonce"
    """InfoNCE over all cells outside the radius, the paper's Eq. 1, triplets, or Eq. 1 on one example a pair
    of images."""
    radius: float = 16.0
    """Candidates closer than this many pixels to the truth are never negatives."""
    temperature: float = 0.07
    """InfoNCE's temperature."""
    margin: float = 1.0
    """Margin of the contrastive and triplet losses."""
    mining: Literal["random", "nearest", "hardest"] = "hardest"
    """How negatives of the contrastive and triplet losses are found."""
    direction: Literal["0to1", "1to0", "both"] = "both"
    """Whether candidates lie in view 1, view 0 or both."""
    negatives: int = 1
    """Mined negatives per point and direction of the contrastive and triplet losses, 1..1000."""
    random_negatives: int = 0
    """Random negatives per point and direction beside the mined ones, for sparse points, 0..1000."""
    positive_share: float = 0.5
    """Share of positive examples of the loss of one example a pair, in [0, 1]."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        _require(self.radius >= 0, "radius must be at least 0", self.radius)
        _require(self.temperature > 0, "temperature must be above 0", self.temperature)
        _require(self.margin > 0, "margin must be above 0", self.margin)
        _require(1 <= self.negatives <= 1000, "negatives must be 1..1000", self.negatives)
        _require(
            0 <= self.random_negatives <= 1000, "random_negatives must be 0..1000", self.random_negatives
        )
        _require(0 <= self.positive_share <= 1, "positive_share must be in [0, 1]", self.positive_share)


@dataclass(frozen=True)
class SourceConfig(Config):
    """Where pairs of a training run come from: photographs, or a data set.

    The name ``synthetic`` stands for a folder of photographs, of which `TrainConfig.synthetic` makes pairs;
    of the other keys it knows only `folder`, `weight`, `batch` and `loss`. With `use_warps` the images of a
    data set are such photographs, too.
    """

    name: str
    """'synthetic', or a data set's name as ``ucn data list`` gives it."""
    folder: str = ""
    """Its folder; empty where the command line gives it (``--data NAME=DIR``)."""
    split: str | None = None
    """Which part of the data set; None takes its first."""
    options: tuple[str, ...] = ()
    """Options of its reader, each ``key=value``."""
    weight: float = 1.0
    """Share of the steps taken on it, against the weights of the others; above 0, up to 1,000,000."""
    batch: int | None = None
    """Pairs per step, 1..65536; None takes the run's."""
    crop_hw: tuple[int, int] = (256, 256)
    """(height, width) in pixels to which both images are brought, each 32..8192."""
    fit: Literal["crop", "resize"] = "crop"
    """Cut a window of that size out of images, or scale them until they fit into it, and pad them."""
    points: int = 1000
    """Correspondences per pair, 1..1,000,000: of more so many are drawn, fewer are padded."""
    min_points: int = 1
    """Pairs with fewer correspondences left after cropping are replaced by others, 1..1,000,000."""
    mirror: float = 0.0
    """Share of pairs, in [0, 1], that are mirrored, both views alike."""
    mirror_view: float = 0.0
    """Share of pairs, in [0, 1], of which one view is mirrored; for sets whose points are named parts."""
    rotation: float = 0.0
    """Largest turn of each view in degrees, in [0, 180]."""
    scale: float = 1.0
    """Largest factor by which each view is enlarged or reduced, in [1, 4]."""
    photometric: float = 0.0
    """Strength of changes of light and colour, in [0, 3]; 0 switches them off."""
    workers: int = 2
    """Processes that read pairs, 0..64; 0 reads between the steps."""
    on_device: bool = False
    """Hold all images on the device and make pairs there, without workers; for sets of images with parts."""
    shift: float = 0.0
    """Largest way that each view is moved, as a share of its sides, in [0, 0.5]; needs `on_device`."""
    across: float = 0.0
    """Share of pairs, in [0, 1], of two images of any classes instead of one; needs `on_device`."""
    use_warps: bool = False
    """Make pairs of the set's single images, as `TrainConfig.synthetic` does of photographs, and leave its
    own correspondences alone."""
    loss: LossConfig | None = None
    """The loss of this source's steps; None takes the run's."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        _require(self.name.strip() != "", "name must not be empty", self.name)
        for option in self.options:
            _require("=" in option, "options must each be key=value", option)
        _require(self.weight > 0, "weight must be above 0", self.weight)
        for name in ("batch", "points", "min_points"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} must be at least 1", value)
        sides = self.crop_hw
        _require(all(32 <= side <= 8192 for side in sides), "crop_hw must each be 32..8192", sides)
        limits: dict[str, tuple[float, float]]
        limits = {"mirror": (0, 1), "mirror_view": (0, 1), "rotation": (0, 180), "scale": (1, 4)}
        limits |= {"photometric": (0, 3), "workers": (0, 64), "shift": (0, 0.5), "across": (0, 1)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            _require(low <= value <= high, f"{name} must be in [{low}, {high}]", value)
        rule = "use_warps must be false where on_device is true"
        _require(not (self.use_warps and self.on_device), rule, self.use_warps)
        for name in ("shift", "across"):
            value = getattr(self, name)
            _require(self.on_device or value == 0, f"{name} must be 0 unless on_device is true", value)
        _require_at_most(self, weight=1e6, batch=65_536, points=1_000_000, min_points=1_000_000)


@dataclass(frozen=True)
class TrainConfig(Config):
    """One training run; a recipe file holds exactly these keys."""

    name: str
    """Name of the run and of its weights."""
    steps: int
    """Optimiser steps."""
    seed: int = 0
    """Seed of weights and of data, at least 0."""
    batch: int = 16
    """Pairs per step, over all processes of a distributed run together."""
    init: str = "random"
    """'random'; a file of BVLC GoogLeNet for the trunk (.npz, .caffemodel, .onnx); or for the whole network
    the name of shipped weights or a .safetensors file."""
    max_side: int = 1024
    """Longest side, in pixels, to which larger images should be reduced when they are matched with these
    weights, at least 32: about the size of what they learn from, where scale matters."""
    optimiser: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or stochastic gradient descent with momentum."""
    head_rate: float = 1e-3
    """Peak learning rate of all that is not the trunk, at least 0."""
    trunk_rate: float = 1e-4
    """Peak learning rate of the trunk, at least 0; 0 leaves the trunk as it is."""
    weight_decay: float = 1e-4
    """The optimiser's weight decay, at least 0."""
    use_vector_decay: bool = True
    """Whether weight decay also shrinks biases and the vectors of norms, not only kernels."""
    momentum: float = 0.9
    """SGD's momentum, in [0, 1); AdamW has its own."""
    use_nesterov: bool = False
    """Whether SGD's momentum is Nesterov's; needs a momentum above 0."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """How rates move after their rise: along a cosine to 0, down at each milestone, or not at all."""
    warmup_steps: int = 200
    """Steps over which the rates rise linearly, before the schedule begins."""
    milestones: tuple[int, ...] = ()
    """Steps, rising, after which the schedule 'step' multiplies the rates by `milestone_factor`."""
    milestone_factor: float = 0.1
    """What the schedule 'step' multiplies the rates by at each milestone, in (0, 1]."""
    clip_norm: float = 1.0
    """Gradients longer than this are shortened to it; above 0."""
    average_decay: float = 0.999
    """Decay per step of the moving average of the weights that is kept, in [0, 1)."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Of the forward pass on a GPU; float32 also keeps its products from TF32. A CPU takes float32."""
    freeze_norms: bool = False
    """Keep the statistics of batch norms as `init` has them: for sources too different to share any, and for
    batches too small to have good ones."""
    use_compile: bool = False
    """Compile the network's forward and backward on a GPU; pays after a minute, needs a C compiler."""
    validate_every: int = 1000
    """Steps between validations."""
    checkpoint_every: int = 500
    """Steps between checkpoints; one is also written at each validation."""
    validation_share: float = 0.05
    """Share of the images of each source held out for validation, in (0, 0.5]; at least one image is."""
    model: ModelConfig = ModelConfig()
    """The network."""
    loss: LossConfig = LossConfig()
    """The loss."""
    synthetic: SyntheticConfig = SyntheticConfig()
    """The pairs made of photographs."""
    sources: tuple[SourceConfig, ...] = ()
    """Where pairs come from; with none, from the folder of photographs that the command line gives."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        _require(self.name.strip() != "", "name must not be empty", self.name)
        _require(self.steps >= 1, "steps must be at least 1", self.steps)
        _require(0 <= self.seed < 2**63, "seed must be in [0, 2^63)", self.seed)
        _require(32 <= self.max_side <= 1_000_000, "max_side must be 32..1000000", self.max_side)
        _require(self.batch >= 1, "batch must be at least 1", self.batch)
        for name in ("head_rate", "trunk_rate", "weight_decay", "warmup_steps"):
            value = getattr(self, name)
            _require(value >= 0, f"{name} must be at least 0", value)
        _require(self.clip_norm > 0, "clip_norm must be above 0", self.clip_norm)
        _require(0 <= self.average_decay < 1, "average_decay must be in [0, 1)", self.average_decay)
        for name in ("validate_every", "checkpoint_every"):
            value = getattr(self, name)
            _require(value >= 1, f"{name} must be at least 1", value)
        self._check_schedule()
        share = self.validation_share
        _require(0 < share <= 0.5, "validation_share must be in (0, 0.5]", share)
        names = ("steps", "warmup_steps", "validate_every", "checkpoint_every")
        _require_at_most(self, **dict.fromkeys(names, 1_000_000_000), batch=65_536)

    def _check_schedule(self) -> None:
        _require(0 <= self.momentum < 1, "momentum must be in [0, 1)", self.momentum)
        rule = "use_nesterov must be false where momentum is 0"
        _require(self.momentum > 0 or not self.use_nesterov, rule, self.use_nesterov)
        factor, milestones = self.milestone_factor, self.milestones
        _require(0 < factor <= 1, "milestone_factor must be in (0, 1]", factor)
        is_rising = all(earlier < later for earlier, later in zip((0, *milestones), milestones, strict=False))
        _require(is_rising, "milestones must rise and be at least 1", milestones)
        is_used = self.schedule == "step"
        rule = "milestones must be given with schedule 'step', and only with it"
        _require(is_used == bool(milestones), rule, milestones)
