"""Choosing a device by name, and the errors for unknown and missing ones."""

import pytest
import torch

from ucn.runtime.device import choose_device


def test_named_devices() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="must be cpu, cuda, cuda:N or mps, got 'gpu'"):
        choose_device("gpu")
    with pytest.raises(ValueError, match="must be cpu, cuda, cuda:N or mps, got 'meta'"):
        choose_device("meta")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="finds no CUDA"):
            choose_device("cuda")


def test_without_a_name_the_best_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_cuda, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=has_cuda: answer)
        assert choose_device(None).type == expected
