"""The mark 'not faithful' follows from figures, group by group."""

import pytest

from ucn.evaluate.points.faithfulness import MARGINS, Margin, judge_systems, mark_name
from ucn.evaluate.points.scoring import Figure


def make_figure(method: str, group: str, share: float, limit: float = 10.0, use: bool = True) -> Figure:
    return Figure(method, use, group, "", 0.0, limit, share, 0.1, 0.2, 0.0, 1.0, 1.0, 1.0, 1.0, 1, 100)


def test_far_enough_ahead_everywhere() -> None:
    figures = [make_figure("sift", group, 0.5) for group in MARGINS]
    figures += [make_figure("dsp", group, 0.61) for group in MARGINS]
    (verdict,) = judge_systems(figures).values()
    assert verdict.is_faithful
    assert len(verdict.margins) == 5
    assert mark_name("dsp", {"dsp": verdict}) == "dsp"


@pytest.mark.parametrize(
    ("group", "asked"), [("Sintel clean", 10), ("Middlebury stereo", 10), ("KITTI flow", 5)]
)
def test_one_group_is_enough_to_fail(group: str, asked: float) -> None:
    shares = dict.fromkeys(MARGINS, 0.9)
    shares[group] = 0.5 + (asked - 0.1) / 100
    figures = [make_figure("sift", name, 0.5) for name in MARGINS]
    figures += [make_figure("sift-flow", name, share) for name, share in shares.items()]
    verdicts = judge_systems(figures)
    assert mark_name("sift-flow", verdicts) == "sift-flow (not faithful)"
    text = verdicts["sift-flow"].describe()
    assert f"{group}: +{asked - 0.1:.1f}, asked {asked:g}, and 50.0 were left: missed" in text
    assert text.count(": met") == 4
    shares[group] = 0.5 + (asked + 0.1) / 100
    figures = figures[:5] + [make_figure("sift-flow", name, share) for name, share in shares.items()]
    assert mark_name("sift-flow", judge_systems(figures)) == "sift-flow"


def test_nothing_can_be_ahead_of_nearly_all() -> None:
    figures = [make_figure("sift", "Sintel clean", 0.98), make_figure("dsp", "Sintel clean", 1.0)]
    verdict = judge_systems(figures)["dsp"]
    assert not verdict.is_faithful
    assert "not faithful by the rule" in verdict.describe()
    assert verdict.describe().endswith(
        "Sintel clean: +2.0, asked 10, but sift leaves only 2.0 (all of it gained)"
    )


@pytest.mark.parametrize(
    ("points", "asked", "room", "words"),
    [
        (7.4, 5.0, 37.9, "+7.4, asked 5: met"),
        (1.8, 5.0, 37.9, "+1.8, asked 5, and 37.9 were left: missed"),
        (-1.8, 5.0, 5.0, "-1.8, asked 5, and 5.0 were left: missed"),
        (1.0, 10.0, 1.3, "+1.0, asked 10, but sift leaves only 1.3 (77% of it gained)"),
        (1.4, 10.0, 1.4, "+1.4, asked 10, but sift leaves only 1.4 (all of it gained)"),
        (-0.5, 10.0, 1.4, "-0.5, asked 10, but sift leaves only 1.4 (none of it gained)"),
        (0.0, 10.0, 0.0, "+0.0, asked 10, but sift leaves nothing"),
    ],
)
def test_met_missed_or_impossible(points: float, asked: float, room: float, words: str) -> None:
    assert str(Margin("KITTI flow", points, asked, room)) == f"KITTI flow: {words}"


def test_share_of_the_room() -> None:
    assert Margin("KITTI flow", 9.0, 5.0, 36.0).gained == 0.25
    assert Margin("KITTI flow", -9.0, 5.0, 36.0).gained == -0.25
    full = Margin("KITTI flow", 0.0, 5.0, 0.0)
    assert full.gained == 0
    assert not full.is_enough


def test_what_is_compared() -> None:
    figures = [
        make_figure("sift", "KITTI flow", 0.5),
        make_figure("sift", "KITTI flow", 0.1, limit=5.0),
        make_figure("sift", "KITTI flow", 0.2, use=False),
        make_figure("dsp", "KITTI flow", 0.52),
        make_figure("dsp", "KITTI flow", 0.9, limit=5.0),
        make_figure("dsp", "KITTI flow", 0.9, use=False),
        make_figure("trunk+dsp", "KITTI flow", 0.1),
        make_figure("dsp", "motorcycle", 0.1),
        make_figure("sift", "motorcycle", 0.1),
    ]
    (verdict,) = judge_systems(figures).values()
    (margin,) = verdict.margins
    assert (margin.group, round(margin.points, 3), margin.asked) == ("KITTI flow", 2, 5)


def test_no_verdict_without_dense_sift_or_a_set_with_a_margin() -> None:
    assert judge_systems([]) == {}
    assert judge_systems([make_figure("dsp", "KITTI flow", 0.5)]) == {}
    assert judge_systems([make_figure("dsp", "birds", 0.5), make_figure("sift", "birds", 0.5)]) == {}
    assert mark_name("dsp", {}) == "dsp"
