"""Trains the paper's variants by their recipes, several seeds each, some runs at a time on one GPU.

UCN_DATA=DIR python benchmarks/paper_runs.py -o FOLDER --seeds 0 1 2 --at-once 3
UCN_DATA=DIR python benchmarks/paper_runs.py -o FOLDER --recipes geometric-rn geometric-hn geometric-hn-st

Each run is `ucn train paper/RECIPE --set seed=N`: batch, learning rates and steps are those of the recipe,
so variants are compared at equal steps. Writes RECIPE-SEED.safetensors and its log for each run, and
runs.json with the SHA-256, the metrics on held-out training pairs, the losses and the seconds (of a GPU that
runs share); a later call leaves out the runs that runs.json has. --archives also packs the weights of each
task and seed, as soon as they are complete.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import make_parser
from resumable import open_results, save_results

RECIPES = (
    "geometric-rn",
    "geometric-hn",
    "geometric-hn-st",
    "semantic-rn",
    "semantic-hn",
    "semantic-hn-st",
    "semantic-hn-st-branch",
)
_WAIT_S = 0.2
_STOP_S = 10.0  # for a stopped run to write its checkpoint


@dataclass
class Run:
    """A run in progress."""

    recipe: str
    seed: int
    process: subprocess.Popen[bytes]
    started: float


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the weights")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), metavar="NAME", help="of paper/")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=1, help="runs that share the GPU")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--threads", type=int, default=4, help="CPU threads of each run")
    parser.add_argument("--seconds", type=float, help="stop what is not done after this time")
    parser.add_argument("--archives", type=Path, help="folder for archives of the weights")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    path = given.output / "runs.json"
    results = open_results(path, {"changes": list(given.changes)})
    train_all(given, path, results)
    for run in results["runs"]:
        print(format_run(run))


def train_all(given: argparse.Namespace, path: Path, results: dict[str, Any]) -> None:
    """Starts the missing runs, all recipes of a seed before the next seed, and collects them."""
    begun = time.monotonic()
    done = {(run["recipe"], run["seed"]) for run in results["runs"]}
    todo = [(recipe, seed) for seed in given.seeds for recipe in given.recipes if (recipe, seed) not in done]
    active: list[Run] = []
    try:
        while todo or active:
            while todo and len(active) < given.at_once:
                active.append(start_run(given, *todo.pop(0)))
            time.sleep(_WAIT_S)
            for run in [run for run in active if run.process.poll() is not None]:
                active.remove(run)
                results["runs"].append(collect(given.output, run))
                save_results(path, results)
                print(format_run(results["runs"][-1]), flush=True)
                archive(given, path, results, run)
            if given.seconds is not None and time.monotonic() - begun > given.seconds:
                raise SystemExit(f"{len(todo) + len(active)} runs were not done after {given.seconds:g} s")
    finally:
        stop_runs(active)


def start_run(given: argparse.Namespace, recipe: str, seed: int) -> Run:
    name = given.output / f"{recipe}-{seed}"
    command = [sys.executable, "-m", "ucn", "train", f"paper/{recipe}", "-o", f"{name}.safetensors", "--json"]
    for change in (f"seed={seed}", *given.changes):
        command += ["--set", change]
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads)}
    with Path(f"{name}.out").open("wb") as out, Path(f"{name}.err").open("wb") as err:
        process = subprocess.Popen([*command, "--overwrite"], stdout=out, stderr=err, env=environment)
    return Run(recipe, seed, process, time.monotonic())


def collect(folder: Path, run: Run) -> dict[str, Any]:
    """What `ucn train` printed and logged."""
    name = folder / f"{run.recipe}-{run.seed}"
    found: dict[str, Any] = {"recipe": run.recipe, "seed": run.seed, "code": run.process.returncode}
    found["seconds"] = round(time.monotonic() - run.started, 1)
    if run.process.returncode:
        return found | {"error": Path(f"{name}.err").read_text(encoding="utf-8")[-2000:]}
    printed = json.loads(Path(f"{name}.out").read_text(encoding="utf-8"))
    found |= {key: printed[key] for key in ("sha256", "validation", "best_step", "ucn")}
    lines = Path(f"{name}.train/log.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    found["losses"] = [
        (event["step"], round(event["loss"], 5)) for event in events if event["event"] == "progress"
    ]
    memory = [event.get("memory_bytes") or 0 for event in events]
    return found | {"memory_bytes": max(memory), "versions": events[0]["versions"]}


def archive(given: argparse.Namespace, path: Path, results: dict[str, Any], last: Run) -> None:
    """Packs the weights of the last run's task and seed, if all of them are there."""
    if given.archives is None:
        return
    given.archives.mkdir(parents=True, exist_ok=True)
    task = last.recipe.split("-")[0]
    names = [recipe for recipe in given.recipes if recipe.split("-")[0] == task]
    trained = {run["recipe"] for run in results["runs"] if run["seed"] == last.seed and run["code"] == 0}
    (given.archives / path.name).write_bytes(path.read_bytes())
    if {*names} <= trained:
        with tarfile.open(given.archives / f"{task}-{last.seed}.tar.gz", "w:gz") as packed:
            for recipe in names:
                name = f"{recipe}-{last.seed}.safetensors"
                packed.add(given.output / name, arcname=name)


def stop_runs(active: list[Run]) -> None:
    """Stops runs as Ctrl-C would; each writes a checkpoint."""
    for run in active:
        run.process.send_signal(signal.SIGTERM)
    for run in active:
        try:
            run.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            run.process.kill()


def format_run(run: dict[str, Any]) -> str:
    name = f"{run['recipe']}, seed {run['seed']}: {run['seconds']:.0f} s"
    if run["code"]:
        return f"{name}, failed: {run['error'][-300:]}"
    shares = ", ".join(f"{key} {100 * value:.1f}" for key, value in run["validation"].items())
    return f"{name}, loss {run['losses'][-1][1]:.4f}; {shares}"


if __name__ == "__main__":
    main()
