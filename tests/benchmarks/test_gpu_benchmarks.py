"""Scripts that measure a GPU exit with a message where there is none."""

import pytest
import torch

from support.benchmark_scripts import load_script, run_script

SCRIPTS = ["knn_sweep", "transformer_sweep"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_machine_without_a_gpu_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="this script measures a CUDA device, and this machine has none"):
        run_script(load_script(name))
