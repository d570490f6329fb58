"""Settings of training: the loss, the teacher, the sources of pairs, and the run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal, Self

from ucn.config.base import (
    Config,
    require,
    require_above_zero,
    require_at_least,
    require_at_most,
    require_within,
)
from ucn.config.model import ModelConfig
from ucn.config.synthetic import SyntheticConfig

# Keys with an earlier name in the headers of shipped weights, whose hashes a rewrite would change.
_RENAMED_KEYS = {
    "head_rate": "head_learning_rate",
    "trunk_rate": "trunk_learning_rate",
    "truth_weight": "ground_truth_weight",
    "relight": "illumination",
}

Levels = Literal["all", "fine"]
"""Levels of descriptors: all, or without the semantic level."""

CLASSES = "classes"
"""The name of sources that are images by class."""

_LOSS_RANGES: dict[str, tuple[float, float]] = {
    "negatives": (1, 1000),
    "random_negatives": (0, 1000),
    "positive_share": (0, 1),
}
_TEACHER_WEIGHTS = ("weight", "descriptor_weight", "ground_truth_weight")
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
    """InfoNCE over all cells outside the radius, the paper's Eq. 1, the triplet loss, or Eq. 1 with one
    example per image pair."""
    radius: float = 16.0
    """Pixels around the ground truth within which a candidate is never a negative, at least 0."""
    temperature: float = 0.07
    """Temperature of InfoNCE, above 0."""
    margin: float = 1.0
    """Margin of the contrastive and triplet losses, above 0."""
    mining: Literal["random", "nearest", "hardest"] = "hardest"
    """Mining method of the contrastive and triplet losses, as in `mine_negatives`."""
    direction: Literal["0to1", "1to0", "both"] = "both"
    """Direction of the search for negatives: view 1, view 0 or both hold the candidates."""
    negatives: int = 1
    """Mined negatives per point and direction of the contrastive and triplet losses, 1..1000."""
    random_negatives: int = 0
    """Additional random negatives per point and direction, for sparse points, 0..1000."""
    positive_share: float = 0.5
    """Share of positive examples of the kind one_contrastive, in [0, 1]."""
    levels: Levels = "all"
    """Whole descriptors, or without the semantic level (`model.semantic_dim`): the same scene is matched by
    fine descriptors alone, parts of different objects by both levels."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require_at_least(self, radius=0)
        require_above_zero(self, "temperature", "margin")
        require_within(self, _LOSS_RANGES)


