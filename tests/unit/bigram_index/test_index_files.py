"""Files of an index: parts cut at fixed rows, disk errors that leave none, and the frequency profile of a text."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.bigram_index import frequency_profile as profile
from argap.bigram_index import parquet_parts
from argap.bigram_index.counting import csr, lookup_numba
from argap.bigram_index.counting.sorted_runs import Rows, write_array
from argap.bigram_index.frequency_profile import FrequencyBin, frequency_profile
from argap.bigram_index.parquet_parts import write_parts
from argap.errors import ArgapError
from argap.files.parquet import readable
from tests.builders.index import build


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


BUILD = """
import resource, sys
from pathlib import Path
import numpy as np
from argap.bigram_index import build
from argap.errors import ArgapError
from argap.files.parquet import readable
from tests.builders import index as indexes
build.chunk_tokens = lambda memory, vocab_size: int(sys.argv[2])
documents = np.random.default_rng(0).integers(0, 500, (40, 1000))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # what a full disk does: a write fails half-way
try:
    indexes.build(Path(sys.argv[1]), documents, vocab_size=500)
except ArgapError as error:
    print(error)
"""


@pytest.mark.parametrize("chunk", [10**6, 15_000], ids=["writing the parts", "spilling a run"])
def test_a_full_disk_is_one_line(chunk, tmp_path):
    command = [sys.executable, "-c", BUILD, str(tmp_path / "index"), str(chunk)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "could not be written" in printed
    assert "free some space" in printed.lower()
    assert len(printed.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk without space")
def test_the_end_of_an_array_is_not_lost_on_a_full_disk() -> None:
    """As with `ndarray.tofile`, which fails only if a disk is full before its last few kilobytes."""
    np.zeros(9).tofile("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_array(np.zeros(9), Path("/dev/full"))


def test_rows_are_mapped_only_where_the_disk_has_room(index, monkeypatch, tmp_path):
    """Otherwise the write through the mapping would end the process with SIGBUS."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ArgapError, match=r"csr: could not be written \(No space left on device\)"):
        csr.write(index.folder, index.manifest, tmp_path / "csr", "identity")
    assert list(tmp_path.glob("csr*")) == list(tmp_path.glob(".csr*")) == []


def test_a_file_is_not_called_damaged_where_threads_are_short(index, monkeypatch):
    def fails(*_, **__):
        raise pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", fails)
    with pytest.raises(pa.ArrowException, match="Failed to launch"):
        csr.load(index.folder, index.manifest)
    with pytest.raises(pa.ArrowException, match="Failed to launch"), readable(index.folder / "part-00000.parquet"):
        fails()


@pytest.mark.parametrize("header", [b"(((('descr'", b"{'descr': '|V0'", b"{'descr': '<f8'"])
def test_rows_whose_header_is_damaged_are_made_again(index, monkeypatch, header):
    monkeypatch.setattr(csr, "IN_MEMORY", 0)
    csr.load(index.folder, index.manifest)
    path = index.folder / csr.FOLDER / "indptr.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:10] + header + whole[10 + len(header) :])
    assert csr.load(index.folder, index.manifest).indptr.tolist() == [0, 1, 2, 3, 3, 4, 4]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("name", ["indptr", "second", "count", "shift", "base", "bucket"])
def test_no_lookup_leaves_the_rows_whatever_is_in_them(index, monkeypatch, name, width):
    """A compiled one would end the process, or count what else is in memory."""
    monkeypatch.setattr(csr, "IN_MEMORY", 0)
    csr.load(index.folder, index.manifest)
    path = index.folder / csr.FOLDER / f"{name}.npy"
    content = path.read_bytes()
    path.write_bytes(content[:128] + (b"\xf7" * width + b"\x7f") * len(content))
    os.truncate(path, len(content))
    first, second = (part.reshape(-1) for part in np.meshgrid(np.arange(6), np.arange(6)))
    rows = csr.load(index.folder, index.manifest)
    for module in (csr, lookup_numba):
        found = module.count_pairs(rows, first, second)
        assert name in ("second", "count", "bucket") or found.sum() == 34


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgapError, match=r"file/index: could not be written \(Not a directory\)"):
        build(tmp_path / "file" / "index", [[1, 2]])


@pytest.fixture
def index(tmp_path):
    # (0,1) 12 times, (1,0) 11 times, (2,3) 10 times, (4,5) once.
    documents = [np.array([0, 1] * 12), *[np.array([2, 3])] * 10, np.array([4, 5])]
    return build(tmp_path / "index", documents, vocab_size=6)


@pytest.mark.parametrize("piece", [1, 2**20])
def test_profile_matches_a_worked_example(piece, index, monkeypatch):
    monkeypatch.setattr(profile, "PIECE", piece)
    text = [np.array([0, 1, 0]), np.array([2, 3]), np.array([4, 5, 5]), np.array([1]), np.array([2, 3])]
    # 12, 11 | 10 | 1, 0 | | 10: of six bigrams one unseen, one once, two 2 to 10 times, two 11 to 100 times.
    assert frequency_profile(index, text) == [
        FrequencyBin(0, 0, 1, 1 / 6),
        FrequencyBin(1, 1, 1, 1 / 6),
        FrequencyBin(2, 10, 2, 2 / 6),
        FrequencyBin(11, 100, 2, 2 / 6),
    ]


def test_bins_are_of_exposures(tmp_path):
    # Counts 12, 1 and 0, read 10 times: 120, 10 and 0 exposures; read every other time: 6, 0.5 and 0, rounded to even.
    documents, text = [np.array([0, 1] * 12), np.array([4, 5])], [np.array([0, 1]), np.array([4, 5]), np.array([5, 0])]
    for passes, expected in ((10, {0: 1, 2: 1, 101: 1}), (0.5, {0: 2, 2: 1})):
        built = build(tmp_path / f"{passes}", documents, vocab_size=6, passes=passes)
        found = frequency_profile(built, text)
        assert {each.low: each.bigrams for each in found if each.bigrams} == expected


def test_text_without_bigrams_is_refused(index):
    with pytest.raises(ArgapError, match="no bigram"):
        frequency_profile(index, [np.array([1]), np.array([2])])


def test_damaged_machine_code_is_compiled_again(tmp_path: Path) -> None:
    """A crash of the system may leave such: numba does not sync what it writes."""
    (tmp_path / "module.py").write_text(
        "from argap.bigram_index.counting.intrinsics import jit\n\n\n@jit\ndef add(x):\n    return x + 1\n"
    )
    command = [sys.executable, "-c", "import module; print(module.add(2), sum(module.add.stats.cache_hits.values()))"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def call() -> str:
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ended.stdout or ended.stderr

    compiled, found = "3 0\n", "3 1\n"
    assert [call(), call()] == [compiled, found]
    for pattern, damage in (("*.nbi", b""), ("*.nbi", b"no pickle"), ("*.nbc", b"")):
        (path,) = (tmp_path / "cache").rglob(pattern)
        path.write_bytes(damage)
        assert [call(), call()] == [compiled, found], pattern
