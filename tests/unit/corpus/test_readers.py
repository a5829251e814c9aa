"""Every reader returns the documents written, and names the error in a broken file."""

import errno
import io
import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.corpus import files, jsonl, open_corpus
from argap.corpus.document import TextDocument
from argap.errors import ArgapError, FormatError
from argap.files import regular

ROWS = [{"text": "one fish", "domain": "sea"}, {"text": "two fish\nred fish", "domain": "pond"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def texts(corpus) -> list[str]:
    return [item.text for item in corpus if isinstance(item, TextDocument)]


def domains(corpus) -> list[str]:
    return [item.domain for item in corpus]


def write(path, text: str) -> None:
    """Write a file, compressed as its name says."""
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with pa.output_stream(str(path), compression=compression) as file:
        file.write(text.encode())


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_json_lines_plain_and_compressed(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    write(path, LINES)
    corpus = open_corpus(path)
    assert texts(corpus) == [row["text"] for row in ROWS]
    assert domains(corpus) == ["sea", "pond"]


def test_the_pile_names_its_sets_in_meta(tmp_path):
    path = tmp_path / "pile.jsonl"
    path.write_text(json.dumps({"text": "x", "meta": {"pile_set_name": "Books3"}}) + "\n")
    assert domains(open_corpus(path)) == ["Books3"]


def test_parquet_keeps_domain_and_source(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "domain": ["x", "y"], "source": ["s", "t"]}), path)
    corpus = open_corpus(path)
    assert [(d.text, d.domain, d.source) for d in corpus if isinstance(d, TextDocument)] == [
        ("a", "x", "s#0"),
        ("b", "y", "t#1"),
    ]


def test_a_folder_is_read_in_the_order_of_its_paths_and_its_folders_are_domains(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_text("second")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "9.md").write_text("first")
    (tmp_path / ".hidden.txt").write_text("not this one")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    corpus = open_corpus(tmp_path)
    assert texts(corpus) == ["first", "second"]
    assert domains(corpus) == ["a", "b"]


def test_a_huge_text_file_is_cut_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("argap.corpus.text.PIECE", 8)
    path = tmp_path / "huge.txt"
    path.write_text("0123\n56789\nabc\n")
    pieces = texts(open_corpus(path))
    assert pieces == ["0123\n56789\n", "abc\n"]


@pytest.mark.parametrize(("name", "start"), [("a.jsonl", '{"text": "'), ("a.csv", "text\n"), ("a.txt", "0123")])
def test_a_line_without_end_is_not_read_whole(tmp_path, monkeypatch, name, start):
    monkeypatch.setattr("argap.corpus.text.PIECE", 8)
    monkeypatch.setattr("argap.files.regular.LONGEST_LINE", 20)
    (tmp_path / name).write_text(start + "a" * 100)
    with pytest.raises(FormatError, match=rf"{name}: a line of more than 20 bytes"):
        texts(open_corpus(tmp_path / name))


def test_lines_are_joined_from_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(regular, "PIECE", 4)
    content = b"0123456789\n\n012\n0123\n01234567\n0123"
    assert list(regular.lines_of(io.BytesIO(content), tmp_path, 11)) == content.splitlines(keepends=True)
    with pytest.raises(FormatError, match="a line of more than 10 bytes"):
        list(regular.lines_of(io.BytesIO(content), tmp_path, 10))


def test_refusing_a_line_takes_little_more_memory_than_the_longest(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    tracemalloc.start()
    with (tmp_path / "sparse").open("rb") as file, pytest.raises(FormatError, match="a line of more than 8,388,608"):
        next(regular.lines_of(file, tmp_path, 2**23))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * 2**23
    assert regular.LONGEST_LINE <= 2**28


def test_invalid_utf8_is_counted_and_read(tmp_path):
    path = tmp_path / "bytes.txt"
    path.write_bytes(b"caf\xe9 au lait")
    corpus = open_corpus(path)
    assert texts(corpus) == ["caf\ufffd au lait"]
    assert corpus.tally.invalid_utf8 == 1
    assert "1 documents contain invalid UTF-8" in corpus.tally.remarks()[0]


@pytest.mark.parametrize(
    ("escaped", "read"),
    [
        (r"a \ud800 b", "a \ufffd b"),
        (r"\udc00\ud800", "\ufffd\ufffd"),
        (r"\ud800\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\\\ud800", "\\\ufffd"),
    ],
)
def test_half_a_character_is_invalid_too(tmp_path, escaped, read):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "whole"}}\n{{"text": "{escaped}", "domain": "{escaped}"}}\n')
    corpus = open_corpus(path)
    assert texts(corpus) == ["whole", read]
    assert domains(corpus) == ["rows", read]
    assert corpus.tally.invalid_utf8 == 2  # read twice
    with pytest.raises(FormatError, match="line 2: not valid UTF-8"):
        jsonl.valid_rows(path)


