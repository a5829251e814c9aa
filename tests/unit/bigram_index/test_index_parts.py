"""The Parquet parts of an index: cut at fixed rows, written by threads, in order."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from argap.bigram_index import parquet_parts
from argap.bigram_index.counting.sorted_runs import Rows
from argap.bigram_index.parquet_parts import write_parts


def test_parts_have_all_rows_in_order_and_equal_bytes_however_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """47 rows in parts of 8, so that two writers are busy and the last part is shorter."""
    monkeypatch.setattr(parquet_parts, "GROUP_ROWS", 4)
    monkeypatch.setattr(parquet_parts, "PART_ROWS", 8)
    monkeypatch.setattr(parquet_parts, "WRITERS", 2)
    second = np.arange(47, dtype=np.uint16)
    count = np.arange(1, 48, dtype=np.uint32)
    whole = [Rows(3, np.array([0, 20, 20, 47]), second, count)]
    split = [
        Rows(3, np.array([0, 20]), second[:20], count[:20]),
        Rows(5, np.array([0, 27]), second[20:], count[20:]),
    ]
    written = {}
    for name, rows in (("whole", whole), ("split", split)):
        (tmp_path / name).mkdir()
        written[name], bigrams = write_parts(tmp_path / name, rows)
        assert bigrams == 47 * 48 // 2
    assert written["whole"] == written["split"]
    assert [part.rows for part in written["whole"]] == [8, 8, 8, 8, 8, 7]
    assert [part.file for part in written["whole"]] == [f"part-{n:05d}.parquet" for n in range(6)]
    read = pq.read_table(sorted((tmp_path / "whole").iterdir()))
    assert read["first"].to_pylist() == [3] * 20 + [5] * 27
    assert read["second"].to_pylist() == second.tolist()
    assert read["count"].to_pylist() == count.tolist()


def test_a_part_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    rows = [Rows(0, np.array([0, 1]), np.zeros(1, np.uint16), np.ones(1, np.uint32))]
    with pytest.raises(OSError, match=r"part-00000\.parquet"):
        write_parts(tmp_path / "missing", rows)
