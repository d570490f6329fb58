"""What a run trains on: chosen by weight, the same from any step on, refused where files are wrong."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.data_cases import MemoryData
from support.numbered_data import NumberedData
from support.photo_cases import write_photos
from ucn.config import SourceConfig, TrainConfig
from ucn.data.checking import check_data
from ucn.data.pairs import PairData
from ucn.errors import DataError, ImageReadError
from ucn.train.sources import batches as sources
from ucn.train.sources import photographs
from ucn.train.sources.batches import DataSource, Mixture, PhotoSource, Source, open_sources
from ucn.types import PairBatch, PairSample

CPU = torch.device("cpu")


def make_config(*sources: SourceConfig, **changes: object) -> TrainConfig:
    base = {"name": "tiny", "steps": 1, "batch": 2, "synthetic": {"side": 64, "points": 50}}
    return TrainConfig.from_dict(base | {"sources": sources} | changes)


def make_source(name: str = "numbered", **changes: object) -> SourceConfig:
    base = {"name": name, "folder": "anywhere", "crop_hw": [32, 32], "points": 20, "workers": 0}
    return SourceConfig.from_dict(base | changes)


def offer(monkeypatch: pytest.MonkeyPatch, data: PairData) -> list[tuple[object, ...]]:
    """Makes `open_data` give this data set; returns the list of what it is asked for."""
    asked: list[tuple[object, ...]] = []

    def open_data(*arguments: object) -> PairData:
        asked.append(arguments)
        return data

    monkeypatch.setattr(sources, "open_data", open_data)
    return asked


def draw(mixture: Mixture, step: int) -> PairBatch:
    return mixture.sample_batch(step, torch.Generator().manual_seed(step))


class CountingSource(Source):
    """Remembers the numbers of the batches it is asked for."""

    def __init__(self, label: str, weight: float) -> None:
        super().__init__(label, weight)
        self.numbers: list[int] = []
        self.is_closed = False

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        self.numbers.append(number)
        empty = torch.zeros(1, 0, 2)
        image = torch.zeros(1, 3, 4, 4)
        return PairBatch(image, image, empty, empty, empty[..., 0].bool(), (f"{self.label} {number}",))

    def validation_batches(self) -> Iterator[PairBatch]:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True


def make_mixture(*weights: float, seed: int = 0) -> Mixture:
    return Mixture([CountingSource(f"s{i}", weight) for i, weight in enumerate(weights)], seed)


def test_steps_are_shared_by_weight() -> None:
    mixture = make_mixture(1.0, 3.0, 4.0)
    names = [draw(mixture, step).names[0].split()[0] for step in range(1, 2001)]
    shares = Counter(names)
    assert shares["s0"] / 2000 == pytest.approx(1 / 8, abs=0.03)
    assert shares["s1"] / 2000 == pytest.approx(3 / 8, abs=0.03)
    other = make_mixture(1.0, 3.0, 4.0, seed=1)
    assert [draw(other, step).names[0].split()[0] for step in range(1, 101)] != names[:100]


def test_each_source_counts_its_own_batches() -> None:
    mixture = make_mixture(1.0, 2.0)
    for step in range(1, 51):
        draw(mixture, step)
    for source in mixture.sources:
        assert isinstance(source, CountingSource)
        assert source.numbers == list(range(len(source.numbers)))
    assert sum(len(source.numbers) for source in mixture.sources if isinstance(source, CountingSource)) == 50


def test_a_run_goes_on_at_any_step() -> None:
    mixture = make_mixture(1.0, 2.0, 0.5)
    names = [draw(mixture, step).names for step in range(1, 31)]
    resumed = make_mixture(1.0, 2.0, 0.5)
    assert [draw(resumed, step).names for step in range(18, 31)] == names[17:]
    assert [draw(resumed, step).names for step in (5, 6, 30, 2)] == [names[4], names[5], names[29], names[1]]


def test_the_source_of_a_step_is_the_one_that_is_drawn_from() -> None:
    mixture = make_mixture(1.0, 2.0, 0.5)
    asked_before = [mixture.source_of(step).label for step in range(1, 31)]
    assert [draw(mixture, step).names[0].split()[0] for step in range(1, 31)] == asked_before
    assert [mixture.source_of(step).label for step in (30, 3)] == [asked_before[29], asked_before[2]]
    assert set(asked_before) == {"s0", "s1", "s2"}
    for source in mixture.sources:  # asking draws nothing
        assert isinstance(source, CountingSource) and source.numbers == list(range(len(source.numbers)))


def test_leaving_a_mixture_closes_its_sources() -> None:
    with make_mixture(1.0, 2.0) as mixture:
        pass
    assert all(source.is_closed for source in mixture.sources if isinstance(source, CountingSource))


def test_a_data_source_goes_on_at_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, NumberedData(5))
    source = make_source(photometric=1.0, mirror=0.5, rotation=30, scale=1.5)
    batches = []
    for workers in (0, 1):
        with open_sources(make_config(source), None, CPU) as mixture:
            batches.append([draw(mixture, step) for step in range(1, 6)])
            again = draw(mixture, 3)
        assert torch.equal(again.image0, batches[-1][2].image0)
        assert torch.equal(again.points1, batches[-1][2].points1)
        source = make_source(photometric=1.0, mirror=0.5, rotation=30, scale=1.5, workers=workers + 1)
    for alone, worked in zip(*batches, strict=True):
        assert alone.names == worked.names and torch.equal(alone.image1, worked.image1)


def test_settings_reach_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = offer(monkeypatch, NumberedData(40, parts=True))
    source = make_source(
        "cub",
        folder="some/where",
        split="train",
        options=["pairing=any"],
        batch=3,
        crop_hw=[40, 48],
        fit="resize",
        points=7,
        mirror_view=1.0,
    )
    with open_sources(make_config(source), None, CPU) as mixture:
        batch = draw(mixture, 1)
        (held_out, *_) = mixture.sources[0].validation_batches()
    assert asked == [("cub", "some/where", "train", {"pairing": "any"})]
    assert batch.image0.shape == (3, 3, 40, 48) and batch.points0.shape == (3, 7, 2)
    # One view mirrored: x0 = 47 - x1 in a width of 48. Validation leaves the views as they are.
    valid = batch.is_valid
    torch.testing.assert_close(batch.points0[valid][:, 0], 47 - batch.points1[valid][:, 0])
    assert torch.equal(held_out.points0, held_out.points1)


def test_held_out_pairs_are_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, NumberedData(20))
    with open_sources(make_config(make_source(), validation_share=0.2), None, CPU) as mixture:
        trained = {name for step in range(1, 31) for name in draw(mixture, step).names}
        held_out = {name for batch in mixture.sources[0].validation_batches() for name in batch.names}
    assert len(held_out) == 4
    assert trained.isdisjoint(held_out) and len(trained | held_out) == 20


def test_validation_is_bounded_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_VALIDATION_PAIRS", 5)
    offer(monkeypatch, NumberedData(40))
    with open_sources(make_config(make_source(), validation_share=0.5), None, CPU) as mixture:
        first, again = (list(mixture.sources[0].validation_batches()) for _ in range(2))
    assert [len(batch.names) for batch in first] == [2, 2, 1]
    for mine, theirs in zip(first, again, strict=True):
        assert torch.equal(mine.points0, theirs.points0) and torch.equal(mine.image0, theirs.image0)


def test_two_sources_have_seeds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, NumberedData(50))
    config = make_config(make_source(), make_source())
    with open_sources(config, None, CPU) as mixture:
        first, second = (source.sample_batch(0, torch.Generator()) for source in mixture.sources)
        assert [source.label for source in mixture.sources] == ["numbered", "numbered-2"]
    assert first.names != second.names


@pytest.mark.parametrize(
    ("count", "share", "held_out"),
    [(5, 0.05, [0]), (5, 0.5, [0, 2, 4]), (7, 0.34, [0, 3, 6]), (2, 0.1, [0])],
)
def test_photographs_are_held_out(tmp_path: Path, count: int, share: float, held_out: list[int]) -> None:
    paths = [tmp_path / f"{index:02}.png" for index in range(count)]
    training, validation = photographs.split_photographs(paths, share)
    assert validation == [paths[index] for index in held_out]
    assert training == [path for path in paths if path not in validation]


def test_a_lone_photograph_serves_training_and_validation(tmp_path: Path) -> None:
    assert photographs.split_photographs([tmp_path / "a.png"], 0.05) == (
        [tmp_path / "a.png"],
        [tmp_path / "a.png"],
    )


def test_photographs_alone_and_beside_a_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", [(90, 120), (100, 80)])
    with open_sources(make_config(), tmp_path / "photos", CPU) as mixture:
        (source,) = mixture.sources
    assert isinstance(source, PhotoSource) and source.label == "synthetic" and source.weight == 1
    assert source.held_out.names == ["00.png"]
    offer(monkeypatch, NumberedData(3))
    # A recipe's source of photographs keeps its weight and batch; the command line gives its folder.
    recipe = make_config(make_source("synthetic", folder="", weight=3, batch=5), make_source())
    with open_sources(recipe, tmp_path / "photos", CPU) as mixture:
        photographs, data = mixture.sources
        assert photographs.weight == 3 and len(photographs.sample_batch(0, torch.Generator()).names) == 5
    assert isinstance(data, DataSource)
    with open_sources(make_config(make_source()), tmp_path / "photos", CPU) as mixture:
        assert [source.label for source in mixture.sources] == ["numbered", "synthetic"]


def test_nothing_to_train_on() -> None:
    with pytest.raises(DataError, match=r"nothing to train on: .*\(images\).*\(sources\)"):
        open_sources(make_config(), None, CPU)
    with pytest.raises(DataError, match="the source cub has no folder: give data cub=DIR"):
        open_sources(make_config(make_source("cub", folder="")), None, CPU)
    with pytest.raises(DataError, match="no data set 'cubb'; did you mean 'cub'"):
        open_sources(make_config(make_source("cubb")), None, CPU)


def test_a_set_that_the_check_refuses_is_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, MemoryData(20, bad=["3.png", "9.csv", "15.csv", "17.csv"]))
    with pytest.raises(DataError) as caught:
        open_sources(make_config(make_source("own")), None, CPU)
    message = str(caught.value)
    assert message.startswith("own in anywhere has 4 problems: ")
    assert message.count("expected a number, got 'x'") == 3 and "; …. Correct them" in message
    assert "`ucn data check own DIR`" in message and message.endswith("use_skipping=True")


def test_faulty_pairs_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    data = MemoryData(20, bad=["3.png", "9.csv"])
    offer(monkeypatch, data)
    watched: list[tuple[str, int, int]] = []
    with open_sources(
        make_config(make_source("own")),
        None,
        CPU,
        use_skipping=True,
        watch=lambda *seen: watched.append(seen),
    ) as mixture:
        (skipped,) = mixture.skipped
        assert (skipped.label, skipped.pairs) == ("own", 3)  # pairs 2, 3 and 9 use these files
        assert [problem.path.name for problem in skipped.problems] == ["3.png", "9.csv"]
        data.reads.clear()
        for step in range(1, 40):
            draw(mixture, step)
        list(mixture.sources[0].validation_batches())
    assert not {2, 3, 9} & set(data.reads)
    assert watched[-1] == ("own", watched[-1][2], watched[-1][2])


def test_a_set_without_a_good_pair_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, MemoryData(2, bad=["1.png"]))
    with pytest.raises(DataError, match=r"own in anywhere has 1 problems: .*no pair is left to train on"):
        open_sources(make_config(make_source("own")), None, CPU, use_skipping=True)


def test_where_all_held_out_pairs_are_faulty_the_others_validate(monkeypatch: pytest.MonkeyPatch) -> None:
    _, validation = MemoryData(20).split_off(0.05)
    held_out = {validation.pair_name(index) for index in range(len(validation))}
    assert 0 < len(held_out) < 20
    offer(monkeypatch, MemoryData(20, bad=[f"{name.removeprefix('pair-')}.csv" for name in held_out]))
    with open_sources(make_config(make_source("own")), None, CPU, use_skipping=True) as mixture:
        validated = {name for batch in mixture.sources[0].validation_batches() for name in batch.names}
    assert len(validated) > 5 and validated.isdisjoint(held_out)


class LateData(NumberedData):
    """Pair 3 cannot be read, as the check would not find in a large set."""

    def read(self, index: int) -> PairSample:
        if index == 3:
            raise ImageReadError("3.png is 7 × 5, the others are 8 × 5")
        return super().read(index)


def test_pairs_that_cannot_be_read_are_replaced_while_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "check_data", lambda data, watch: check_data(data, watch, max_pairs=1))
    offer(monkeypatch, LateData(6))
    with open_sources(make_config(make_source()), None, CPU, use_skipping=True) as mixture:
        assert mixture.skipped_pairs() == ()
        names = {name for step in range(1, 10) for name in draw(mixture, step).names}
        (late,) = mixture.skipped_pairs()
    assert "pair-3" not in names and len(names) >= 4
    assert (late.label, late.name) == ("numbered", "pair-3")
    assert late.message == "3.png is 7 × 5, the others are 8 × 5"
    with (
        open_sources(make_config(make_source()), None, CPU) as mixture,
        pytest.raises(ImageReadError, match="7 × 5"),
    ):
        for step in range(1, 10):
            draw(mixture, step)


def test_validation_leaves_out_pairs_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "check_data", lambda data, watch: check_data(data, watch, max_pairs=0))
    offer(monkeypatch, LateData(4))  # pairs 2 and 3 are held out, or 3 alone
    config = make_config(make_source(), validation_share=0.5)
    with open_sources(config, None, CPU, use_skipping=True) as mixture:
        (batch,) = mixture.sources[0].validation_batches()
        assert batch.names == ("pair-2",) and len(mixture.skipped_pairs()) == 1
    config = make_config(make_source(), validation_share=0.1)
    with (
        open_sources(config, None, CPU, use_skipping=True) as mixture,
        pytest.raises(DataError, match=r"no held-out pair of numbered can be read, .*7 × 5"),
    ):
        list(mixture.sources[0].validation_batches())


def test_pairs_that_the_check_cannot_read_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, LateData(10))
    with open_sources(make_config(make_source()), None, CPU, use_skipping=True) as mixture:
        (skipped,) = mixture.skipped
        for step in range(1, 12):
            draw(mixture, step)
        assert skipped.pairs == 1 and mixture.skipped_pairs() == ()


def test_a_warning_where_validation_is_done_on_what_is_trained_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(monkeypatch, MemoryData(1))
    with open_sources(make_config(make_source("own")), None, CPU) as mixture:
        (warning,) = mixture.warnings
    assert warning.startswith("own: validation uses the training pairs") and "; add" in warning
    offer(monkeypatch, NumberedData(10))
    with open_sources(make_config(make_source()), None, CPU) as mixture:
        assert mixture.warnings == ()
    write_photos(tmp_path / "photos", [(90, 120)])
    with open_sources(make_config(), tmp_path / "photos", CPU) as mixture:
        (warning,) = mixture.warnings
    assert warning.startswith("synthetic: validation uses the training photographs")


def test_photographs_that_cannot_be_read_are_refused_or_skipped(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", [(90, 120)] * 5, bad=(1, 3))
    with pytest.raises(
        DataError, match=r"synthetic in .*photos has 2 problems: .*01\.png: .*03\.png: .*use_skipping=True"
    ):
        open_sources(make_config(), tmp_path / "photos", CPU)
    seen: list[tuple[str, int, int]] = []
    with open_sources(
        make_config(), tmp_path / "photos", CPU, use_skipping=True, watch=lambda *now: seen.append(now)
    ) as mixture:
        (skipped,) = mixture.skipped
        (source,) = mixture.sources
        assert len(draw(mixture, 1).names) == 2
    assert isinstance(source, PhotoSource) and source.held_out.names == ["00.png"]
    assert source.training.names == ["02.png", "04.png"]
    assert (skipped.label, skipped.pairs) == ("synthetic", 2)
    assert [problem.path.name for problem in skipped.problems] == ["01.png", "03.png"]
    assert seen == [("synthetic", done, 5) for done in range(1, 6)]


@pytest.mark.parametrize("bad", [(0,), (1, 2)])
def test_where_one_part_of_the_photographs_is_bad_the_other_serves_both(
    tmp_path: Path, bad: tuple[int, ...]
) -> None:
    write_photos(tmp_path / "photos", [(90, 120)] * 3, bad=bad)
    with open_sources(make_config(), tmp_path / "photos", CPU, use_skipping=True) as mixture:
        (source,) = mixture.sources
        assert len(mixture.warnings) == 1
    assert isinstance(source, PhotoSource)
    good = [f"0{index}.png" for index in range(3) if index not in bad]
    assert source.held_out.names == source.training.names == good


def test_photographs_that_are_all_bad_are_refused(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", [(90, 120)] * 2, bad=(0, 1))
    with pytest.raises(DataError, match=r"has 2 problems: .*Without them no photograph is left"):
        open_sources(make_config(), tmp_path / "photos", CPU, use_skipping=True)
