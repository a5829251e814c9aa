"""Packed tokens (EOS after each document, repeats, fingerprint, cache) and the order of their windows."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from argap.errors import ArgapError, FormatError
from argap.text.tokenizer import load_tokenizer
from argap.train.config import DataSource
from argap.train.loop import Windows, epoch_order
from argap.train.tokens import pack_tokens
from tests.builders.index import megatron_pair
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


def test_another_text_of_the_same_size_and_time_is_packed_again(
    two: list[DataSource], toy_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    tokenizer, path = load_tokenizer(toy_tokenizer), Path(two[1].path)
    first = pack_tokens(two, tokenizer, tmp_path / "cache")
    before = path.stat()
    (new := tmp_path / "new.txt").write_text("w5 w4")
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    other = pack_tokens(two, tokenizer, tmp_path / "cache")
    assert f"{first.folder}: {path} has other contents now; packed again\n" in capsys.readouterr().err
    assert (other.folder, other.about.tokens) == (first.folder, first.about.tokens)
    assert other.fingerprint != first.fingerprint
    assert pack_tokens(two, tokenizer, tmp_path / "cache").fingerprint == other.fingerprint


def test_the_sequences_of_a_megatron_pair_are_documents(toy_tokenizer: Path, tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "part.bin", load_tokenizer(toy_tokenizer)
    for sequences, expected in (([[1, 2, 3], [4]], [1, 2, 3, 60, 4, 60]), ([[1, 2], [3, 4], []], [1, 2, 60, 3, 4, 60])):
        megatron_pair(path, [np.array(s) for s in sequences], np.int32, 4)  # the .bin stays the same
        assert pack_tokens([DataSource(str(path))], tokenizer, tmp_path / "cache").ids.tolist() == expected


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


def test_windows_match_a_worked_example() -> None:
    # 10 tokens, seq_len 3: windows 0-3, 3-6, 6-9; one more would need token 12.
    windows = Windows(np.arange(10, 20, dtype=np.uint16), seq_len=3, seed=0)
    assert windows.count == 3
    assert windows.numbered([0, 2]).tolist() == [[10, 11, 12, 13], [16, 17, 18, 19]]
    assert windows.numbered([0]).dtype == np.int64


def test_every_target_is_seen_once_per_epoch() -> None:
    windows = Windows(np.arange(31), seq_len=3, seed=5)
    targets = windows.in_training_order(0, 10)[:, 1:]
    assert sorted(targets.ravel().tolist()) == list(range(1, 31))


def test_each_epoch_has_another_order() -> None:
    windows = Windows(np.arange(31), seq_len=3, seed=5)
    first, second = epoch_order(10, 5, 0), epoch_order(10, 5, 1)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert epoch_order(10, 6, 0).tolist() != first.tolist()
    across = windows.in_training_order(7, 6)[:, 0] // 3
    assert across.tolist() == [*first[7:].tolist(), *second[:3].tolist()]


def test_order_is_the_same_on_every_machine() -> None:
    # Sorted Philox output, written down once: a change here changes every published run.
    assert epoch_order(8, 0, 0).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert epoch_order(8, 1, 2).tolist() == [4, 2, 0, 6, 1, 5, 7, 3]


def test_processes_split_a_step() -> None:
    windows = Windows(np.arange(1000), seq_len=7, seed=1)
    whole = windows.in_training_order(24, 8)
    parts = [windows.in_training_order(24 + 2 * rank, 2) for rank in range(4)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_data_shorter_than_a_window_are_refused() -> None:
    with pytest.raises(ArgapError, match="have 16 tokens; expected more than `seq_len`, 16"):
        Windows(np.arange(16), seq_len=16, seed=0)
