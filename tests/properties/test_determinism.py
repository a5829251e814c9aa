"""An index, labels and a result are the same bytes in every run, with any number of threads, resumed or not."""

import json
from pathlib import Path

import numpy as np
import pytest

from argap.bigram_index.build import build_from_source
from argap.bigram_index.sources.token_source import TokenSource
from argap.bigram_index.store import open_index
from argap.corpus import open_corpus
from argap.corpus.tokenize import token_documents
from argap.evaluation.windows import build_evaluation_set
from argap.results.compare import compare_runs
from argap.results.in_place import NEW
from argap.text.tokenizer import Tokenizer
from argap.tokens.labels import label, label_portions, write_labels
from tests.conftest import index_of

COUNTING = [
    f"argap.{name}.available_cores"
    for name in (
        *("tokens.portions", "slices.queries", "bigram_index.counting.lookup_numba"),
        "bigram_index.counting.count_numba",
    )
]
TIMES = ("date", "checksum", "seconds", "created", "run", "runs")
"""Keys whose values differ between runs."""


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, those of JSON without `TIMES`."""
    return {
        path.relative_to(folder).as_posix(): _without_times(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def _without_times(path: Path) -> bytes:
    if path.suffix != ".json" or path.name == "tokenizer.json":
        return path.read_bytes()
    return json.dumps(json.loads(path.read_text(), object_hook=_kept)).encode()


def _kept(values: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if key not in TIMES}


@pytest.fixture
def made(token_result: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Builds an index and labels of a text, and compares three runs; returns the bytes of all files."""
    text = token_result.parent / "text"

    def make(name: str, *, cores: int, killed: bool = False) -> dict[str, bytes]:
        for each in COUNTING:
            monkeypatch.setattr(each, lambda: cores)
        monkeypatch.setattr("argap.tokens.rows.ROWS", 500)  # several portions
        out = tmp_path / name
        index = build_from_source(TokenSource([open_corpus(str(text))], tokenizer), out / "index")
        data = build_evaluation_set(open_corpus(text), tokenizer, seq_len=48)
        write_labels(label_portions(data, index), tokenizer, out / "labels")
        runs = [str(token_result / model) for model in ("m-1", "m2")]
        result = out / "result"
        compare_runs(runs, str(token_result / "ref"), result)
        if killed:  # before the last files were in place
            (result / NEW).mkdir()
            for file in ("gap.json", "examples.json"):
                (result / file).rename(result / NEW / file)
            compare_runs(runs, str(token_result / "ref"), result)
        return contents(out)

    return make


def test_files_are_the_same_bytes_in_every_run(made) -> None:
    once = made("once", cores=1)
    assert {"index/index.json", "labels/labels.parquet", "result/cells.parquet", "result/gap.json"} <= once.keys()
    for name, cores, killed in (("again", 1, False), ("threads", 2, False), ("killed", 2, True)):
        other = made(name, cores=cores, killed=killed)
        assert once.keys() == other.keys()
        assert [file for file in once if once[file].replace(b"/once/", b"/x/") != _moved(other[file], name)] == []


def test_an_index_does_not_depend_on_the_order_of_documents(token_result: Path, tokenizer, tmp_path: Path) -> None:
    documents = [document.ids for document in token_documents(open_corpus(token_result.parent / "text"), tokenizer)]
    one, other = (index_of(given, tmp_path / str(k), tokenizer) for k, given in enumerate((documents, documents[::-1])))
    assert contents(one.folder) == contents(other.folder)


def test_labels_of_whole_documents_do_not_depend_on_their_order(token_result: Path, tokenizer, tmp_path: Path) -> None:
    texts = [path.read_text() for path in sorted((token_result.parent / "text").rglob("*.txt"))]
    found = []
    for name, given in (("forward", texts), ("backward", texts[::-1])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in given))
        data = build_evaluation_set(open_corpus(path), tokenizer, seq_len=48, packing="document")
        labels = label(data, open_index(token_result.parent / "index"))
        columns = [labels.repeated, labels.distance, labels.occurrences, labels.match_length, labels.train_count]
        rows = np.column_stack([column for column in columns if column is not None])
        found.append([part.tolist() for part in np.split(rows, data.document_ends[:-1])])
    assert found[0] == found[1][::-1]


def _moved(content: bytes, name: str) -> bytes:
    return content.replace(f"/{name}/".encode(), b"/x/")
