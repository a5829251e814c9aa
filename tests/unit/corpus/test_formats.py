"""A file is what its first bytes say: every kind that people have is read alike, and the rest refused before work."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

import argap
from argap.corpus import Corpus, jsonl, open_corpus
from argap.corpus.document import TextDocument
from argap.corpus.packed import HEAD
from argap.errors import ArgapError, FormatError

ROWS = [{"text": f'one "fish",\ntwo fish {"é" * n}', "id": n, "domain": n % 3} for n in range(30)]
TEXTS = [str(row["text"]) for row in ROWS]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
ARRAY = json.dumps(ROWS, ensure_ascii=False, indent=1).encode()


def texts(corpus: Corpus) -> list[str]:
    return [item.text for item in corpus if isinstance(item, TextDocument)]


def table_as_text(delimiter: str) -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(ROWS[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return file.getvalue().encode()


def arrow(*, stream: bool) -> bytes:
    table, sink = pa.Table.from_pylist(ROWS), io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return sink.getvalue()


def beyond(*, stream: bool) -> bytes:
    """An Arrow file whose second text begins a gigabyte after the first, far beyond the file."""
    sink, texts = io.BytesIO(), pa.table({"text": ["ab", "cd", "ef"]})
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, texts.schema) as writer:
        writer.write_table(texts)
    offsets = struct.pack("<4i", 0, 2, 4, 6)
    assert sink.getvalue().count(offsets) == 1
    return sink.getvalue().replace(offsets, struct.pack("<4i", 0, 2**30, 2**30 + 2, 2**30 + 4))


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue()


def feather() -> bytes:
    sink = io.BytesIO()
    pyarrow.feather.write_feather(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def lz4(data: bytes) -> bytes:
    return pa.Codec("lz4").compress(data, asbytes=True)


READ = {
    "rows.jsonl": LINES,
    "rows.json": LINES,
    "c4.00000-of-00001.json.gz": gzip.compress(LINES),
    "two-members.json.gz": gzip.compress(LINES[: len(LINES) // 2]) + gzip.compress(LINES[len(LINES) // 2 :]),
    "rows.jsonl.xz": lzma.compress(LINES),
    "two-streams.jsonl.xz": lzma.compress(LINES[:99]) + b"\0" * 8 + lzma.compress(LINES[99:]),
    "rows.jsonl.bz2": bz2.compress(LINES),
    "two-streams.jsonl.bz2": bz2.compress(LINES[:99]) + bz2.compress(LINES[99:]),
    "rows.jsonl.zst": zstd(LINES),
    "two-frames.jsonl.zst": zstd(LINES[:99]) + zstd(LINES[99:]),
    "rows.jsonl.lz4": lz4(LINES),
    "unpacked-by-a-browser.jsonl.gz": LINES,
    "packed-under-another-name.jsonl": gzip.compress(LINES),
    "padded.json.gz": gzip.compress(LINES) + bytes(10_240),
    "one-member-each.json.gz": b"".join(gzip.compress(line) for line in LINES.splitlines(keepends=True)),
    "rows-without-suffix": LINES,
    "rows.txt": LINES,
    "mark.jsonl": b"\xef\xbb\xbf" + LINES,
    "utf-16.jsonl": LINES.decode().encode("utf-16"),
    "array.json": ARRAY,
    "array.json.gz": gzip.compress(ARRAY),
    "array-without-suffix": json.dumps(ROWS).encode(),
    "texts.json": json.dumps(TEXTS).encode(),
    "jq.json": "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(),
    "rows.csv": table_as_text(","),
    "excel.csv": b"\xef\xbb\xbf" + table_as_text(";"),
    "rows.tsv.gz": gzip.compress(table_as_text("\t")),
    "rows.parquet": parquet(),
    "parquet-without-suffix": parquet(),
    "data-00000-of-00001.arrow": arrow(stream=True),
    "file.arrow": arrow(stream=False),
    "rows.feather": feather(),
}


@pytest.mark.parametrize("name", READ)
def test_every_kind_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(READ[name])
    corpus = open_corpus(path)
    assert texts(corpus) == TEXTS
    assert corpus.size is not None
    assert corpus.tally.bytes_read == pytest.approx(corpus.size, abs=16)
    if name != "texts.json":
        assert [item.domain for item in corpus] == [str(row["domain"]) for row in ROWS]
    if all(part not in name for part in (".txt", "without")):  # in a folder, too
        assert texts(open_corpus(tmp_path)) == TEXTS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt.gz", gzip.compress(b"one fish\n" * 4, mtime=0)),
        ("notes.txt.xz", lzma.compress(b"one fish\n" * 4)),
        ("notes.md.bz2", bz2.compress(b"one fish\n" * 4)),
        ("notes.zst", zstd(b"one fish\n" * 4)),
        ("mark.txt", b"\xef\xbb\xbf" + b"one fish\n" * 4),
        ("little.txt", ("one fish\n" * 4).encode("utf-16")),
        ("big.txt", b"\xfe\xff" + ("one fish\n" * 4).encode("utf-16-be")),
        ("unmarked.txt", ("one fish\n" * 4).encode("utf-16-le")),
        ("wide.txt.gz", gzip.compress(("one fish\n" * 4).encode("utf-32"), mtime=0)),
    ],
)
def test_plain_text_is_unpacked_and_recoded(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert texts(open_corpus(tmp_path / name)) == ["one fish\n" * 4]


@pytest.mark.parametrize(
    "text",
    [
        "GGUF, ORC and ID3 are formats.\n",
        "[link](to) a page\n",
        "{\n  a block in C\n}\n",
        '{"other": 1}\n',
        "PAR1, BZh, MZ and RIFF begin files\n",
        "%!PS\nOggS fLaC\n",
        "\x1b[31mred\x1b[0m\n",
        "日本語の本文\n" * 900,
    ],
)
def test_text_that_begins_like_something_else_stays_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.txt").write_text(text)
    assert texts(open_corpus(tmp_path / "notes.txt")) == [text]


def test_latin_1_with_few_accents_is_read_and_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes("un café au lait, très chaud".encode("latin-1"))
    corpus = open_corpus(tmp_path / "notes.txt")
    assert texts(corpus) == ["un caf\ufffd au lait, tr\ufffds chaud"]
    assert corpus.tally.invalid_utf8 == 1


def archive(write: Callable[[io.BytesIO], None]) -> bytes:
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def zipped(name: str) -> bytes:
    def write(sink: io.BytesIO) -> None:
        with zipfile.ZipFile(sink, "w") as file:
            file.writestr(name, "text " * 2000)

    return archive(write)


def tarred(sink: io.BytesIO) -> None:
    with tarfile.open(fileobj=sink, mode="w") as file:
        entry = tarfile.TarInfo("a.txt")
        entry.size = 2 * HEAD
        file.addfile(entry, io.BytesIO(b"text" * HEAD))


RANDOM = np.random.default_rng(0).bytes(HEAD)
CYRILLIC = ("Война и мир. " * 90).encode("cp1251")
UNREAD = {
    "book.zip": (zipped("book.txt"), "a zip archive"),
    "book.epub": (zipped("mimetype"), "a zip archive"),
    "pytorch_model.bin": (zipped("archive/data.pkl"), "a zip archive, in spite of its suffix"),
    "texts.tar": (archive(tarred), "a tar archive"),
    "texts.tar.gz": (gzip.compress(archive(tarred)), "gzip of a tar archive"),
    "book.7z": (b"7z\xbc\xaf\x27\x1c" + RANDOM, "a 7z archive"),
    "crawl.warc.gz": (gzip.compress(b"WARC/1.0\r\nWARC-Type: warcinfo\r\n"), "gzip of a WARC archive"),
    "paper.txt": (b"%PDF-1.7\n" + RANDOM, "a PDF document"),
    "letter.doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + RANDOM, "a document of Microsoft Office"),
    "letter.rtf": (b"{\\rtf1\\ansi text}", "an RTF document"),
    "figure.png": (b"\x89PNG\r\n\x1a\n" + RANDOM, "a picture"),
    "photo.txt": (b"\xff\xd8\xff\xe0" + RANDOM, "a picture"),
    "talk.ogg": (b"OggS\0" + RANDOM, "a picture, recording or video"),
    "program": (b"\x7fELF\x02\x01" + RANDOM, "an executable"),
    "program.exe": (b"MZ\x90\0\x03" + RANDOM, "an executable"),
    "rows.db": (b"SQLite format 3\0" + RANDOM, "a database"),
    "rows.h5": (b"\x89HDF\r\n\x1a\n" + RANDOM, "an HDF5 file"),
    "rows.pkl": (pickle.dumps(ROWS), "a pickle"),
    "rows.avro": (b"Obj\x01" + RANDOM, "Avro"),
    "model.safetensors": (save({"w": np.zeros(3)}), "a checkpoint"),
    "model.gguf": (b"GGUF\x03\0\0\0" + RANDOM, "a checkpoint"),
    "train.parquet": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    "error.parquet": (
        b"<!DOCTYPE html><p>Not found</p>",
        "text (b'<!DOCTYPE html>",
    ),
    "tokens.bin": (b"tokens they are not, but text\n", "text (b'tokens they are not, but' …), in spite of its suffix"),
    "tokens.bin.gz": (
        gzip.compress(np.arange(99, dtype="<u2").tobytes()),
        "gzip of a token file, which is read unpacked",
    ),
    "rows.parquet.gz": (gzip.compress(parquet()), "gzip of Parquet, which is read unpacked"),
    "twice.jsonl.gz": (gzip.compress(gzip.compress(LINES)), "gzip of gzip"),
    "pair.idx": (b"MMIDIDX\0\0" + bytes(40), "the index of a Megatron pair, which is read with its .bin"),
    "noise.dat": (RANDOM, "no text in UTF-8 (it begins with"),
    "old.txt": (CYRILLIC, "no text in UTF-8 (it begins with"),
}
"""Name, bytes and what is said of them; alone they are refused, in a folder left out."""
BROKEN = {
    "half.jsonl.gz": (gzip.compress(LINES)[:-20], "truncated or damaged gzip"),
    "hole.jsonl.gz": (gzip.compress(LINES) + bytes(2**22), "over 1,048,576 zeros behind the end of the stream"),
    "hole.txt.xz": (lzma.compress(LINES) + bytes(2**22), "over 1,048,576 zeros behind the end of the stream"),
    "half.txt.xz": (lzma.compress(LINES)[:-20], "truncated or damaged xz"),
    "garbage.jsonl.xz": (lzma.compress(LINES) + b"garbage", "truncated or damaged xz"),
    "half.jsonl.bz2": (bz2.compress(LINES)[:-20], "truncated or damaged bzip2"),
    "garbage.jsonl.gz": (gzip.compress(LINES) + b"garbage", "truncated or damaged gzip"),
    "half.arrow": (arrow(stream=True)[:-400], "not a complete Arrow file"),
    "half-file.arrow": (arrow(stream=False)[:-20], "not a complete Arrow file"),
    "beyond.arrow": (beyond(stream=True), "offset for slot 1 out of bounds"),
    "beyond-file.arrow": (beyond(stream=False), "offset for slot 1 out of bounds"),
    "half.parquet": (parquet()[:-20], "not a complete Parquet file"),
    "half.txt": (b"\xff\xfea\0b\0c", "not complete UTF-16"),
    "half.json": (ARRAY[:-4], "item 30: not JSON"),
    "open.json": (ARRAY[:-1], "the array does not end after item 30"),
    "comma.json": (b'["a" "b"]', "item 2: not JSON (expected a comma"),
    "two.json": (b'["a"] ["b"]', "'[' after item 1; expected one array"),
    "strings.jsonl": (b'"a"\n"b"\n', "line 1: expected an object, found str"),
    "deep.json": (b"[" + b"[" * 10**5, "item 1: not JSON (nested too deeply)"),
    "other.jsonl": (b'{"content": "a", "id": 1}', "no text in column 'text'; its columns are 'content', 'id'"),
    "inside.jsonl": (b'{"data": {"text": "a", "id": 1}}', "its columns are 'data' (with 'text', 'id')"),
    "later.jsonl": (
        b'{"text": "a"}\n{"content": "b"}\n',
        "line 2: no text in column 'text'; its columns are 'content'",
    ),
    "columns.jsonl": (b'{"text": ["a", "b"]}', "column 'text' holds"),
    "open.csv": (b'text,id\n"one,1\ntwo,2\n', "not CSV (unexpected end of data)"),
    "return.csv": (b"te\rxt,id\none,1\n", "line 1: not CSV"),
    "quotes.csv": (b'text,id\n"one"fish,1\n', "line 2: not CSV"),
    "ragged.csv": (b"text,id\none,1\ntwo\n", "line 3: 1 fields; expected 2, as in the header"),
}
"""The same of files that are refused wherever they are, at the latest when they are read to their end."""
NO_TEXT = {
    "dictionary.json": (b'{"data": [1, 2]}', "no text in column 'text'; its columns are 'data'"),
    "pretty.json": (b'{\n "a": 1,\n "b": 2\n}\n', "item 1: no text in column 'text'; its columns are 'a', 'b'"),
    "vocab.json": (json.dumps(dict.fromkeys(map(str, range(99)), 1)).encode(), "'10', '11' and 87 more"),
    "numbers.json": (b"[1, 2]", "item 1: expected an object, found int"),
    "comments.json": (b"// settings\n{}", "line 1: not JSON"),
    "other.csv": (b"content;id\na;1\n", "no text in column 'text'; its columns are 'content', 'id'"),
}
"""JSON and CSV that a folder may hold beside the text."""


@pytest.mark.parametrize("name", UNREAD | NO_TEXT | BROKEN)
def test_the_rest_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, message = (UNREAD | NO_TEXT | BROKEN)[name]
    (tmp_path / name).write_bytes(content)
    read = texts if name in BROKEN else lambda corpus: pytest.fail("not refused when it was opened")
    with pytest.raises(FormatError) as error:
        read(open_corpus(tmp_path / name))
    assert str(error.value).startswith(f"{tmp_path / name}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_names_what_it_leaves_out(tmp_path: Path) -> None:
    for name, (content, _) in (UNREAD | NO_TEXT).items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ArgapError, match=r"no file that can be read as a corpus; found book\.7z \(a 7z archive\), "):
        open_corpus(tmp_path)
    (tmp_path / "rows.jsonl").write_bytes(LINES)
    (tmp_path / "notes.yaml").write_text("left: out")
    corpus = open_corpus(tmp_path)
    assert texts(corpus) == TEXTS
    assert set(corpus.tally.left_out) == {*UNREAD, *NO_TEXT, "notes.yaml"}
    (remark,) = corpus.tally.remarks()
    left_out = len(UNREAD | NO_TEXT) + 1
    assert remark.startswith(f"{left_out} files were left out: book.7z (a 7z archive), book.epub (a zip archive), ")
    assert remark.endswith(f" and {left_out - 5} more")


@pytest.mark.parametrize("name", ["other.jsonl", "half.parquet", "half.jsonl.gz"])
def test_a_folder_leaves_out_no_broken_text(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(LINES)
    (tmp_path / name).write_bytes(BROKEN[name][0])
    with pytest.raises(FormatError, match=name):
        texts(open_corpus(tmp_path))


def test_a_folder_leaves_out_nothing_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(LINES)
    (tmp_path / "other.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(FormatError, match=r"other\.jsonl: a link to nothing; expected a file"):
        open_corpus(tmp_path)
    (tmp_path / "other.jsonl").unlink()
    os.mkfifo(tmp_path / "other.jsonl")
    with pytest.raises(FormatError, match=r"other\.jsonl: a pipe; expected a file"):
        open_corpus(tmp_path)
    (tmp_path / "other.jsonl").unlink()
    (tmp_path / "other.jsonl").symlink_to("/proc/kmsg")  # blocks once it is read
    with pytest.raises(FormatError, match=r"other\.jsonl: made by the system as it is read"):
        open_corpus(tmp_path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "csv"])
def test_null_is_an_empty_document_in_every_format(tmp_path: Path, kind: str) -> None:
    rows = [{"text": "a", "n": 1}, {"text": None, "n": 2}, {"text": "b", "n": 3}]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        path.write_text("text,n\na,1\n,2\nb,3\n")
    else:
        (pq.write_table if kind == "parquet" else pyarrow.feather.write_feather)(pa.Table.from_pylist(rows), path)
    corpus = open_corpus(path)
    assert texts(corpus) == ["a", "", "b"]
    assert corpus.tally.null == 1
    assert corpus.tally.remarks() == ["1 documents have null for text and were skipped"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("values", "domains"),
    [([0, 1, None], ["0", "1", "rows"]), ([False, True], ["False", "True"]), (["", "a"], ["", "a"])],
)
def test_a_falsy_domain_is_a_domain(tmp_path: Path, kind: str, values: list[object], domains: list[str]) -> None:
    rows = [{"text": "a", "domain": value} for value in values]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        (pq.write_table if kind == "parquet" else pyarrow.feather.write_feather)(pa.Table.from_pylist(rows), path)
    assert [item.domain for item in open_corpus(path)] == domains


def test_columns_are_kept_of_every_table(tmp_path: Path) -> None:
    for name in ("rows.csv", "array.json", "data-00000-of-00001.arrow", "rows.parquet"):
        (tmp_path / name).write_bytes(READ[name])
        corpus = open_corpus(tmp_path / name, keep=("id",))
        kept = [item.kept["id"] for item in corpus if isinstance(item, TextDocument)]
        assert [int(value) for value in kept] == list(range(30))
    (tmp_path / "notes.txt.gz").write_bytes(gzip.compress(b"text"))
    with pytest.raises(ArgapError, match="has no column 'id' to `keep`"):
        open_corpus(tmp_path / "notes.txt.gz", keep=("id",))
    with pytest.raises(FormatError, match=r"rows\.csv: no column 'none' to `keep`; its columns are 'text', 'id'"):
        open_corpus(tmp_path / "rows.csv", keep=("none",))


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
@pytest.mark.parametrize("twice", ["text", "domain", "id"])
def test_a_column_twice_is_refused(tmp_path: Path, kind: str, twice: str) -> None:
    names, path = ["text", "domain", "id", twice], tmp_path / f"rows.{kind}"
    table = pa.Table.from_arrays([pa.array(["a"])] * 4, names=names)
    if kind == "csv":
        path.write_text(f"{','.join(names)}\na,a,a,a\n")
    else:
        (pq.write_table if kind == "parquet" else pyarrow.feather.write_feather)(table, path)
    with pytest.raises(FormatError, match=rf"rows\.{kind}: two columns {twice}"):
        list(open_corpus(path, keep=("id",)))


def test_a_book_is_a_field(tmp_path: Path) -> None:
    limit, book = csv.field_size_limit(), "word " * 40_000
    (tmp_path / "books.csv").write_text(f'text,id\n"{book}",1\n')
    assert texts(open_corpus(tmp_path / "books.csv")) == [book]
    assert csv.field_size_limit() == limit  # others count on it


def test_a_saved_data_set_is_read_without_its_caches(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"test": split, "train": split}).save_to_disk(tmp_path / "set")
    corpus = open_corpus(tmp_path / "set")
    assert texts(corpus) == TEXTS * 2
    assert corpus.tally.remarks() == []
    (tmp_path / "set" / "train" / "cache-0123.arrow").write_bytes(READ["data-00000-of-00001.arrow"])
    corpus = open_corpus(tmp_path / "set" / "train")
    assert texts(corpus) == TEXTS
    assert corpus.tally.remarks() == ["1 file was left out: cache-0123.arrow (a cache of `datasets`)"]
    (tmp_path / "set" / "train" / "state.json").unlink()  # as in the folder where `load_dataset` caches
    assert open_corpus(tmp_path / "set" / "train").tally.left_out == corpus.tally.left_out


def test_the_sign_for_invalid_bytes_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufffd\ufffd", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"\xfd\xfc\xfb\xf9")
    corpus = open_corpus(tmp_path)
    assert texts(corpus) == ["\ufffd\ufffd"]
    assert corpus.tally.remarks()[0].startswith("1 file was left out: b.txt (no text in UTF-8")


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_an_array_is_read_in_pieces(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "PIECE", piece)
    path = tmp_path / "rows.json"
    path.write_bytes(b' [ {"text": "\\u00e9 \\ud83d\\ude00 \xc3\xa9", "n": [1.5e3, true]} , {"text": "\xff"} ] \n')
    corpus = open_corpus(path)
    assert texts(corpus) == ["\xe9 \U0001f600 \xe9", "\ufffd"]
    assert corpus.tally.invalid_utf8 == 1


def test_a_text_is_refused_before_checkpoints_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "figure.png").write_bytes(UNREAD["figure.png"][0])
    with pytest.raises(FormatError, match=r"figure\.png: a picture"):
        argap.score(["no/model"], reference="no/reference", data=[tmp_path / "figure.png"], out=tmp_path / "out")
