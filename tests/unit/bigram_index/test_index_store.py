"""The index folder: content, reading, and damage."""

import json
import os
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from argap.bigram_index.manifest import read_manifest, write_manifest
from argap.bigram_index.store import check_tokenizer, open_index
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json
from tests.builders import index as indexes
from tests.builders.index import contents
from tests.conftest import flip_bit

RNG = np.random.default_rng(1)
DOCUMENTS = [RNG.zipf(1.2, n).clip(max=300) - 1 for n in (1, 500, 2, 3000, 0, 40)]
ORACLE = Counter(p for d in DOCUMENTS for p in pairwise(d.tolist()))


def build(out, documents=DOCUMENTS, **changes):
    given = {"vocab_size": 300, "tokenizer": "words", "sources": ["corpus"]}
    return indexes.build(out, documents, **given | changes)


@pytest.fixture
def index(tmp_path):
    return build(tmp_path / "index")


def test_attributes_and_counts(index):
    assert (index.documents, index.tokens, index.manifest.empty_documents) == (5, 3543, 1)
    assert index.bigrams == 3543 - 5 == sum(ORACLE.values())  # a document of n tokens has n - 1
    assert index.distinct == len(ORACLE)
    assert (index.vocab_size, index.tokenizer, index.sources) == (300, "words", ["corpus"])
    first, second = np.meshgrid(np.arange(300), np.arange(300), indexing="ij")
    counts = index.count(first, second)
    assert counts.dtype == np.int64
    assert counts.shape == (300, 300)
    assert {(a, b): counts[a, b] for a, b in zip(*np.nonzero(counts), strict=True)} == ORACLE


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_any_integer_type_is_looked_up(index, dtype):
    pairs = np.array([p for p in ORACLE if max(p) < 128], dtype=dtype)
    expected = [ORACLE[tuple(p)] for p in pairs.tolist()]
    assert index.count(pairs[:, 0], pairs[:, 1]).tolist() == expected


def test_ids_outside_the_vocabulary_count_zero(index):
    known = next(iter(ORACLE))
    assert index.count([-1, 0, 300, 2**40, known[0]], [0, -1, 0, 0, known[1]])[:4].tolist() == [0, 0, 0, 0]
    assert index.count([known[0]], [known[1] + 2**32]).tolist() == [0]
    assert index.count(np.array([2**64 - 1], dtype=np.uint64), np.array([0])).tolist() == [0]
    first, second = np.array(list(ORACLE)).T
    assert not index.count(first - 300, second).any()  # where Python would index from the end
    assert index.count([], []).shape == (0,)


def test_pairs_of_a_wrong_shape_or_dtype_are_refused(index):
    with pytest.raises(ArgapError, match="first tokens for"):
        index.count([1, 2], [1])
    with pytest.raises(ArgapError, match="float64"):
        index.count([1.0], [1.0])


def test_parts_are_plain_sorted_parquet(index):
    assert sorted(p.name for p in index.folder.iterdir()) == ["index.json", "part-00000.parquet"]
    table = pd.read_parquet(index.folder / "part-00000.parquet")
    assert table.dtypes.astype(str).to_dict() == {"first": "int32", "second": "int32", "count": "int64"}
    pairs = list(zip(table["first"], table["second"], strict=True))
    assert pairs == sorted(ORACLE)
    assert dict(zip(pairs, table["count"], strict=True)) == ORACLE


def test_part_and_group_ends_do_not_depend_on_the_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("argap.bigram_index.parquet_parts.GROUP_ROWS", 100)
    monkeypatch.setattr("argap.bigram_index.parquet_parts.PART_ROWS", 300)
    whole = build(tmp_path / "whole")
    monkeypatch.setattr("argap.bigram_index.build.chunk_tokens", lambda memory, vocab_size: 97)
    monkeypatch.setattr("argap.bigram_index.counting.count.merge_runs.__defaults__", (211,))
    cut = build(tmp_path / "cut")
    assert len(whole.manifest.parts) == -(-len(ORACLE) // 300) > 1
    assert contents(whole.folder) == contents(cut.folder)
    assert [cut.count([a], [b]).item() for a, b in ORACLE] == list(ORACLE.values())


def test_read_only_folder_opens(index):
    for path in [*index.folder.iterdir(), index.folder]:
        path.chmod(path.stat().st_mode & ~0o222)
    assert open_index(index.folder).count([next(iter(ORACLE))[0]], [next(iter(ORACLE))[1]]) > 0
    index.folder.chmod(0o755)


def test_an_empty_corpus_is_refused_and_leaves_no_files(tmp_path):
    for documents in ([], [np.array([], dtype=np.int32)] * 3):
        with pytest.raises(ArgapError, match="corpus: no tokens"):
            build(tmp_path / "index", documents)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_build_leaves_no_files(tmp_path):
    def documents():
        yield from DOCUMENTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "index", documents())
    assert list(tmp_path.iterdir()) == []


