"""The mark 'not faithful' follows from scores, group by group."""

import pytest

from ucn.evaluate.points.scoring import (
    MARGINS,
    Margin,
    Score,
    describe_margins,
    is_faithful,
    measure_margins,
)


def make_score(method: str, group: str, share: float, limit: float = 10.0, use: bool = True) -> Score:
    return Score(method, use, group, "", 0.0, limit, share, 0.1, 0.2, 0.0, 1.0, 1.0, 1.0, 1.0, 1, 100)


def test_far_enough_ahead_everywhere() -> None:
    scores = [make_score("sift", group, 0.5) for group in MARGINS]
    scores += [make_score("dsp", group, 0.61) for group in MARGINS]
    (checked,) = measure_margins(scores).values()
    assert is_faithful(checked)
    assert len(checked) == 5


@pytest.mark.parametrize(
    ("group", "required"), [("Sintel clean", 10), ("Middlebury stereo", 10), ("KITTI flow", 5)]
)
def test_one_group_is_enough_to_fail(group: str, required: float) -> None:
    shares = dict.fromkeys(MARGINS, 0.9)
    shares[group] = 0.5 + (required - 0.1) / 100
    scores = [make_score("sift", name, 0.5) for name in MARGINS]
    scores += [make_score("sift-flow", name, share) for name, share in shares.items()]
    found = measure_margins(scores)
    assert not is_faithful(found["sift-flow"])
    text = describe_margins("sift-flow", found["sift-flow"])
    assert f"{group}: +{required - 0.1:.1f} of 50.0 possible, required {required:g}: not reached" in text
    assert text.count(": reached") == 4
    shares[group] = 0.5 + (required + 0.1) / 100
    scores = scores[:5] + [make_score("sift-flow", name, share) for name, share in shares.items()]
    assert is_faithful(measure_margins(scores)["sift-flow"])


def test_nothing_can_be_ahead_of_nearly_all() -> None:
    scores = [make_score("sift", "Sintel clean", 0.98), make_score("dsp", "Sintel clean", 1.0)]
    checked = measure_margins(scores)["dsp"]
    assert not is_faithful(checked)
    assert "not faithful by the rule" in describe_margins("dsp", checked)
    assert describe_margins("dsp", checked).endswith(
        "Sintel clean: +2.0 of 2.0 possible, required 10: impossible"
    )


@pytest.mark.parametrize(
    ("points", "required", "headroom", "text"),
    [
        (7.4, 5.0, 37.9, "+7.4 of 37.9 possible, required 5: reached"),
        (-1.8, 5.0, 5.0, "-1.8 of 5.0 possible, required 5: not reached"),
        (1.0, 10.0, 1.3, "+1.0 of 1.3 possible, required 10: impossible"),
        (0.0, 10.0, 0.0, "+0.0 of 0.0 possible, required 10: impossible"),
    ],
)
def test_reached_or_not_or_impossible(points: float, required: float, headroom: float, text: str) -> None:
    assert str(Margin("KITTI flow", points, required, headroom)) == f"KITTI flow: {text}"


def test_what_is_compared() -> None:
    scores = [
        make_score("sift", "KITTI flow", 0.5),
        make_score("sift", "KITTI flow", 0.1, limit=5.0),
        make_score("sift", "KITTI flow", 0.2, use=False),
        make_score("dsp", "KITTI flow", 0.52),
        make_score("dsp", "KITTI flow", 0.9, limit=5.0),
        make_score("dsp", "KITTI flow", 0.9, use=False),
        make_score("trunk+dsp", "KITTI flow", 0.1),
        make_score("dsp", "motorcycle", 0.1),
        make_score("sift", "motorcycle", 0.1),
    ]
    (checked,) = measure_margins(scores).values()
    (margin,) = checked
    assert (margin.group, round(margin.points, 3), margin.required) == ("KITTI flow", 2, 5)


def test_no_margin_without_dense_sift_or_a_set_with_margins() -> None:
    assert measure_margins([]) == {}
    assert measure_margins([make_score("dsp", "KITTI flow", 0.5)]) == {}
    assert measure_margins([make_score("dsp", "birds", 0.5), make_score("sift", "birds", 0.5)]) == {}
