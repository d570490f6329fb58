"""A run on one batch learns it by heart."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.bird_cases import write_birds
from support.photo_cases import write_photos
from support.train_cases import CPU, ignore, make_config
from ucn.config import Calibration, LossConfig, SourceConfig
from ucn.data.io import read_image
from ucn.data.sets.semantic import keypoint_pairs
from ucn.train.loop import train
from ucn.train.overfit import repeat_first_batch
from ucn.train.sources.batches import open_sources
from ucn.train.validation import match_errors


@pytest.mark.slow
def test_one_batch_is_learnt_by_heart(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", [(90, 120), (100, 80)], grain=8)
    config = make_config(
        steps=25,
        head_learning_rate=3e-3,
        average_decay=0.9,
        loss={"radius": 4, "temperature": 0.05},
        synthetic={"side": 64, "points": 100, "max_scale": 1.2, "upright_share": 1.0, "photometric": 0.5},
    )
    opened = open_sources(config, tmp_path / "photos", CPU)
    with repeat_first_batch(opened, config, CPU) as mixture:
        (source,) = mixture.sources
        (batch,) = source.validation_batches()
        for step in (1, 2, 9):
            assert mixture.sample_batch(step, torch.Generator()) is batch
        trained = train(config, mixture, CPU, ignore, ignore)
    errors = torch.cat([match_errors(trained.model, pair) for pair in batch])
    assert len(errors) == 200
    assert errors.max() <= 4  # PCK within 4 pixels of 100 %
    assert trained.calibration != Calibration()


def test_its_loss_is_that_of_the_source_it_comes_from(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", [(90, 120), (100, 80)])
    for loss in (None, LossConfig(radius=3.0)):
        config = make_config(sources=[SourceConfig("synthetic", loss=loss)])
        opened = open_sources(config, tmp_path / "photos", CPU)
        with repeat_first_batch(opened, config, CPU) as mixture:
            assert mixture.source_of(1).loss == mixture.source_of(9).loss == loss


def test_it_is_the_first_batch_of_the_run(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", [(90, 120), (100, 80)])
    config = make_config(seed=3)
    with open_sources(config, tmp_path / "photos", CPU) as mixture:
        batches = [
            next(iter(repeat_first_batch(mixture, each, CPU).sources[0].validation_batches()))
            for each in (config, config, make_config(seed=4))
        ]
    assert torch.equal(batches[0].image0, batches[1].image0)
    assert not torch.equal(batches[0].image0, batches[2].image0)


def test_no_more_is_read_than_a_batch_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_birds(tmp_path / "birds", (48, 56))
    read: list[Path] = []

    def note(path: Path) -> Tensor:
        read.append(path)
        return read_image(path)

    monkeypatch.setattr(keypoint_pairs, "read_image", note)
    source = SourceConfig(
        "cub", str(folder), "train", on_device=True, fit="resize", crop_hw=(48, 48), batch=1
    )
    config = make_config(sources=[source])
    with open_sources(config, None, CPU) as mixture:
        count = len({*read})
        mixture.sample_batch(1, torch.Generator().manual_seed(0))
    read.clear()
    with open_sources(config, None, CPU, is_small=True) as mixture:
        batch = mixture.sample_batch(1, torch.Generator().manual_seed(0))
    assert batch.is_valid.any() and 2 <= len({*read}) <= 3 < count
