"""What the bar of a training shows."""

import pytest

from ucn.cli._progress import TrainingBar, _format_progress
from ucn.train.log import Progress


def make(**values: float) -> Progress:
    return Progress(**{"step": 500, "loss": 0.5, "pairs_per_second": 40.4, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"correspondences_per_second": 4e4}, "loss 0.500, 40 pairs/s, 40,000 points/s"),
        ({"seconds_per_step": 0.9}, "loss 0.500, 40 pairs/s, 0 points/s"),
        ({"seconds_per_step": 1.6}, "loss 0.500, 1.6 s/step, 40 pairs/s, 0 points/s"),
        (
            {"seconds_per_step": 12.34, "pairs_per_second": 0.4, "correspondences_per_second": 40},
            "loss 0.500, 12.3 s/step, 40 points/s",
        ),
        ({"memory_bytes": 2_340_000_000}, "loss 0.500, 40 pairs/s, 0 points/s, 2.3 GB"),
    ],
)
def test_slow_steps_are_shown_in_seconds(values: dict[str, float], shown: str) -> None:
    assert _format_progress(make(**values)) == shown


def test_a_line_every_500_steps_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingBar(0, 1000, is_quiet=False) as bar:
        bar(make(step=499))
        bar(make(step=500, seconds_per_step=3))
    assert capsys.readouterr().err == "step 500: loss 0.500, 3.0 s/step, 40 pairs/s, 0 points/s\n"
