"""Arrays in .npz and .h5 files."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from ucn.errors import DataError
from ucn.files.arrays import pack_h5, pack_npz, read_h5, read_npz


class TestArchives:
    def test_npz_round_trip(self, tmp_path: Path) -> None:
        (tmp_path / "a.npz").write_bytes(pack_npz({"x": np.arange(3), "y": np.float32(0.5)}))
        arrays = read_npz(tmp_path / "a.npz")
        assert arrays["x"].tolist() == [0, 1, 2]
        assert arrays["y"] == 0.5

    def test_h5_reads_the_first_group_with_the_array(self, tmp_path: Path) -> None:
        content = pack_h5("pair", {"points0": np.ones((2, 2)), "scores": np.zeros(2)}, {"pair_score": 0.25})
        (tmp_path / "a.h5").write_bytes(content)
        values = read_h5(tmp_path / "a.h5", ["points0", "absent"], "matches")
        assert set(values) == {"points0", "pair_score"}
        with pytest.raises(DataError, match=r"a\.h5 does not hold keypoints: no group with keypoints"):
            read_h5(tmp_path / "a.h5", ["keypoints"], "keypoints")

    @pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"text"])
    def test_damaged(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot read .*a: damaged or no \.h5 .*; write it again"):
            read_h5(tmp_path / "a", ["x"], "matches")
        if content != b"PK\x05\x06":
            with pytest.raises(DataError, match=r"cannot read .*a as \.npz: .*; write it again"):
                read_npz(tmp_path / "a")

    def test_what_unpacks_to_too_much_is_refused_unread(self, tmp_path: Path) -> None:
        zeros = np.zeros(100_000)
        (tmp_path / "a.npz").write_bytes(pack_npz({"x": zeros}))
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("pair/x", data=zeros, compression="gzip")
        for name in ("a.npz", "a.h5"):
            assert (tmp_path / name).stat().st_size < 20_000
        message = r"a\.npz has 800,128 bytes, the limit for arrays is 20,000; check that it is the right file"
        with pytest.raises(DataError, match=message):
            read_npz(tmp_path / "a.npz", 20_000)
        with pytest.raises(DataError, match=r"a\.h5: .*x has 800,000 bytes, the limit for arrays is 20,000"):
            read_h5(tmp_path / "a.h5", ["x"], "arrays", 20_000)
        with pytest.raises(DataError, match=r"the limit for \.npz is 100"):
            read_npz(tmp_path / "a.npz", 100)
        with pytest.raises(DataError, match=r"the limit for \.h5 is 100"):
            read_h5(tmp_path / "a.h5", ["x"], "arrays", 100)
        assert read_npz(tmp_path / "a.npz", 10**6)["x"].shape == zeros.shape

    def test_single_array_is_no_archive(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros(3))
        with pytest.raises(DataError, match=r"a\.npy as \.npz: it holds a single array; write it again"):
            read_npz(tmp_path / "a.npy")
