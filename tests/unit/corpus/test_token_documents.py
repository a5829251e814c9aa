"""Tokenizing a corpus into documents: order, EOS, empty documents, shards."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from argap.corpus import open_corpus, shards, tokenize
from argap.errors import ArgapError, FormatError
from argap.files import regular
from argap.text.tokenizer import load_tokenizer
from tests.builders.index import megatron_pair


def ids(corpus, tokenizer) -> list[list[int]]:
    return [d.ids.tolist() for d in tokenize.token_documents(corpus, tokenizer)]


def test_batches_keep_the_order_of_the_documents(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 10)
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text(f"def f{i}(x):\n" * (1 + i % 3))
    found = ids(open_corpus(tmp_path), tokenizer)
    assert [tokenizer.decode(document) for document in found] == [f"def f{i}(x):\n" * (1 + i % 3) for i in range(20)]


def test_a_long_document_is_announced_and_refused_beyond_the_memory(tmp_path, tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(tokenize, "LONG", 10)
    (tmp_path / "a.txt").write_text("0123456789a")
    assert len(ids(open_corpus(tmp_path), tokenizer)) == 1
    assert "a.txt: one document of 11 characters, whose tokenization takes about 0.0 GB" in capsys.readouterr().err
    monkeypatch.setattr(tokenize, "BYTES", 2**60)
    with pytest.raises(ArgapError, match=r"a\.txt: one document of 11 .* GB; split the text into documents"):
        ids(open_corpus(tmp_path), tokenizer)


def test_documents_without_tokens_are_skipped_and_counted(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("x")
    corpus = open_corpus(tmp_path / "a.txt")
    assert ids(corpus, tokenizer) == []
    corpus = open_corpus(tmp_path)
    assert len(ids(corpus, tokenizer)) == 1
    assert (corpus.tally.documents, corpus.tally.empty) == (1, 1)
    assert corpus.tally.remarks() == ["1 documents contain no token and were skipped"]


def test_an_eos_written_in_the_text_stays_text(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("x<|endoftext|>y")
    (document,) = ids(open_corpus(tmp_path), tokenizer)
    assert tokenizer.eos not in document
    assert tokenizer.decode(document) == "x<|endoftext|>y"


def test_an_eos_not_marked_special_also_stays_text(tmp_path, tokenizer):
    tokenizer.save(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["added_tokens"][0]["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    other = load_tokenizer(tmp_path)
    assert other.eos == tokenizer.eos
    assert other.fingerprint == tokenizer.fingerprint
    (ids,) = other.encode(["x<|endoftext|>y"])
    assert ids.tolist() == tokenizer.encode(["x<|endoftext|>y"])[0].tolist()
    assert other.eos not in ids


@pytest.mark.parametrize("form", ["bin", "bin32", "npy"])
def test_shards_are_split_at_eos(tmp_path, tokenizer, form, monkeypatch):
    monkeypatch.setattr(shards, "SCAN", 3)  # documents span the blocks that are searched
    eos = tokenizer.eos
    tokens = np.array([5, 6, 7, 8, eos, eos, 9, eos, 10, 11])
    path = tmp_path / ("tokens.npy" if form == "npy" else "tokens.bin")
    if form == "npy":
        np.save(path, tokens.astype(np.uint32))
    else:
        tokens.astype("<u4" if form == "bin32" else "<u2").tofile(path)
    corpus = open_corpus(path, token_dtype="uint32" if form == "bin32" else None)
    assert ids(corpus, tokenizer) == [[5, 6, 7, 8], [9], [10, 11]]


@pytest.mark.parametrize(("dtype", "code"), [(np.uint16, 8), (np.int32, 4), (np.int64, 5)])
def test_the_sequences_of_a_megatron_pair_are_documents(tmp_path, tokenizer, dtype, code):
    eos = tokenizer.eos
    sequences = [[5, 6, 7], [8, 9, eos], [], [10, eos, 11, 12]]
    megatron_pair(tmp_path / "part.bin", [np.array(s) for s in sequences], dtype, code)
    (tmp_path / "notes.txt").write_text("")
    for path in (tmp_path / "part.bin", tmp_path):
        corpus = open_corpus(path)
        assert ids(corpus, tokenizer) == [[5, 6, 7], [8, 9], [10], [11, 12]]
        assert corpus.tally.left_out == {}


def test_an_index_that_is_not_megatrons_is_refused_unless_the_type_is_given(tmp_path, tokenizer):
    np.array([5, 6], dtype="<u2").tofile(tmp_path / "part.bin")
    (tmp_path / "part.idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
    with pytest.raises(FormatError, match=r"part\.idx beside it is not Megatron's; give `token_dtype`"):
        open_corpus(tmp_path / "part.bin")
    assert ids(open_corpus(tmp_path / "part.bin", token_dtype="uint16"), tokenizer) == [[5, 6]]


def test_a_broken_pair_is_refused_before_it_is_read(tmp_path):
    megatron_pair(tmp_path / "part.bin", [np.array([1, 2])])
    index = tmp_path / "part.idx"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"part\.idx: .* is it truncated"):
        open_corpus(tmp_path / "part.bin")


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, "<u2"), (20240801, "<u4")])
def test_the_header_of_llm_c_is_not_read_as_tokens(tmp_path, tokenizer, magic, dtype):
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, 1, 4
    path = tmp_path / "fineweb_val_000000.bin"
    path.write_bytes(header.tobytes() + np.array([tokenizer.eos, 5, 6, 7], dtype).tobytes())
    assert ids(open_corpus(path), tokenizer) == [[5, 6, 7]]
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FormatError, match=r"its header \(llm\.c's\) announces"):
        ids(open_corpus(path), tokenizer)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_each_array_of_an_archive_is_a_shard(tmp_path, tokenizer, write):
    path = tmp_path / "tokens.npz"
    write(path, train=np.array([5, 6, tokenizer.eos, 7]), val=np.array([8, 60_000]))
    corpus = open_corpus(path)
    with pytest.raises(FormatError, match=r"tokens\.npz\[val\]: token 60000 at offset 1"):
        ids(corpus, tokenizer)
    write(path, train=np.array([5, 6, tokenizer.eos, 7]), val=np.array([8, 9], dtype=np.uint8))
    assert ids(open_corpus(path), tokenizer) == [[5, 6], [7], [8, 9]]
    write(path, weights=np.zeros((2, 2)))
    with pytest.raises(FormatError, match=r"tokens\.npz\[weights\]: expected a flat array of integers, found float64"):
        ids(open_corpus(path), tokenizer)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FormatError, match=r"tokens\.npz: not a complete \.npz archive"):
        ids(open_corpus(path), tokenizer)


def test_a_token_outside_the_vocabulary_is_named_by_path_and_offset(tmp_path, tokenizer):
    path = tmp_path / "tokens.bin"
    np.array([1, 2, 60_000, 3], dtype="<u2").tofile(path)
    with pytest.raises(FormatError, match=r"tokens\.bin: token 60000 at offset 2 is outside the vocabulary of 8192"):
        ids(open_corpus(path), tokenizer)


def test_a_truncated_shard_and_a_wrong_dtype_are_named(tmp_path, tokenizer):
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"\x01\x00\x02")
    with pytest.raises(FormatError, match=r"3 bytes are not a multiple of 2 \(uint16 tokens\)"):
        ids(open_corpus(path), tokenizer)
    with pytest.raises(ArgapError, match="expected uint16 or uint32"):
        open_corpus(path, token_dtype="int8")


def test_half_a_file_is_no_npy(tmp_path, tokenizer):
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(5))
    for content in (path.read_bytes()[:100], path.read_bytes()[:-1]):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"tokens\.npy: not a complete \.npy file \("):
            ids(open_corpus(path), tokenizer)


PLAIN = "{'descr': '<u2', 'fortran_order': False, 'shape': (8,), }"


@pytest.mark.parametrize(
    ("header", "refused"),
    [
        ("{'descr': ((", r"not a complete \.npy file \(.*EOF in multi-line statement"),
        ("{'descr': [], 'fortran_order': False, 'shape': (-1,), }", r"expected a flat array of integers, found \[\]"),
        (PLAIN.replace("<u2", "O"), r"expected a flat array of integers, found object \(8,\)"),
        (PLAIN.replace("8", "-1"), "not a complete .npy file .16 bytes for -1 elements"),
        (PLAIN.replace("8", "9"), "not a complete .npy file .16 bytes for 9 elements"),
        (PLAIN + " " * 9000, r"not a complete \.npy file \(version 1, a header of 9,0.. bytes"),
        ("9" * 5000, r"not a complete \.npy file \(Cannot parse header: '9{1,200}\)$"),
    ],
)
def test_a_header_that_is_no_flat_array_is_refused_in_one_line(tmp_path, tokenizer, header, refused):
    path = tmp_path / "tokens.npy"
    path.write_bytes(b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(16))
    with pytest.raises(FormatError, match=rf"tokens\.npy: {refused}"):
        ids(open_corpus(path), tokenizer)


def test_an_encrypted_archive_is_refused(tmp_path, tokenizer):
    path = tmp_path / "tokens.npz"
    np.savez(path, train=np.array([5, 6, 7]))
    written = bytearray(path.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        written[written.index(header) + flags] |= 1
    path.write_bytes(written)
    with pytest.raises(FormatError, match=r"tokens\.npz: train\.npy is encrypted; expected an archive without a pass"):
        ids(open_corpus(path), tokenizer)


def test_an_archive_that_unpacks_to_far_more_than_tokens_is_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(regular, "MOST_UNPACKED", 2**16)
    np.savez_compressed(tmp_path / "tokens.npz", train=np.zeros(2**21, np.uint16))
    with pytest.raises(FormatError, match=r"tokens\.npz: unpacks to more than 1,000 times its size"):
        ids(open_corpus(tmp_path / "tokens.npz"), tokenizer)


def test_a_sparse_file_is_refused_before_its_tokens_are_read(tmp_path):
    sparse = tmp_path / "tokens.bin"
    sparse.write_bytes(bytes(8192))
    os.truncate(sparse, 2**42)
    if holes_are_data(sparse):
        pytest.skip("a file system without holes")
    for source in (sparse, tmp_path):
        with pytest.raises(FormatError, match=r"tokens\.bin: a sparse file, of whose 4,398,.* bytes 8,192 are"):
            open_corpus(source)


def test_zeros_that_are_stored_are_no_hole_and_a_part_may_be_one(tmp_path, monkeypatch):
    monkeypatch.setattr(regular, "MOST_UNPACKED", 2**12)
    for stored, size in ((2**16, 2**16), (2**12, 2**20)):
        path = tmp_path / "tokens.bin"
        path.write_bytes(bytes(stored))
        os.truncate(path, size)
        regular.check_regular(path)


def holes_are_data(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        return not hasattr(os, "SEEK_HOLE") or file.seek(0, os.SEEK_HOLE) == path.stat().st_size


def test_an_empty_shard_has_no_documents(tmp_path, tokenizer):
    (tmp_path / "tokens.bin").write_bytes(b"")
    assert ids(open_corpus(tmp_path / "tokens.bin"), tokenizer) == []