@dataclass(frozen=True)
class TeacherConfig(Config):
    """A trained network to distil from, in addition to the ground truth or instead of it."""

    weights: str
    """The name of shipped weights or a .safetensors file, with the same stride and offset as the network."""
    weight: float = 1.0
    """Weight of the distillation loss on similarities, in [0, 1000]."""
    temperature: float = 0.05
    """Temperature of the similarities, in (0, 10]; a lower one gives the best cells more weight."""
    sha256: str = ""
    """SHA-256 of the file. Filled in when a recipe is read; if given, another file is refused."""
    descriptor_weight: float = 0.0
    """Weight of the distillation loss on descriptors, in [0, 1000]."""
    ground_truth_weight: float = 1.0
    """Weight of the loss against the ground truth, in [0, 1000]; 0 trains on the teacher alone."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(self.weights.strip() != "", "weights must not be empty", self.weights)
        require(0 < self.temperature <= 10, "temperature must be in (0, 10]", self.temperature)
        require_within(self, dict.fromkeys(_TEACHER_WEIGHTS, (0, 1000)))
        weights = tuple(getattr(self, name) for name in _TEACHER_WEIGHTS)
        require(any(weights), "weight, descriptor_weight or ground_truth_weight must be above 0", weights)


@dataclass(frozen=True)
class SourceConfig(Config):
    """A source of training pairs: photographs, images by class, or a data set.

    The name ``synthetic`` stands for a folder of photographs, from which synthetic pairs are made with the
    settings of `TrainConfig.synthetic`; of the other keys it uses only `folder`, `weight`, `batch` and
    `loss`. With `use_warps` the images of a data set are used as such photographs.

    The name ``classes`` stands for a folder with a folder of images per class, without points: the network
    `teacher` matches them. It uses `folder`, `weight`, `batch`, `crop_hw` (a square), `points`, `mirror`,
    `rotation`, `scale`, `shift`, `photometric`, `teacher` and `loss`, and the option ``exclude=A,B``, which
    names classes to leave out.
    """

    name: str
    """'synthetic', 'classes', or a data set's name as ``ucn data list`` gives it."""
    folder: str = ""
    """Its folder; empty where it is given when the recipe is read (``data`` of `read_recipe`)."""
    split: str | None = None
    """Split of the data set; None: its first."""
    options: tuple[str, ...] = ()
    """Options of its reader, each ``key=value``."""
    weight: float = 1.0
    """Share of the steps, relative to the weights of the other sources; above 0, up to 1,000,000."""
    batch: int | None = None
    """Pairs per step, 1..65536; None: the run's."""
    crop_hw: tuple[int, int] = (256, 256)
    """(height, width) of both images of a batch, in pixels, each 32..8192."""
    fit: Literal["crop", "resize"] = "crop"
    """Crop images to that size, or resize them to fit into it and pad them."""
    points: int = 1000
    """Correspondences per pair, 1..1,000,000: sampled where there are more, padded where there are fewer."""
    min_points: int = 1
    """Pairs with fewer correspondences after cropping are replaced by others, 1..1,000,000."""
    mirror: float = 0.0
    """Share of pairs, in [0, 1], of which both views are mirrored."""
    mirror_view: float = 0.0
    """Share of pairs, in [0, 1], of which one view is mirrored; for data sets of named parts."""
    rotation: float = 0.0
    """Largest rotation of each view in degrees, in [0, 180]."""
    scale: float = 1.0
    """Largest factor by which each view is scaled up or down, in [1, 4]."""
    photometric: float = 0.0
    """Strength of photometric augmentation, in [0, 3]; 0 switches it off."""
    workers: int = 2
    """Worker processes that read pairs, 0..64; 0 reads in the main process."""
    on_device: bool = False
    """Hold all images on the device and make pairs there, without workers; for data sets of parts."""
    shift: float = 0.0
    """Largest translation of each view, as a share of its sides, in [0, 0.5]; needs `on_device`, except for
    `classes`."""
    across: float = 0.0
    """Share of pairs, in [0, 1], of images of two classes instead of one; needs `on_device`."""
    teacher: str = ""
    """Weights that match the images of `classes`: a name or a .safetensors file; empty for other sources."""
    teacher_sha256: str = ""
    """SHA-256 of the file of `teacher`; filled in when the recipe is read."""
    use_warps: bool = False
    """Make synthetic pairs from the set's single images, as from photographs, instead of its own pairs."""
    loss: LossConfig | None = None
    """The loss of this source's steps; None: the run's."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(self.name.strip() != "", "name must not be empty", self.name)
        for option in self.options:
            require("=" in option, "options must each be key=value", option)
        require_above_zero(self, "weight")
        require_at_least(self, batch=1, points=1, min_points=1)
        sides = self.crop_hw
        require(all(32 <= side <= 8192 for side in sides), "crop_hw must each be 32..8192", sides)
        require_within(self, _SOURCE_RANGES)
        rule = "use_warps must be false where on_device is true"
        require(not (self.use_warps and self.on_device), rule, self.use_warps)
        is_classes = self.name == CLASSES
        can_shift = self.on_device or is_classes
        require(can_shift or self.shift == 0, "shift must be 0 unless on_device is true", self.shift)
        require(self.on_device or self.across == 0, "across must be 0 unless on_device is true", self.across)
        rule = f"teacher must name weights where name is {CLASSES}, and be empty elsewhere"
        require((self.teacher != "") == is_classes, rule, self.teacher)
        is_square = self.crop_hw[0] == self.crop_hw[1]
        require(is_square or not is_classes, f"crop_hw must be a square where name is {CLASSES}", sides)
        require_at_most(self, weight=1e6, batch=65_536, points=1_000_000, min_points=1_000_000)


@dataclass(frozen=True)
class TrainConfig(Config):
    """One training run; a recipe file holds exactly these keys."""

    name: str
    """Name of the run and of its weights."""
    steps: int
    """Optimiser steps."""
    seed: int = 0
    """Seed of initial weights and of data, at least 0."""
    batch: int = 16
    """Pairs per step, over all processes of a run together."""
    init: str = "random"
    """Initial weights: 'random'; a file of BVLC GoogLeNet for the trunk (.npz, .onnx); or for the whole
    network the name of shipped weights or a .safetensors file, to fine-tune."""
    init_part: Literal["whole", "trunk"] = "whole"
    """Which part of the weights of `init` is loaded: the whole network, which then must be that of `model`,
    or its trunk alone, with the rest random."""
    max_side: int = 1024
    """Default longest side, in pixels, to which these weights resize larger images for matching, at least 32:
    about the size of the training images, where scale matters."""
    optimiser: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or stochastic gradient descent with momentum."""
    head_learning_rate: float = 1e-3
    """Peak learning rate of all parameters outside the trunk, at least 0."""
    trunk_learning_rate: float = 1e-4
    """Peak learning rate of the trunk, at least 0; 0 freezes the trunk."""
    semantic_learning_rate: float = 1e-5
    """Peak learning rate of the trunk of the semantic level, at least 0; 0 freezes it."""
    weight_decay: float = 1e-4
    """The optimiser's weight decay, at least 0."""
    use_vector_decay: bool = True
    """Whether weight decay also applies to biases and the parameters of norms, not only to kernels."""
    momentum: float = 0.9
    """Momentum of SGD, in [0, 1)."""
    use_nesterov: bool = False
    """Whether SGD uses Nesterov momentum; needs a momentum above 0."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Learning rate schedule after the warm-up: cosine to 0, a step at each milestone, or constant."""
    warmup_steps: int = 200
    """Steps of linear warm-up, before the schedule begins."""
    milestones: tuple[int, ...] = ()
    """Increasing steps after which the schedule 'step' multiplies learning rates by `milestone_factor`."""
    milestone_factor: float = 0.1
    """Factor of the learning rates at each milestone of the schedule 'step', in (0, 1]."""
    clip_norm: float = 1.0
    """Gradients with a larger norm are scaled down to it; above 0."""
    average_decay: float = 0.999
    """Decay per step of the exponential moving average (EMA) of the weights, which is saved; in [0, 1)."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Of the forward pass on a GPU; float32 also switches TF32 off. A CPU always uses float32."""
    coarse_gain: float = 1.0
    """Factor of the coarse levels (`model.levels`, or the coarse cells of the lite trunk) in the saved
    network, in (0, 8]: training crops show less of a scene than the images that are matched."""
    freeze_norms: bool = False
    """Keep the batch-norm statistics of `init`: for sources too different to share statistics, and for
    batches too small for good ones."""
    use_compile: bool = False
    """Compile the network with torch.compile on a GPU; it takes about a minute and needs a C compiler."""
    validate_every: int = 1000
    """Steps between validations."""
    checkpoint_every: int = 500
    """Steps between checkpoints; one is also written after each validation."""
    validation_share: float = 0.05
    """Share of each source's images held out for validation, in (0, 0.5]; at least one image."""
    model: ModelConfig = ModelConfig()  # noqa: RUF009 (frozen: one for all is safe)
    """The network."""
    loss: LossConfig = LossConfig()
    """The loss."""
    teacher: TeacherConfig | None = None
    """A network to distil from; None trains on the ground truth alone."""
    synthetic: SyntheticConfig = SyntheticConfig()  # noqa: RUF009
    """The synthetic pairs made from photographs."""
    sources: tuple[SourceConfig, ...] = ()
    """Sources of pairs; with none, the folder of photographs that is given with the run."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(self.name.strip() != "", "name must not be empty", self.name)
        require(0 <= self.seed < 2**63, "seed must be in [0, 2^63)", self.seed)
        require(32 <= self.max_side <= 1_000_000, "max_side must be 32..1000000", self.max_side)
        require_at_least(self, steps=1, batch=1, validate_every=1, checkpoint_every=1, warmup_steps=0)
        rates = ("head_learning_rate", "trunk_learning_rate", "semantic_learning_rate", "weight_decay")
        require_at_least(self, **dict.fromkeys(rates, 0))
        require_above_zero(self, "clip_norm")
        require(0 <= self.average_decay < 1, "average_decay must be in [0, 1)", self.average_decay)
        require(0 < self.coarse_gain <= 8, "coarse_gain must be in (0, 8]", self.coarse_gain)
        has_coarse = self.model.levels > 1 or self.model.trunk == "lite"
        rule = "coarse_gain must be 1 where model.levels is 1 and model.trunk is not lite"
        require(has_coarse or self.coarse_gain == 1, rule, self.coarse_gain)
        self._check_schedule()
        share = self.validation_share
        require(0 < share <= 0.5, "validation_share must be in (0, 0.5]", share)
        names = ("steps", "warmup_steps", "validate_every", "checkpoint_every")
        require_at_most(self, **dict.fromkeys(names, 1_000_000_000), batch=65_536)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Reads the training record in the header of weights, which may have earlier names of keys.

        Raises:
            ConfigError: a key is unknown, or a value is of the wrong type or out of range.
        """
        config = {key: value for key, value in record.items() if key != "best_step"}
        return cls.from_dict(_rename_keys(config))

    def _check_schedule(self) -> None:
        require(0 <= self.momentum < 1, "momentum must be in [0, 1)", self.momentum)
        rule = "use_nesterov must be false where momentum is 0"
        require(self.momentum > 0 or not self.use_nesterov, rule, self.use_nesterov)
        factor, milestones = self.milestone_factor, self.milestones
        require(0 < factor <= 1, "milestone_factor must be in (0, 1]", factor)
        is_increasing = all(earlier < later for earlier, later in itertools.pairwise((0, *milestones)))
        require(is_increasing, "milestones must increase and be at least 1", milestones)
        is_used = self.schedule == "step"
        rule = "milestones must be given with schedule 'step', and only with it"
        require(is_used == bool(milestones), rule, milestones)


def _rename_keys(record: Any) -> Any:
    if isinstance(record, dict):
        return {_RENAMED_KEYS.get(key, key): _rename_keys(value) for key, value in record.items()}
    return record
