"""Settings of training: the loss, where pairs come from, and the run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from ucn.config.base import Config, require, require_at_most, require_within
from ucn.config.model import ModelConfig
from ucn.config.synthetic import SyntheticConfig

_SOURCE_RANGES: dict[str, tuple[float, float]] = {
    "mirror": (0, 1),
    "mirror_view": (0, 1),
    "rotation": (0, 180),
    "scale": (1, 4),
    "photometric": (0, 3),
    "workers": (0, 64),
    "shift": (0, 0.5),
    "across": (0, 1),
}


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
        require(self.radius >= 0, "radius must be at least 0", self.radius)
        require(self.temperature > 0, "temperature must be above 0", self.temperature)
        require(self.margin > 0, "margin must be above 0", self.margin)
        require(1 <= self.negatives <= 1000, "negatives must be 1..1000", self.negatives)
        require(0 <= self.random_negatives <= 1000, "random_negatives must be 0..1000", self.random_negatives)
        require(0 <= self.positive_share <= 1, "positive_share must be in [0, 1]", self.positive_share)


@dataclass(frozen=True)
class TeacherConfig(Config):
    """A finished network that the trained one follows, beside the truth or instead of it."""

    weights: str
    """The name of shipped weights or a .safetensors file; its cells must lie where the network's do."""
    weight: float = 1.0
    """Of differences from the teacher's similarities, beside the loss against the truth, in [0, 1000]."""
    temperature: float = 0.05
    """Of the similarities that are compared, in (0, 10]; the lower, the more only the best cells count."""
    sha256: str = ""
    """Of the file, filled in when a recipe is read; where it is given, another file is refused."""
    descriptor_weight: float = 0.0
    """Of differences from the teacher's descriptors of all cells, which are turned to the network's first, in
    [0, 1000]."""
    ground_truth_weight: float = 1.0
    """Of the loss against the truth, in [0, 1000]; with 0 a network learns from its teacher alone."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(self.weights.strip() != "", "weights must not be empty", self.weights)
        require(0 <= self.weight <= 1000, "weight must be in [0, 1000]", self.weight)
        require(0 < self.temperature <= 10, "temperature must be in (0, 10]", self.temperature)
        for name in ("descriptor_weight", "ground_truth_weight"):
            value = getattr(self, name)
            require(0 <= value <= 1000, f"{name} must be in [0, 1000]", value)
        weights = (self.weight, self.descriptor_weight, self.ground_truth_weight)
        require(any(weights), "weight, descriptor_weight or truth_weight must be above 0", weights)


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
        require(self.name.strip() != "", "name must not be empty", self.name)
        for option in self.options:
            require("=" in option, "options must each be key=value", option)
        require(self.weight > 0, "weight must be above 0", self.weight)
        for name in ("batch", "points", "min_points"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1", value)
        sides = self.crop_hw
        require(all(32 <= side <= 8192 for side in sides), "crop_hw must each be 32..8192", sides)
        require_within(self, _SOURCE_RANGES)
        rule = "use_warps must be false where on_device is true"
        require(not (self.use_warps and self.on_device), rule, self.use_warps)
        for name in ("shift", "across"):
            value = getattr(self, name)
            require(self.on_device or value == 0, f"{name} must be 0 unless on_device is true", value)
        require_at_most(self, weight=1e6, batch=65_536, points=1_000_000, min_points=1_000_000)


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
    init_part: Literal["whole", "trunk"] = "whole"
    """What is taken of weights that `init` names: the whole network, which then must be that of `model`, or
    its trunk alone, with the rest drawn anew."""
    max_side: int = 1024
    """Longest side, in pixels, to which larger images should be reduced when they are matched with these
    weights, at least 32: about the size of what they learn from, where scale matters."""
    optimiser: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or stochastic gradient descent with momentum."""
    head_learning_rate: float = 1e-3
    """Peak learning rate of all that is not the trunk, at least 0."""
    trunk_learning_rate: float = 1e-4
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
    coarse_gain: float = 1.0
    """What smaller copies of the image (`model.levels`), or the coarser cells of the small trunk, count for
    in the kept network against what they came to count for in training, in (0, 8]: views made of photographs
    show less of a scene than pictures do."""
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
    model: ModelConfig = ModelConfig()  # noqa: RUF009 (frozen: one for all is safe)
    """The network."""
    loss: LossConfig = LossConfig()
    """The loss."""
    teacher: TeacherConfig | None = None
    """A finished network to learn from, beside the truth or instead; None learns from the truth alone."""
    synthetic: SyntheticConfig = SyntheticConfig()  # noqa: RUF009
    """The pairs made of photographs."""
    sources: tuple[SourceConfig, ...] = ()
    """Where pairs come from; with none, from the folder of photographs that the command line gives."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(self.name.strip() != "", "name must not be empty", self.name)
        require(self.steps >= 1, "steps must be at least 1", self.steps)
        require(0 <= self.seed < 2**63, "seed must be in [0, 2^63)", self.seed)
        require(32 <= self.max_side <= 1_000_000, "max_side must be 32..1000000", self.max_side)
        require(self.batch >= 1, "batch must be at least 1", self.batch)
        for name in ("head_learning_rate", "trunk_learning_rate", "weight_decay", "warmup_steps"):
            value = getattr(self, name)
            require(value >= 0, f"{name} must be at least 0", value)
        require(self.clip_norm > 0, "clip_norm must be above 0", self.clip_norm)
        require(0 <= self.average_decay < 1, "average_decay must be in [0, 1)", self.average_decay)
        require(0 < self.coarse_gain <= 8, "coarse_gain must be in (0, 8]", self.coarse_gain)
        has_coarse = self.model.levels > 1 or self.model.trunk == "lite"
        rule = "coarse_gain must be 1 where model.levels is 1 and the trunk is not the small one"
        require(has_coarse or self.coarse_gain == 1, rule, self.coarse_gain)
        for name in ("validate_every", "checkpoint_every"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1", value)
        self._check_schedule()
        share = self.validation_share
        require(0 < share <= 0.5, "validation_share must be in (0, 0.5]", share)
        names = ("steps", "warmup_steps", "validate_every", "checkpoint_every")
        require_at_most(self, **dict.fromkeys(names, 1_000_000_000), batch=65_536)

    def _check_schedule(self) -> None:
        require(0 <= self.momentum < 1, "momentum must be in [0, 1)", self.momentum)
        rule = "use_nesterov must be false where momentum is 0"
        require(self.momentum > 0 or not self.use_nesterov, rule, self.use_nesterov)
        factor, milestones = self.milestone_factor, self.milestones
        require(0 < factor <= 1, "milestone_factor must be in (0, 1]", factor)
        is_rising = all(earlier < later for earlier, later in itertools.pairwise((0, *milestones)))
        require(is_rising, "milestones must rise and be at least 1", milestones)
        is_used = self.schedule == "step"
        rule = "milestones must be given with schedule 'step', and only with it"
        require(is_used == bool(milestones), rule, milestones)
