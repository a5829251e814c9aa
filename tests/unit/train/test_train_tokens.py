"""Packed tokens: EOS after each document, repeats, fingerprint, cache."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from argap.errors import ArgapError, FormatError
from argap.text.tokenizer import load_tokenizer
from argap.train.config import DataSource
from argap.train.tokens import pack_tokens
from tests.conftest import flip_bit


@pytest.fixture
def two(tmp_path: Path) -> list[DataSource]:
    (tmp_path / "a.jsonl").write_text('{"text": "w1 w2"}\n{"text": ""}\n{"text": "w3"}\n')
    (tmp_path / "b.txt").write_text("w4 w5")
    return [DataSource(str(tmp_path / "a.jsonl"), repeat=2), DataSource(str(tmp_path / "b.txt"))]


def test_packing_matches_a_worked_example(two: list[DataSource], toy_tokenizer: Path, tmp_path: Path) -> None:
    packed = pack_tokens(two, load_tokenizer(toy_tokenizer), tmp_path / "cache")
    once = [1, 2, 60, 3, 60]  # the empty document is no document
    assert packed.ids.tolist() == [*once, *once, 4, 5, 60]
    assert packed.ids.dtype == np.dtype("<u2")
    assert packed.about.tokens == 13
    assert packed.about.documents == 5
    assert [source.tokens for source in packed.about.sources] == [10, 3]
    data = (packed.folder / "tokens.bin").read_bytes()
    assert packed.fingerprint == hashlib.sha256(data).hexdigest()


def test_repeats_longer_than_the_copy_buffer(
    two: list[DataSource], toy_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argap.train.tokens.COPY", 4)  # 10 bytes are copied as 4 + 4 + 2
    packed = pack_tokens([DataSource(two[0].path, repeat=3)], load_tokenizer(toy_tokenizer), tmp_path / "cache")
    assert packed.ids.tolist() == [1, 2, 60, 3, 60] * 3


def test_the_cache_is_reused_until_the_data_change(
    two: list[DataSource], toy_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(toy_tokenizer)
    first = pack_tokens(two, tokenizer, tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr("argap.train.tokens.token_documents", None)  # would fail if it packed again
        assert pack_tokens(two, tokenizer, tmp_path / "cache").fingerprint == first.fingerprint
    Path(two[1].path).write_text("w4 w5 w6")
    assert pack_tokens(two, tokenizer, tmp_path / "cache").about.tokens == 14
    assert pack_tokens(two[::-1], tokenizer, tmp_path / "cache").ids[0] == 4


def test_a_truncated_file_is_named(two: list[DataSource], toy_tokenizer: Path, tmp_path: Path) -> None:
    packed = pack_tokens(two, load_tokenizer(toy_tokenizer), tmp_path / "cache")
    path = packed.folder / "tokens.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(FormatError, match=r"tokens\.bin: 24 bytes, expected 26; remove"):
        pack_tokens(two, load_tokenizer(toy_tokenizer), tmp_path / "cache")


def test_a_flipped_bit_is_named(two: list[DataSource], toy_tokenizer: Path, tmp_path: Path) -> None:
    path = pack_tokens(two, load_tokenizer(toy_tokenizer), tmp_path / "cache").folder / "tokens.bin"
    flip_bit(path, 7)
    with pytest.raises(
        FormatError, match=r"tokens\.bin: damaged, its fingerprint is not the one in tokens\.json; remove"
    ):
        pack_tokens(two, load_tokenizer(toy_tokenizer), tmp_path / "cache")


def test_a_failed_source_leaves_no_files(two: list[DataSource], toy_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ArgapError, match=r"empty\.txt: no tokens; expected a corpus"):
        pack_tokens([*two, DataSource(str(tmp_path / "empty.txt"))], load_tokenizer(toy_tokenizer), tmp_path / "c")
    assert not [p for p in (tmp_path / "c").rglob("*") if p.is_file()]


def test_a_source_that_is_not_there_is_refused_before_any_is_read(
    two: list[DataSource], toy_tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArgapError, match=r"^nowhere: no such file or folder"):
        pack_tokens([*two, DataSource("nowhere")], load_tokenizer(toy_tokenizer), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_tokenizer_without_eos_is_refused(two: list[DataSource], toy_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((toy_tokenizer / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    with pytest.raises(ArgapError, match=r"no EOS token, .*; name one of its tokens as eos_token in"):
        pack_tokens(two, load_tokenizer(tmp_path), tmp_path / "cache")
