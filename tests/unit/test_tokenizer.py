"""Checkpoints that share a tokenizer through a pointer in ``tokenizer_config.json``."""

import json
import os
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import write_text
from argap.text import tokenizer as module
from argap.text.backend import load_backend
from argap.text.tokenizer import Tokenizer, copy_tokenizer, load_tokenizer, save_tokenizer, tokenizer_in_memory
from tests.conftest import exchanging, word_tokenizer


@pytest.fixture
def checkpoint(tmp_path, tokenizer) -> Path:
    """A checkpoint without a tokenizer, next to the ``tokenizer`` folder that it points to."""
    tokenizer.save(tmp_path / "tokenizer")
    return point(tmp_path / "checkpoint", "../tokenizer/tokenizer.json")


def point(folder: Path, target: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_file": target}))
    return folder


def test_a_folder_may_point_to_the_tokenizer_of_another(checkpoint, tokenizer):
    shared = load_tokenizer(checkpoint, name="mine")
    assert (shared.name, shared.eos, shared.fingerprint) == ("mine", tokenizer.eos, tokenizer.fingerprint)


def test_copying_a_shared_tokenizer_copies_its_files(checkpoint, tmp_path, tokenizer):
    (tmp_path / "copy").mkdir()
    save_tokenizer(checkpoint, tmp_path / "copy")
    assert (tmp_path / "copy" / "tokenizer.json").is_file()
    assert load_tokenizer(tmp_path / "copy").fingerprint == tokenizer.fingerprint


def test_a_file_that_is_exchanged_while_it_is_read_is_refused(tmp_path, tokenizer, monkeypatch):
    tokenizer.save(tmp_path)
    monkeypatch.setattr(module, "_LOADED", {})
    exchanging(module, "load_backend", tmp_path / "tokenizer.json", monkeypatch)
    with pytest.raises(MismatchError, match=r"tokenizer\.json: written again or removed while it was read; run the"):
        load_tokenizer(tmp_path)
    assert module._LOADED == {}


def test_equal_files_are_loaded_once_and_named_apart(tmp_path, monkeypatch):
    loaded, load = [], module.load_backend
    monkeypatch.setattr(module, "_LOADED", {})
    monkeypatch.setattr(module, "load_backend", lambda path: loaded.append(path.parent.name) or load(path))
    folders = [tmp_path / name for name in "abcd"]
    for folder in folders[:3]:
        word_tokenizer(["<e>", "x", "<u>"], unknown="<u>", eos="<e>").save(folder)
    word_tokenizer(["<e>", "x", "<u>"], unknown="<u>", eos="<u>").save(folders[3])
    a = load_tokenizer(folders[0])
    assert a.pieces[1].strip() == "x"
    b, c = map(load_tokenizer, folders[1:3])
    assert load_tokenizer(folders[0]) is a
    d = load_tokenizer(folders[3])
    assert loaded == ["a", "d"]
    assert [each.name for each in (a, b, c, d)] == list(map(str, folders))
    assert [each.eos for each in (a, b, c, d)] == [0, 0, 0, 2]
    assert c.pieces is a.pieces
    write_text(folders[1] / "tokenizer.json", (folders[1] / "tokenizer.json").read_text().replace('"x"', '"y"'))
    assert load_tokenizer(folders[1]).vocabulary != a.vocabulary
    for k in range(module.KEPT):
        word_tokenizer(["<e>", str(k)], unknown="<e>", eos="<e>").save(tmp_path / "more")
        load_tokenizer(tmp_path / "more")
    assert load_tokenizer(folders[0]) is not a
    assert loaded == ["a", "d", "b", *["more"] * module.KEPT, "a"]


def test_an_own_tokenizer_wins_over_the_pointer(checkpoint, tokenizer):
    tokenizer.save(checkpoint)
    assert load_tokenizer(point(checkpoint, "../gone/tokenizer.json")).fingerprint == tokenizer.fingerprint


def test_a_broken_pointer_is_named(checkpoint):
    with pytest.raises(FormatError, match=r"tokenizer_config\.json: expected the tokenizer at .*gone"):
        load_tokenizer(point(checkpoint, "../gone/tokenizer.json"))


@pytest.mark.parametrize("name", ["=1+1", "a" * 120, "a/b/c", "a\nb"])
def test_a_name_that_no_hub_takes_is_refused_in_one_line(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ArgapError, match="no tokenizer there, as a folder or on the hub"):
        load_tokenizer(name)


def test_a_tokenizer_that_has_gone_is_not_saved_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ArgapError, match=r"gone: no tokenizer there, as a folder or on the hub \("):
        save_tokenizer(tmp_path / "gone", tmp_path)


def test_without_a_network_only_the_cache_is_asked_and_nothing_waits(tmp_path, monkeypatch, tokenizer):
    def closed(*_, **__):
        raise OSError("the network is closed")

    def waits(_):
        raise AssertionError("waited for another try")

    monkeypatch.setattr("socket.create_connection", closed)
    monkeypatch.setattr("time.sleep", waits)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(
        ArgapError, match=r"^org/typo: no tokenizer there, as a folder or on the hub \(We couldn't connect"
    ):
        load_tokenizer("org/typo")
    (tmp_path / "models--org--cached" / "refs").mkdir(parents=True)
    (tmp_path / "models--org--cached" / "refs" / "main").write_text("a" * 40)
    tokenizer.save(tmp_path / "models--org--cached" / "snapshots" / ("a" * 40))
    assert load_tokenizer("org/cached").fingerprint == tokenizer.fingerprint


