"""The compiled engines equal the plain references on edge cases."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import caching

from argap.bigram_index.counting import count_numba, count_numpy, count_torch, csr, engines, lookup_numba
from argap.bigram_index.counting.count import BigramCounter
from argap.bigram_index.counting.intrinsics import jit
from argap.bigram_index.counting.sorted_runs import Rows
from argap.bigram_index.store import open_index, write_index
from argap.errors import ArgapError, FormatError
from tests.builders.index import build
from tests.conftest import flip_bit

RNG = np.random.default_rng(3)
BY_HAND = np.array([1, 2, 1, 2, 4, 2, 2, 2, 4, 4, 1], dtype=np.uint16)
# boundary 4: documents 1212 | 222 | (empty) | 1. Bigrams (1,2) twice, (2,1) once, (2,2) twice.


def assert_equal_rows(run, reference):
    for name in ("indptr", "second", "count"):
        np.testing.assert_array_equal(getattr(run, name), getattr(reference, name))


def count_by_torch(tokens, vocab_size, boundary=None):
    return count_torch.count_stream(count_torch.to_device(tokens, "cpu"), vocab_size, boundary)


COUNTING = [count_numpy.count_stream, count_numba.count_stream, count_by_torch]


@pytest.mark.parametrize("count", COUNTING)
def test_stream_counts_match_a_worked_example(count):
    run = count(BY_HAND, 5, 4)
    assert run.indptr.tolist() == [0, 0, 1, 3, 3, 3]
    assert run.second.tolist() == [2, 1, 2]
    assert run.count.tolist() == [2, 1, 2]


def streams():
    zipf = RNG.zipf(1.2, 20_000)
    yield "empty", np.array([], np.uint16), 5, None
    yield "one token", np.array([3], np.uint16), 5, None
    yield "one boundary", np.array([5], np.uint16), 5, 5
    yield "only boundaries", np.full(100, 5, np.uint16), 5, 5
    yield "one repeated token", np.full(10_000, 3, np.uint16), 5, None
    yield "all distinct", np.arange(65_536).astype(np.uint16), 65_536, None
    yield "last id", np.array([65_535, 65_535, 0, 65_535], np.uint16), 65_536, None
    yield "boundary 65535", np.array([65_534, 65_535, 65_534, 65_534], np.uint16), 65_535, 65_535
    yield "boundary inside", zipf.clip(max=500).astype(np.uint16), 501, 7
    yield "zipf", zipf.clip(max=50_000).astype(np.uint16), 50_001, None
    yield "beyond uint16", zipf.clip(max=200_000).astype(np.uint32), 200_001, 200_000
    yield "dense rows", RNG.integers(0, 70, 30_000).astype(np.uint32), 70, 70


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("case", list(streams()), ids=lambda case: case[0])
def test_scatter_equals_the_reference(case, threads):
    _, tokens, vocab_size, boundary = case
    run = count_numba.count_stream(tokens, vocab_size, boundary, threads=threads)
    assert_equal_rows(run, count_numpy.count_stream(tokens, vocab_size, boundary))


@pytest.mark.parametrize("case", list(streams()), ids=lambda case: case[0])
def test_torch_equals_the_reference(case):
    _, tokens, vocab_size, boundary = case
    expected = count_numpy.count_stream(tokens, vocab_size, boundary)
    assert_equal_rows(count_by_torch(tokens, vocab_size, boundary), expected)


@pytest.mark.gpu
def test_a_stream_on_the_gpu():
    tokens = RNG.zipf(1.2, 100_000).clip(max=50_000).astype(np.uint16)
    run = count_torch.count_stream(count_torch.to_device(tokens, "cuda"), 50_001, 3)
    assert_equal_rows(run, count_numpy.count_stream(tokens, 50_001, 3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_refused_before_reading_tokens(tmp_path: Path) -> None:
    with pytest.raises(ArgapError, match="no CUDA device available; use `device=cpu`"):
        BigramCounter(10, chunk=100, scratch=tmp_path, device="cuda")
    assert BigramCounter(10, chunk=100, scratch=tmp_path, device="auto").device == "cpu"


@settings(max_examples=60)
@given(tokens=st.lists(st.integers(0, 9), max_size=200), threads=st.integers(1, 4))
def test_scatter_on_any_stream(tokens, threads):
    array = np.array(tokens, dtype=np.uint16)
    assert_equal_rows(count_numba.count_stream(array, 10, 9, threads=threads), count_numpy.count_stream(array, 10, 9))


@settings(max_examples=60)
@given(
    tokens=st.lists(st.integers(-1, 4), min_size=1, max_size=40),
    eos=st.sampled_from([None, 0, 4]),
    inside=st.booleans(),
)
def test_gather_equals_the_reference(tokens, eos, inside):
    array = np.array(tokens)
    here, there = np.empty((2, len(array)), dtype=np.int64)
    found = count_numba.mark_boundaries(array, eos, 5, inside, here)
    assert found == count_numpy.mark_boundaries(array, eos, 5, inside, there)
    assert here.tolist() == there.tolist()


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    eos=st.sampled_from([None, 0]),
    inside=st.booleans(),
    threads=st.integers(1, 5),
)
def test_gather_in_slices_equals_the_reference(tokens, eos, inside, threads):
    array = np.array(tokens)
    here, there = np.empty((2, len(array)), dtype=np.int64)
    with mock.patch.object(count_numba, "TOKENS_PER_THREAD", 3):
        found = count_numba.mark_boundaries(array, eos, 5, inside, here, threads=threads)
    assert found == count_numpy.mark_boundaries(array, eos, 5, inside, there)
    assert here.tolist() == there.tolist()


def test_gather_matches_a_worked_example():
    tokens, out = np.array([3, 0, 0, 1, 2, 0, 9], dtype=np.uint16), np.empty(7, dtype=np.uint16)
    for gathering in (count_numba.mark_boundaries, count_numpy.mark_boundaries):
        assert gathering(tokens, 0, 5, True, out) == (0, 9, 3, 2)  # the 3 ends a document, 1 and 9 begin one
        assert out.tolist() == [3, 5, 5, 1, 2, 5, 9]


def dense(indptrs, second, count, vocab_size):
    """The sum of the runs as a matrix, `[rows, vocab]`."""
    matrix = np.zeros((len(indptrs[0]) - 1, vocab_size), dtype=np.int64)
    for indptr in indptrs:
        row = np.repeat(np.arange(len(matrix)), np.diff(indptr))
        here = slice(indptr[0], indptr[-1])
        np.add.at(matrix, (row, second[here]), count[here])
    return matrix


@pytest.mark.parametrize("add", [count_numpy.merge_rows, count_numba.merge_rows])
@pytest.mark.parametrize("rows", [slice(0, 101), slice(3, 50)])
def test_sum_of_rows(add, rows):
    streams = [RNG.zipf(1.3, n).clip(max=99).astype(np.uint16) for n in (0, 9, 800, 5000)]
    runs = [count_numpy.count_stream(stream, 100) for stream in streams]
    ends = np.cumsum([0] + [len(run.second) for run in runs[:-1]])
    indptrs = (np.stack([run.indptr for run in runs]) + ends[:, None])[:, rows]
    # The rows of each run, one behind another, as the merge reads them.
    pieces = [slice(p[0], p[-1]) for p in indptrs]
    lengths = np.cumsum([0] + [p.stop - p.start for p in pieces[:-1]])
    second = np.concatenate([np.concatenate([run.second for run in runs])[p] for p in pieces])
    count = np.concatenate([np.concatenate([run.count for run in runs])[p] for p in pieces]).astype(np.int64)
    count[0] = 2**40  # counts beyond 32 bits
    indptrs = indptrs - indptrs[:, :1] + lengths[:, None]
    run = add(indptrs, second, count, 100)
    np.testing.assert_array_equal(dense([run.indptr], run.second, run.count, 100), dense(indptrs, second, count, 100))
    assert (run.count > 0).all()
    assert len(run.second) == np.count_nonzero(dense(indptrs, second, count, 100))


def test_both_paths_sum_rows_alike():
    runs = [count_numpy.count_stream(RNG.integers(0, 50, n).astype(np.uint32), 50) for n in (700, 900)]
    indptrs = np.stack([runs[0].indptr, runs[1].indptr + len(runs[0].second)])
    given = (
        indptrs,
        np.concatenate([run.second for run in runs]),
        np.concatenate([run.count for run in runs]),
        50,
    )
    assert_equal_rows(count_numba.merge_rows(*given), count_numpy.merge_rows(*given))


@pytest.mark.parametrize("vocab_size", [2, 300, 65_536, 70_000])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_probing_equals_bisection(vocab_size, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(lookup_numba, "ONE_THREAD_PAIRS", 100)  # two threads
    # Rows of all lengths: token 0 is followed by everything, others by few.
    tokens = RNG.zipf(1.1, 30_000).clip(max=vocab_size) - 1
    index = build(tmp_path / "index", [tokens], vocab_size=vocab_size)
    pairs = RNG.integers(-3 if dtype != np.uint16 else 0, min(vocab_size + 3, 65_536), (2, 5000)).astype(dtype)
    pairs[:, :2500] = [tokens[:2500] % 65_536, tokens[1:2501] % 65_536]  # half of them are there
    found = lookup_numba.count_pairs(index._csr, *pairs)
    np.testing.assert_array_equal(found, csr.count_pairs(index._csr, *pairs))
    assert (found > 0).sum() >= (2500 if vocab_size <= 65_536 else 1000)


@pytest.mark.parametrize("count", [lookup_numba.count_pairs, csr.count_pairs])
def test_an_index_may_have_no_bigrams(count, tmp_path):
    index = build(tmp_path / "index", [[3]])
    assert (index.tokens, index.bigrams, index.distinct) == (1, 0, 0)
    assert count(index._csr, np.array([3, 0, 9]), np.array([3, 0, 0])).tolist() == [0, 0, 0]


@pytest.fixture
def large(tmp_path, monkeypatch):
    """An index treated as too large for memory, with its own cache folder."""
    monkeypatch.setattr(csr, "IN_MEMORY", 10)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return build(tmp_path / "index", [RNG.zipf(1.3, 3000).clip(max=99) - 1], vocab_size=99)


def test_rows_are_written_and_mapped(large):
    assert sorted(p.name for p in (large.folder / "csr").iterdir()) == [
        "base.npy", "bucket.npy", "count.npy", "csr.json", "indptr.npy", "second.npy", "shift.npy",
    ]  # fmt: skip
    assert isinstance(large._csr.count, np.memmap)
    second, count = np.load(large.folder / "csr/second.npy"), np.load(large.folder / "csr/count.npy")
    assert (second.dtype, count.dtype) == (np.uint16, np.uint32)
    assert count.sum() == large.bigrams == 2999
    first = np.repeat(np.arange(99), np.diff(np.load(large.folder / "csr/indptr.npy")))
    assert large.count(first, second).tolist() == count.tolist()


def test_rows_of_another_index_are_not_used(large, tmp_path):
    other = build(tmp_path / "other", [[1, 1, 1] + [5, 6] * 9], vocab_size=99)
    expected = other.count([1, 5], [1, 6]).tolist()
    assert not (other.folder / "csr").exists()  # small enough for memory
    shutil.copytree(large.folder / "csr", other.folder / "csr")
    assert open_index(other.folder).count([1, 5], [1, 6]).tolist() == expected == [2, 9]


def test_truncated_rows_are_rebuilt(large):
    path = large.folder / "csr" / "count.npy"
    whole = path.read_bytes()
    os.truncate(path, 100)
    with pytest.raises(FormatError, match=r"csr/count\.npy: truncated at byte 100"):
        large.verify()
    assert open_index(large.folder).count(0, 0) == large.count(0, 0)
    assert path.read_bytes() == whole


def test_a_flipped_bit_in_the_rows_is_detected(large):
    path = large.folder / "csr" / "second.npy"
    flip_bit(path, -1)
    with pytest.raises(FormatError, match=r"csr/second\.npy: damaged between bytes 0 and .*delete the folder csr"):
        large.verify()


def test_a_read_only_index_caches_its_rows_for_the_user(large, tmp_path, monkeypatch):
    for path in (large.folder / "csr").iterdir():
        path.unlink()
    (large.folder / "csr").rmdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    index = open_index(large.folder)
    assert index.count(0, 0) > 0
    assert isinstance(index._csr.second, np.memmap)
    assert not (large.folder / "csr").exists()
    (made,) = (tmp_path / "cache" / "argap" / "index").iterdir()
    before = (made / "csr.json").stat().st_mtime_ns
    assert open_index(large.folder).count(0, 0) == index.count(0, 0)
    assert (made / "csr.json").stat().st_mtime_ns == before  # used, not made again


def test_numba_takes_over_above_a_size(monkeypatch):
    monkeypatch.setattr(engines, "_handled", 0)  # as in a new process
    tokens = np.array([1, 2, 1, 2], dtype=np.uint16)
    monkeypatch.setattr(engines, "SMALL", 7)
    used = []
    monkeypatch.setattr(engines, "import_module", lambda name: used.append(name) or count_numba)
    assert_equal_rows(engines.counting(4).count_stream(tokens, 5), count_numpy.count_stream(tokens, 5))
    assert used == []
    assert_equal_rows(engines.counting(4).count_stream(tokens, 5), count_numpy.count_stream(tokens, 5))
    assert used == ["argap.bigram_index.counting.count_numba"]


def test_small_inputs_load_neither_numba_nor_pandas_nor_torch(tmp_path):
    code = (
        "import sys\n"
        "from tests.builders.index import build\n"
        "index = build(sys.argv[1], [[1, 2, 1]])\n"
        "assert index.count([1], [2]).tolist() == [1]\n"
        "print({'numba', 'pandas', 'scipy', 'torch', 'transformers'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "index")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_pairs_may_be_scalars(large):
    assert large.count(0, 0).shape == ()
    with pytest.raises(ArgapError):
        large.count(0, [0])


def test_counts_beyond_32_bits(tmp_path):
    rows = [Rows(1, np.array([0, 2]), np.array([0, 2], np.uint16), np.array([2**33, 7]))]
    write_index(
        tmp_path, rows, tokenizer="t", tokenizer_fingerprint="ab" * 32, vocab_size=3, documents=1,
        empty_documents=0, tokens=2**33 + 8, sources=["s"],
    )  # fmt: skip
    index = open_index(tmp_path)
    assert index.bigrams == 2**33 + 7
    assert index.count([1, 1, 1], [0, 1, 2]).tolist() == [2**33, 0, 7]


def test_functions_are_compiled_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert jit(lambda x: x + 1)(2) == 3
