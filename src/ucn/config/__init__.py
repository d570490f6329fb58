"""Every setting, as frozen dataclasses that refuse unknown keys and values out of range.

Order of precedence: the defaults here, then a recipe file, then the command line. Modules take plain
arguments; only builders (`build_model`, `Matcher`, the training loop) take these classes.
"""

from ucn.config.base import Config
from ucn.config.matching import MIN_VISIBLE_SCORE, Calibration, MatchConfig
from ucn.config.model import MIN_SIDE, ModelConfig
from ucn.config.synthetic import SyntheticConfig
from ucn.config.training import LossConfig, SourceConfig, TeacherConfig, TrainConfig

__all__ = [
    "MIN_SIDE",
    "MIN_VISIBLE_SCORE",
    "Calibration",
    "Config",
    "LossConfig",
    "MatchConfig",
    "ModelConfig",
    "SourceConfig",
    "SyntheticConfig",
    "TeacherConfig",
    "TrainConfig",
]