def test_escapes_of_whole_characters_are_read_as_they_are(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(r'{"text": "\ud83d\ude00 \\ud800 \u00e9"}' + "\n")
    corpus = open_corpus(path)
    assert texts(corpus) == ["\U0001f600 \\ud800 \u00e9"]
    assert corpus.tally.invalid_utf8 == 0


@pytest.mark.parametrize(("broken", "said"), [("{broken", ""), ("[" * 10**5, r" \(nested too deeply\)")])
def test_a_broken_json_line_is_named(tmp_path, broken, said):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{LINES}{broken}\n")
    with pytest.raises(FormatError, match=rf"rows\.jsonl, line 3: not JSON{said}"):
        texts(open_corpus(path))


def test_a_domain_of_invalid_utf8_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    invalid = pa.array([b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": ["whole"], "domain": invalid}), path)
    with pytest.raises(FormatError, match=r"rows\.parquet: not a complete Parquet file"):
        texts(open_corpus(path))


def test_invalid_utf8_is_refused_where_rows_are_more_than_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"key": "whole"}\n{"key": "\xff"}\n')
    with pytest.raises(FormatError, match="line 2: not valid UTF-8"):
        jsonl.valid_rows(path)


def test_invalid_utf8_in_parquet_is_counted_and_read(tmp_path):
    path = tmp_path / "bytes.parquet"
    column = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())  # Arrow does not check on a view
    pq.write_table(pa.table({"text": column}), path)
    corpus = open_corpus(path)
    assert texts(corpus) == ["caf\ufffd"]
    assert corpus.tally.invalid_utf8 == 1


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_missing_text_column_lists_the_columns(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text('{"content": "a", "id": 1}\n')
    else:
        pq.write_table(pa.table({"content": ["a"], "id": [1]}), path)
    with pytest.raises(FormatError, match=r"'text'.*'content', 'id'.*`text_column`"):
        texts(open_corpus(path))
    assert texts(open_corpus(path, text_column="content")) == ["a"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_archive_is_named(tmp_path, suffix):
    path = tmp_path / f"rows.jsonl{suffix}"
    lines = "".join(json.dumps({"text": str(np.random.default_rng(i).bytes(64))}) + "\n" for i in range(500))
    write(path, lines)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(FormatError, match=rf"rows\.jsonl\{suffix}: truncated or damaged \w+ after [\d,]+ bytes"):
        texts(open_corpus(path))


def test_a_truncated_parquet_file_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a" * 1000] * 100}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FormatError, match=r"rows\.parquet: not a complete Parquet file"):
        texts(open_corpus(path))


def test_unreadable_sources_are_listed(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(ArgapError, match=r"found a\.png \(text with a suffix that is not read\); expected text, JSON"):
        open_corpus(tmp_path)
    with pytest.raises(ArgapError, match="no such file or folder"):
        open_corpus(tmp_path / "absent")


def test_what_is_removed_while_a_folder_is_read_is_named(tmp_path, monkeypatch):
    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/1234")

    (tmp_path / "a.txt").write_text("text")
    monkeypatch.setattr(files, "recognise", gone)
    with pytest.raises(ArgapError, match=r"found a\.txt \(gone since the folder was listed\)"):
        open_corpus(tmp_path)
    monkeypatch.setattr(Path, "rglob", gone)
    with pytest.raises(ArgapError, match="/x/1234 was removed while the folder was listed"):
        open_corpus(tmp_path)


def test_the_standard_library_splits_do_not_share_a_module():
    held_out = {d.source for d in open_corpus("stdlib:heldout") if isinstance(d, TextDocument)}
    train = {d.source for d in open_corpus("stdlib:train") if isinstance(d, TextDocument)}
    assert "argparse.py" in held_out
    assert "ast.py" in train
    assert not held_out & train
    with pytest.raises(ArgapError, match="expected stdlib:heldout or stdlib:train"):
        open_corpus("stdlib:test")


def test_a_data_set_is_streamed_through_datasets(tmp_path):
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"body": ["a", "b"], "domain": ["x", "y"]}), tmp_path / "set" / "train-0.parquet")
    corpus = open_corpus(f"hub:{tmp_path / 'set'}?split=train&column=body")
    assert [(d.text, d.domain) for d in corpus if isinstance(d, TextDocument)] == [("a", "x"), ("b", "y")]
    kept = open_corpus(f"hub:{tmp_path / 'set'}?column=body", keep=("domain", "other"))
    assert [d.kept["domain"] for d in kept if isinstance(d, TextDocument)] == ["x", "y"]
    assert list(kept.tally.columns) == ["body", "domain"]
    with pytest.raises(ArgapError, match=r"no text in column 'text'; its columns are 'body', 'domain'"):
        texts(open_corpus(f"hub:{tmp_path / 'set'}"))
    pq.write_table(pa.table({"body": ["a", None]}), tmp_path / "set" / "train-0.parquet")
    assert texts(corpus) == ["a", ""]  # as in every other format, null is an empty document
    pq.write_table(pa.table({"body": [["a"]]}), tmp_path / "set" / "train-0.parquet")
    with pytest.raises(ArgapError, match=r"set#0: column 'body' holds \[\"a\"\]; expected a string"):
        texts(open_corpus(f"hub:{tmp_path / 'set'}?column=body"))


@pytest.mark.parametrize("value", ["NaN", "3", '["a"]'])
def test_a_row_whose_text_is_not_text_is_named(tmp_path, value):
    (tmp_path / "rows.jsonl").write_text(f'{{"text": {value}, "domain": "x"}}\n')
    message = rf"rows\.jsonl, line 1: column 'text' holds {re.escape(value)}; expected a string"
    with pytest.raises(FormatError, match=message):
        texts(open_corpus(str(tmp_path / "rows.jsonl")))


@pytest.mark.parametrize("rows", [0, 1])
def test_a_hub_that_ends_the_stream_is_named(monkeypatch, rows):
    datasets = pytest.importorskip("datasets")

    def stream(*_, **__):
        yield from [{"text": "a"}] * rows
        raise ConnectionError("reset by peer\nat line 3")

    monkeypatch.setattr(datasets, "load_dataset", stream)
    with pytest.raises(ArgapError, match=r"^hub:some/name: the data set could not be read \(reset by peer\)$"):
        texts(open_corpus("hub:some/name"))


def test_hub_options_are_checked_before_anything_is_fetched():
    with pytest.raises(ArgapError, match="unknown option 'splits'; known ones are"):
        texts(open_corpus("hub:some/name?splits=train"))
