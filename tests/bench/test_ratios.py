"""Ratios that must hold on any processor, however slow or busy: both ways take turns in one run."""

from functools import partial

import cv2
import pytest

from bench_cases import CPU
from ucn.bench.encode import run_plainly
from ucn.bench.samples import PAPER, draw_images, draw_unit, load_network
from ucn.bench.timing import Effort, time_in_turns
from ucn.knn import nearest
from ucn.nn.fast import FastEncoder

EFFORT = Effort(5, 0.0, 5)


@pytest.mark.slow
def test_fast_path_of_encoding_is_faster() -> None:
    network, image = load_network(PAPER, CPU), draw_images(1, (160, 224), 0, CPU)
    times = time_in_turns(
        {"eager": partial(run_plainly, network, image), "fast": partial(FastEncoder(network), image)}, EFFORT
    )
    assert times["eager"] > 1.2 * times["fast"], times


@pytest.mark.slow
def test_search_is_faster_than_brute_force() -> None:
    queries, database = (draw_unit(count, 128, seed=count, device=CPU) for count in (1000, 9600))
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    times = time_in_turns(
        {
            "OpenCV": partial(matcher.match, queries.numpy(), database.numpy()),
            "ucn": partial(nearest, queries, database),
        },
        EFFORT,
    )
    assert times["OpenCV"] > 1.2 * times["ucn"], times