def test_existing_index_is_kept_unless_overwritten(index):
    before = (index.folder / "index.json").read_bytes()
    with pytest.raises(ArgapError, match="`overwrite=True`"):
        build(index.folder, [np.array([1, 2])])
    with pytest.raises(ArgapError, match="no tokens"):
        build(index.folder, [], overwrite=True)
    assert (index.folder / "index.json").read_bytes() == before
    assert build(index.folder, [np.array([1, 2])], overwrite=True).tokens == 2
    assert [p.name for p in index.folder.parent.iterdir()] == ["index"]


def test_a_folder_without_an_index_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ArgapError, match="is not an index"):
        build(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()


def change(path, **entries):
    path.write_text(json.dumps(read_json(path) | entries))


def test_damaged_manifest_is_named(index):
    path = index.folder / "index.json"
    whole = json.dumps(read_json(path), indent=2)
    for text, message in [
        (whole[:40], "not readable as JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "not the index.json of a bigram index"),
        (whole.replace('"tokens"', '"toknes"'), "unknown field `toknes`"),
        (whole.replace('  "tokens": 3543,\n', ""), "missing required field `tokens`"),
        (whole.replace('"tokens": 3543', '"tokens": "many"'), r"Expected `int`, got `str` - at `\$\.tokens`"),
        (whole.replace('"rows": ', '"row": '), r"unknown field `row` - at `\$\.parts\[0\]`"),
        (whole.replace("part-00000", "../part-00000"), r"parts\[0\]\.file` is '../part-.*expected part-N"),
        (
            whole.replace('"tokens": 3543', '"passes": 0, "tokens": 3543'),
            "`passes` 0: expected a finite number above 0",
        ),
        (whole.replace('"distinct": ', '"distinct": 1'), "but distinct is"),
    ]:
        path.write_text(text)
        with pytest.raises(FormatError, match=rf"index\.json.*{message}"):
            open_index(index.folder)
    path.unlink()
    with pytest.raises(FormatError, match="no index there"):
        open_index(index.folder)


def test_an_index_with_a_table_of_single_tokens_is_still_read(index):
    path = index.folder / "index.json"
    path.write_text(json.dumps(read_json(path) | {"stats": {"file": "stats.parquet", "bytes": 9, "crc32": []}}))
    assert open_index(index.folder).manifest == index.manifest


def test_newer_version_is_refused(index):
    change(index.folder / "index.json", version=2, surprise=1)
    with pytest.raises(FormatError, match="format version 2, this argap reads version 1"):
        open_index(index.folder)


def test_missing_and_truncated_parts_are_named_at_opening(index):
    part = index.folder / "part-00000.parquet"
    size = part.stat().st_size
    os.truncate(part, size - 5)
    with pytest.raises(FormatError, match=rf"part-00000\.parquet: truncated at byte {size - 5}"):
        open_index(index.folder)
    part.unlink()
    with pytest.raises(FormatError, match=r"part-00000\.parquet: no such file"):
        open_index(index.folder)


def test_a_flipped_bit_is_detected_and_located(index, monkeypatch):
    monkeypatch.setattr("argap.files.checksums.BLOCK", 512)
    flipped = build(index.folder.parent / "flipped")
    part = flipped.folder / "part-00000.parquet"
    flip_bit(part, 1000)
    for check in (open_index(flipped.folder).verify, lambda: open_index(flipped.folder).count([0], [0])):
        with pytest.raises(FormatError, match=r"part-00000\.parquet: damaged between bytes 512 and 1024"):
            check()


def test_another_tokenizer_is_refused(index):
    check_tokenizer(index, "M", "ab" * 32)
    with pytest.raises(MismatchError, match="argap index build TRAINING_TEXT --tokenizer M"):
        check_tokenizer(index, "M", "cd" * 32)


def test_index_can_be_moved(index, tmp_path):
    shutil.move(index.folder, tmp_path / "elsewhere")
    assert open_index(tmp_path / "elsewhere").count(*next(iter(ORACLE))) == next(iter(ORACLE.values()))


def test_the_demo_manifest_round_trips(tmp_path):
    demo = Path(__file__).parents[3] / "argap" / "demo" / "index"
    write_manifest(tmp_path, read_manifest(demo))
    assert (tmp_path / "index.json").read_bytes() == (demo / "index.json").read_bytes()
