"""One table of everything that can be measured, and one way to run it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.evaluation_cases import write_sequence
from support.trunk_cases import make_arrays
from ucn.errors import ConfigError, DataError
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.driving.benchmarks import DRIVING_BENCHMARKS
from ucn.evaluate.evaluations import EVALUATIONS, Request, find_evaluation
from ucn.evaluate.motion.predictions import MOTION_BENCHMARKS
from ucn.evaluate.points.benchmarks import BENCHMARKS
from ucn.features import lightglue
from ucn.features.method import MethodFiles

# What the project set out to measure by points; other kinds are beside them.
WANTED = (
    *("kitti-flow", "sintel", "middlebury", "hpatches", "pascal-berkeley", "flowweb", "cub", "pf-willow"),
    *("pf-pascal", "spair", "faces", "own", "mini"),
)


def test_names() -> None:
    assert set(WANTED) <= set(BENCHMARKS)
    others = {"hpatches-matches", "pair-score", "transfer", "objects", "reconstruction"}
    assert set(EVALUATIONS) == {*BENCHMARKS, *DRIVING_BENCHMARKS, *MOTION_BENCHMARKS, *others}
    assert all(evaluation.name == name for name, evaluation in EVALUATIONS.items())
    with pytest.raises(ConfigError, match=r"no benchmark 'pair-scor'; did you mean 'pair-score'\?"):
        find_evaluation("pair-scor")
    with pytest.raises(ConfigError, match=", ".join(EVALUATIONS)):
        find_evaluation("zzz")


@pytest.mark.slow
def test_the_table_imports_no_evaluation() -> None:
    code = "import sys, ucn.evaluate.evaluations; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    others = ("driving", "label_transfer", "matches", "motion", "objects", "pair_score", "reconstruction")
    assert not {f"ucn.evaluate.{package}" for package in others} & {*done.stdout.split()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hpatches", "hpatches-matches"])
def test_a_request_is_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)
    for sequence in ("i_one", "v_two"):
        write_sequence(tmp_path / "data", sequence)
    skipped: dict[str, str] = {}
    seen: list[tuple[int, int]] = []
    request = Request(
        tmp_path / "data",
        RunSettings(tmp_path / "cache", limit=2),
        methods=["daisy", "xfeat"],
        sheet_pairs=1 if find_evaluation(name).images else 0,
        on_skip=skipped.__setitem__,
        progress=lambda done, total: seen.append((done, total)),
    )
    report = find_evaluation(name).run(request)
    assert report.name == name
    assert list(skipped) == ["xfeat"]
    assert seen[-1] == (2, 2)
    assert [plot.suffix for plot in report.plots] == list(find_evaluation(name).plots)
    assert tuple(report.images) == find_evaluation(name).images


def test_methods_of_lightglue_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightglue, "explain_unavailable", lambda _name: "not here")
    skipped: dict[str, str] = {}
    request = Request(
        tmp_path, RunSettings(tmp_path), methods=["disk-lightglue"], on_skip=skipped.__setitem__
    )
    with pytest.raises(DataError, match="not here"):
        find_evaluation("hpatches-matches").run(request)
    assert skipped == {"disk-lightglue": "not here"}
    with pytest.raises(ConfigError, match="did you mean 'disk-lightglue'"):
        find_evaluation("hpatches-matches").run(replace(request, methods=["disk-lightglu"]))
    with pytest.raises(ConfigError, match="no method 'disk-lightglue'"):
        find_evaluation("hpatches").run(request)


@pytest.mark.slow
def test_what_the_data_rules_out_is_said(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    np.savez(tmp_path / "trunk.npz", **make_arrays())  # type: ignore[arg-type]
    skipped: dict[str, str] = {}
    request = Request(
        tmp_path / "data",
        RunSettings(tmp_path / "cache", limit=1),
        methods=["daisy", "nn-transfer"],
        files=MethodFiles(trunk=tmp_path / "trunk.npz"),
        on_skip=skipped.__setitem__,
    )
    find_evaluation("hpatches").run(request)
    assert skipped == {"nn-transfer": "hpatches has no named parts that could be copied"}
