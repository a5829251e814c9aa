"""``argap index`` as users run it, from text files to counts."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from argap.cli.index import app
from argap.cli.options import parse_bytes, parse_tokens
from argap.errors import ArgapError, MismatchError
from argap.text.tokenizer import load_tokenizer
from tests.conftest import word_tokenizer

TEXTS = ["to be or not to be", "be not afraid", "", "to"]


@pytest.fixture
def words(tmp_path):
    """A tokenizer of whole words, and a JSON lines file of `TEXTS`."""
    words = ["[UNK]", "to", "be", "or", "not", "afraid"]
    word_tokenizer(words, unknown="[UNK]").save(tmp_path / "words")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"body": t}) + "\n" for t in TEXTS))
    return tmp_path / "words"


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_build_info_count_merge(words, tmp_path):
    data, out = tmp_path / "data.jsonl", tmp_path / "index"
    printed = run("build", data, "--tokenizer", words, "--out", out, "--text-column", "body")
    assert "tokens     10" in printed  # 6 + 3 + 0 + 1
    assert "3 (and 1 without a token)" in printed

    info = json.loads(run("info", out, "--json", "--verify"))
    oracle = Counter(p for t in TEXTS for p in pairwise(t.split()))
    assert info["documents"] == 3
    assert info["empty_documents"] == 1
    assert info["bigrams"] == 7 == sum(oracle.values())
    assert info["distinct"] == len(oracle)
    assert info["sources"] == [str(data)]
    assert "crc32" not in info["parts"][0]

    rows = json.loads(run("count", out, "to be or afraid", "--json"))
    assert [r["text"] for r in rows] == [["to", "be"], ["be", "or"], ["or", "afraid"]]
    assert [r["count"] for r in rows] == [2, 1, 0]
    assert "'to' 'be'" in run("count", out, "to be")

    bins = json.loads(run("profile", out, data, "--text-column", "body", "--json"))
    assert sum(row["bigrams"] for row in bins) == 7
    assert "2 to 10" in run("profile", out, data, "--text-column", "body")

    run("merge", out, out, "--out", tmp_path / "twice")
    assert json.loads(run("count", tmp_path / "twice", "to be", "--json"))[0]["count"] == 4


def test_errors_are_one_line(words, tmp_path):
    data, out = tmp_path / "data.jsonl", tmp_path / "index"
    arguments = ("build", data, "--tokenizer", words, "--out", out, "--text-column", "body")
    run(*arguments)
    with pytest.raises(ArgapError, match="`overwrite=True`"):
        run(*arguments)
    run(*arguments, "--overwrite")
    word_tokenizer(["[UNK]", "to", "be", "question"], unknown="[UNK]").save(tmp_path / "other")
    with pytest.raises(MismatchError, match="argap index build"):
        run("count", out, "to be", "--tokenizer", tmp_path / "other")


def test_count_uses_the_fingerprint(words, tmp_path):
    out = tmp_path / "index"
    run("build", tmp_path / "data.jsonl", "--tokenizer", words, "--out", out, "--text-column", "body")
    assert json.loads((out / "index.json").read_text())["tokenizer_fingerprint"] == (load_tokenizer(words).fingerprint)


@pytest.mark.parametrize(
    ("text", "expected"), [("2GB", 2 * 10**9), ("512MiB", 2**29), ("1.5g", 15 * 10**8), ("1000", 1000)]
)
def test_memory_is_parsed(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "two GB", "-1GB", "2GBs"])
def test_invalid_memory_is_refused(text):
    with pytest.raises(ArgapError, match="expected an amount such as"):
        parse_bytes(text)


def test_numbers_of_tokens_are_parsed():
    assert [parse_tokens(t) for t in ("10B", "1.5T", "7")] == [1e10, 1.5e12, 7]
    with pytest.raises(ArgapError, match="expected a number such as"):
        parse_tokens("many")


def test_a_proxy_is_marked(words, tmp_path):
    (tmp_path / "counts.csv").write_text("first,second,count\n1,2,3\n")
    printed = run("from-counts", tmp_path / "counts.csv", "--tokenizer", words, "--out", tmp_path / "proxy")
    assert "proxy      not counted from documents: counts" in printed
    assert "proxy" in run("profile", tmp_path / "proxy", tmp_path / "data.jsonl", "--text-column", "body")


def test_passes_and_weights(words, tmp_path):
    data = [tmp_path / "data.jsonl", "--tokenizer", words, "--text-column", "body", "--out"]
    assert "passes     3.5" in run("build", *data, tmp_path / "index", "--passes", "3.5")
    assert "passes     3.5" in run("info", tmp_path / "index")
    assert json.loads(run("info", tmp_path / "index", "--json"))["passes"] == 3.5
    run("build", *data, tmp_path / "once")
    printed = run("merge", tmp_path / "once", tmp_path / "once", "--out", tmp_path / "m", "--weight", 11, "--weight", 3)
    assert f"weight     3: {tmp_path / 'data.jsonl'}" in printed
    assert json.loads(run("count", tmp_path / "m", "to be", "--json"))[0]["count"] == 2 * 14
