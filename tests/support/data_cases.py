"""A data set in memory, for tests of code that works on any data set."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ucn.data.pairs import DataFile, PairData, check_index
from ucn.errors import DataError
from ucn.types import PairSample


class MemoryData(PairData):
    """`count` pairs (i, i + 1) of equal images; `bad` names files that cannot be read."""

    def __init__(self, count: int, bad: Sequence[str] = (), points: int = 5, shift: float = 1.0) -> None:
        super().__init__(Path("memory"))
        self.count, self.bad, self.points, self.shift = count, set(bad), points, shift
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.count

    def pair_name(self, index: int) -> str:
        return f"pair-{index}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        return self.root / f"{index}.png", self.root / f"{index + 1}.png"

    def pair_files(self, index: int) -> tuple[Path, ...]:
        return (*self.image_paths(index), self.root / f"{index}.csv")

    def files(self) -> Sequence[DataFile]:
        names = sorted({path for index in range(self.count) for path in self.pair_files(index)})
        return [
            DataFile(path, "image" if path.suffix == ".png" else "points", self._reader(path))
            for path in names
        ]

    def read(self, index: int) -> PairSample:
        check_index(index, self.count)
        self.reads.append(index)
        for path in self.pair_files(index):
            self._reader(path)()
        image = torch.zeros(3, 8, 10)
        points = torch.arange(2.0 * self.points).view(-1, 2).remainder(6)
        return PairSample(image, image, points, points + self.shift, self.pair_name(index))

    def _reader(self, path: Path) -> Callable[[], None]:
        def check() -> None:
            if path.name in self.bad:
                raise DataError(f"{path}:7: expected a number, got 'x'")

        return check
