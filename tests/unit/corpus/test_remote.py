"""An object store (fsspec's in-memory one) reads like the same files on disk."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from argap.bigram_index.build import build_from_source
from argap.bigram_index.sources.token_source import TokenSource
from argap.corpus import open_corpus
from argap.errors import ArgapError
from argap.text.tokenizer import load_tokenizer

pytest.importorskip("upath")

TOKENIZER = Path(__file__).parents[3] / "argap" / "demo" / "tokenizer"


@pytest.fixture
def both(tmp_path):
    """The same files in a folder and below ``memory://corpus``."""
    import fsspec
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path / "corpus"
    (root / "books").mkdir(parents=True)
    (root / "books" / "a.txt").write_text("one fish two fish\n" * 40)
    lines = "".join(json.dumps({"text": f"row {n} of many"}) + "\n" for n in range(30))
    (root / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.table({"text": [f"red fish {n}" for n in range(600)]}), root / "table.parquet")
    np.array([5, 6, 5, 0, 7, 5, 6], dtype="<u2").tofile(root / "shard.bin")
    np.save(root / "more.npy", np.array([5, 6, 6], dtype=np.uint16))
    fs = fsspec.filesystem("memory")
    fs.put(str(root), "/corpus", recursive=True)
    yield root, "memory://corpus"
    fs.rm("/corpus", recursive=True)


def test_an_object_store_gives_the_same_index_as_files(both, tmp_path):
    tokenizer = load_tokenizer(TOKENIZER)
    built = []
    for number, spec in enumerate(both):
        source = TokenSource([open_corpus(spec)], tokenizer)
        index = build_from_source(source, tmp_path / str(number))
        built.append([(index.folder / part.file).read_bytes() for part in index.manifest.parts])
        assert source.fraction_read() == pytest.approx(1)  # every byte of every format was accounted for
        assert index.manifest.documents > 600
    assert built[0] == built[1]


def test_domains_are_the_folders_of_the_store(both):
    _, remote = both
    assert {item.domain for item in open_corpus(remote)} == {"books", "corpus"}


def test_the_fraction_read_grows_with_the_files(both):
    root, _ = both
    source = TokenSource([open_corpus(root)], load_tokenizer(TOKENIZER))
    text = sum(path.stat().st_size for path in root.rglob("*") if path.suffix in (".txt", ".gz", ".parquet"))
    tokens = sum(path.stat().st_size for path in root.rglob("*") if path.suffix in (".bin", ".npy"))
    assert source.fraction_read() == 0
    for _ in source.documents():
        pass
    assert source.fraction_read() == pytest.approx(text / (text + tokens))  # the token files are not counted yet


@pytest.mark.parametrize("spec", ["nosuch://bucket/x", "memory://not/there", "http://127.0.0.1:99999/x", "hf://"])
def test_an_unreachable_store_is_one_line(spec):
    with pytest.raises(ArgapError, match=r"^\S+: (cannot be reached|no such file)") as error:
        open_corpus(spec)
    assert "\n" not in str(error.value)


def test_a_store_that_does_not_answer_is_one_line():
    with pytest.raises(ArgapError, match=r"^http://127\.0\.0\.1:1/v1: cannot be reached"):
        open_corpus("http://127.0.0.1:1/v1")