def test_an_absolute_path_is_not_followed(checkpoint, tmp_path):
    """A file on the hub may name a path of the machine that wrote it."""
    with pytest.raises(ArgapError, match="no tokenizer there"):
        load_tokenizer(point(checkpoint, str(tmp_path / "tokenizer" / "tokenizer.json")))


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_broken_tokenizer_config_is_named(tmp_path, tokenizer, text):
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(text)
    with pytest.raises(FormatError, match=r"tokenizer_config\.json: "):
        load_tokenizer(tmp_path / "tokenizer")


def test_tokenizers_of_checkpoints_are_found_as_transformers_finds_them(real_data):
    from transformers import AutoTokenizer

    ours = load_tokenizer(real_data / "gpt2")
    theirs = AutoTokenizer.from_pretrained(real_data / "gpt2")
    text = "Hakuna Matata <|endoftext|>\n\n  é ½ 漢字"
    expected = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert ours.encode([text])[0].tolist() == expected
    assert ours.eos == theirs.eos_token_id
    assert ours.vocab_size == len(theirs)


def write_words(folder: Path, vocabulary: dict[str, int]) -> None:
    """A tokenizer of words, w0 for unknown ones."""
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
    written = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(written))


@pytest.mark.parametrize("highest", [2**20 + 72, 2_000_000_000])
def test_an_id_far_above_the_others_is_refused(tmp_path, highest):
    """The library would list the ids between in memory, and end the process where that is too little."""
    vocabulary = {f"w{k}": k for k in range(71)}
    write_words(tmp_path, vocabulary | {"w71": highest})
    said = rf"tokenizer\.json: its highest id is {highest:,}, of 72 tokens; expected ids below 1,048,648$"
    with pytest.raises(FormatError, match=said):
        load_tokenizer(tmp_path)
    write_words(tmp_path, vocabulary | {"w71": 2**20 + 71})
    assert load_tokenizer(tmp_path).vocab_size == 2**20 + 72


def test_text_that_the_vocabulary_cannot_spell_is_refused(tmp_path):
    write_words(tmp_path, {"w1": 0})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode(["w1 w1"])[0].tolist() == [0, 0]
    for encode in (tokenizer.encode, tokenizer.encode_batch_spans, tokenizer.offsets):
        with pytest.raises(ArgapError, match=r"cannot encode the text \(WordLevel error: Missing \[UNK\] token"):
            encode(["w1 other"])
    with pytest.raises(ArgapError, match="cannot encode the text"):
        tokenizer.encode_spans("other")


def test_an_empty_vocabulary_is_refused(tmp_path):
    write_words(tmp_path, {})
    with pytest.raises(FormatError, match=r"tokenizer\.json: its vocabulary is empty"):
        load_tokenizer(tmp_path)


def with_one_id_for_two(tokenizer: Tokenizer, folder: Path) -> Path:
    """``et``, which merges need, takes the id of ``ar``: the library loads the file, and writes only one of them."""
    tokenizer.save(folder)
    state = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = state["model"]["vocab"]
    vocabulary["et"] = vocabulary["ar"]
    (folder / "tokenizer.json").write_text(json.dumps(state))
    return folder


def test_an_id_of_two_tokens_is_refused(tmp_path, tokenizer):
    folder = with_one_id_for_two(tokenizer, tmp_path)
    said = (
        r"tokenizer\.json: id \d+ of its vocabulary is both '(ar|et)' and '(et|ar)'; expected an id of its own for each"
    )
    with pytest.raises(FormatError, match=said):
        load_tokenizer(folder)


def test_a_tokenizer_that_the_library_does_not_take_back_is_refused_in_one_line(tmp_path, tokenizer):
    """Only a copy has what `Tokenizer.encode_batch_spans` needs, made when it is first called."""
    file = str(with_one_id_for_two(tokenizer, tmp_path) / "tokenizer.json")
    said = r"^mine: its tokenizer cannot be copied \(Token `(et|ar)` out of vocabulary"
    with pytest.raises(FormatError, match=said):
        tokenizer_in_memory(PreTrainedTokenizerFast(tokenizer_file=file), "mine")
    with pytest.raises(FormatError, match=said):
        Tokenizer(load_backend(Path(file)), name="mine", eos=None).encode_batch_spans(["a"])


def test_what_is_too_large_for_a_tokenizer_is_not_copied(tmp_path, tokenizer, monkeypatch):
    tokenizer.save(tmp_path)
    os.truncate(tmp_path / "tokenizer.json", 2**40)
    monkeypatch.setattr("shutil.copyfile", lambda *_: pytest.fail("copied"))
    with pytest.raises(FormatError, match=r"tokenizer\.json: 1,099,511,627,776 bytes; expected at most 536,870,912$"):
        copy_tokenizer(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(("eos", "expected"), [("w9", 9), (9, 9), (5, None), (10, None), (-1, None), (2**40, None)])
def test_an_eos_above_ids_without_a_token(tmp_path, eos, expected):
    write_words(tmp_path, {"w0": 0, "w1": 1, "w9": 9})
    file, key = ("tokenizer_config.json", "eos_token") if isinstance(eos, str) else ("config.json", "eos_token_id")
    (tmp_path / file).write_text(json.dumps({key: eos}))
    if expected is not None:
        assert load_tokenizer(tmp_path).eos == expected
        return
    with pytest.raises(FormatError, match=rf"config\.json: {key}: expected a token or an id below 10, found {eos}$"):
        load_tokenizer(tmp_path)
