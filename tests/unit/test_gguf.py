"""GGUF files: what is refused by name, how text is cut for byte-level BPE, dequantisation, and conversion."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from argap.checkpoints.convert import convert
from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.gguf.header import check_gguf, read_header
from argap.checkpoints.gguf.pre_tokenizers import RULES, pre_tokenizer
from argap.checkpoints.gguf.tokenizer import gguf_tokenizer
from argap.checkpoints.gguf.weights import AT_ONCE, dequantized
from argap.checkpoints.load import load_model
from argap.errors import ArgapError, FormatError
from argap.text.tokenizer import Tokenizer, load_tokenizer
from tests.builders.gguf_files import small_llama, write_gguf

TEXT = "He'LL pay 1234 dollars!!\n\n  Ok  "
CUT = {
    "gpt-2": "He|'|LL| pay| 1234| dollars|!!|\n\n | Ok|  ",
    "smollm": "He|'|LL| pay| |1|2|3|4| dollars|!!|\n\n | Ok|  ",
    "llama-bpe": "He|'LL| pay| |123|4| dollars|!!\n\n| | Ok|  ",
    "qwen2": "He|'LL| pay| |1|2|3|4| dollars|!!\n\n| | Ok|  ",
    "qwen35": "He|'LL| pay| |1|2|3|4| dollars|!!\n\n| | Ok|  ",
    "gpt-4o": "He'LL| pay| |123|4| dollars|!!\n\n| | Ok|  ",
    "tekken": "He|'LL| pay| |1|2|3|4| dollars|!!\n\n| | Ok|  ",
    "deepseek-llm": "He|'|LL| pay| |1234| dollars|!!|\n|\n| | Ok|  ",
    "deepseek-coder": "He|'|LL| pay| |1|2|3|4| dollars|!!|\n|\n| | Ok|  ",
    "deepseek-v3": "He|'LL| pay| |123|4| dollars|!!\n\n| | Ok|  ",
    "falcon": "He|'|LL| pay| |123|4| dollars|!!|\n\n | Ok|  ",
    "default": "He|'|LL| pay| |123|4| dollars|!!|\n\n | Ok|  ",
    "bloom": "He'LL| pay| 1234| dollars|!!\n\n | Ok|  ",
    "viking": "He'LL| pay| |1|2|3|4| dollars|!!\n\n | Ok|  ",
    "seed-coder": "He|'LL| pay| |1|2|3|4| dollars|!!|\n\n| | Ok|  ",
}
"""`TEXT` as each rule cuts it, by hand from the patterns."""


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gguf")
    tokenizer.save(place / "tokenizer")
    write_gguf(place / "eight.gguf", small_llama(), place / "tokenizer", add_bos=True, eight_bits=True)
    return place


@pytest.mark.parametrize("name", CUT)
def test_text_is_cut_as_llama_cpp_names_it(name: str) -> None:
    cutter: PreTokenizer = pre_tokenizer(RULES[name])
    pieces = [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in cutter.pre_tokenize_str(TEXT)]
    assert "|".join(pieces) == CUT[name]


def test_every_rule_compiles_and_is_one_of_those_above() -> None:
    text = TEXT + "é中文字 αΩ 한글 €5 x_y\t\r\n"
    known = {RULES[name].patterns for name in CUT}
    for rule in set(RULES.values()):
        assert rule.patterns in known
        assert "".join(TEXT[a:b] for _, (a, b) in pre_tokenizer(rule).pre_tokenize_str(TEXT)) == TEXT
        pre_tokenizer(rule).pre_tokenize_str(text)


def test_a_file_without_a_known_pre_tokenizer_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "eight.gguf").read_bytes()
    assert whole.count(b"gpt-2") == 1
    (tmp_path / "new.gguf").write_bytes(whole.replace(b"gpt-2", b"gpt-9"))
    with pytest.raises(ArgapError, match=r"new\.gguf: its pre-tokenizer 'gpt-9' is not one of those known: .*smollm"):
        gguf_tokenizer(tmp_path / "new.gguf")
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer" / "tokenizer.json").read_bytes())
    assert gguf_tokenizer.__wrapped__(tmp_path / "new.gguf").bos == 0


def test_the_files_tokenizer_is_that_of_its_folder(folder: Path, tokenizer: Tokenizer) -> None:
    made = gguf_tokenizer(folder / "eight.gguf")
    assert (made.before, made.bos, made.eos) == ((0,), 0, 0)
    assert made.special == tokenizer.special
    texts = [TEXT, "def f(x):\n    return x <|endoftext|> é中\n"]
    for own, theirs in zip(made.encode(texts), tokenizer.encode(texts), strict=True):
        np.testing.assert_array_equal(own, theirs)


@pytest.mark.parametrize("spelled", [":", "$"])
def test_a_bos_may_be_spelled_as_the_syntax_of_templates(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, spelled: str
) -> None:
    bos = tokenizer.vocabulary[spelled]
    whole, named = (folder / "eight.gguf").read_bytes(), text("tokenizer.ggml.bos_token_id")
    assert whole.count(named + struct.pack("<II", 4, 0)) == 1
    changed = whole.replace(named + struct.pack("<II", 4, 0), named + struct.pack("<II", 4, bos))
    (tmp_path / "bos.gguf").write_bytes(changed)
    gguf_tokenizer(tmp_path / "bos.gguf").save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").before == (bos,)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GGUF" + struct.pack(">I", 3), "version 50331648 of GGUF; expected little-endian files of version 2 or 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), "its header is not one of a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("w") + struct.pack("<I", 99), "w has 99 axes"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "a text of 4611686018427387904 bytes"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 2**62), "its header is not"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9999,
            "its header is not one of a GGUF file",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.alignment") + struct.pack("<II", 4, 0),
            "general.alignment: expected a positive number, found 0",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("w" * 9999) + struct.pack("<I", 99), "ww has 99 axes"),
    ],
)
def test_a_broken_header_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(FormatError, match=rf"x\.gguf: .*{said}") as raised:
        check_gguf(tmp_path / "x.gguf")
    assert len(str(raised.value)) < 500 + len(str(tmp_path))


def test_one_part_of_a_file_is_refused_with_the_command_that_joins_them(tmp_path: Path) -> None:
    split = text("split.count") + struct.pack("<IH", 2, 3)
    (tmp_path / "part.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + split)
    with pytest.raises(ArgapError, match=r"one of 3 parts; join them with `llama-gguf-split --merge"):
        check_gguf(tmp_path / "part.gguf")


def test_lists_are_read_when_asked_for(folder: Path) -> None:
    header = read_header(folder / "eight.gguf")
    tokens, types = header.read("tokenizer.ggml.tokens"), header.read("tokenizer.ggml.token_type")
    assert tokens is not None
    assert len(tokens) == header.lists["tokenizer.ggml.tokens"].length == 8192
    assert types is not None
    assert types[0] == 3
    assert header.read("tokenizer.ggml.scores") is None


@pytest.mark.parametrize("rows", [1, 7, 3 * AT_ONCE // 64 + 5])
def test_dequantisation_does_not_depend_on_how_rows_are_grouped(rows: int) -> None:
    gguf: Any = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.Q8_0
    weights = np.random.default_rng(0).standard_normal((rows, 64), dtype=np.float32)
    stored = gguf.quants.quantize(weights, kind)
    parts: list[int] = []
    found = dequantized(stored, kind, parts.append)
    assert (sum(parts), len(parts)) == (stored.nbytes, -(-rows // (AT_ONCE // 64)))
    np.testing.assert_array_equal(found, gguf.quants.dequantize(stored, kind))
    assert np.abs(found - weights).max() < np.abs(weights).max() / 127


@torch.no_grad()
def test_a_converted_file_is_one_that_plain_transformers_loads(folder: Path, tmp_path: Path) -> None:
    record = convert(str(folder / "eight.gguf"), tmp_path / "out")
    assert list(record.files) == ["eight.gguf"]
    ids = torch.arange(1, 40)[None]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ours = load_model(find_checkpoint(folder / "eight.gguf"), dtype=torch.float32, device="cpu")
    torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, rtol=0, atol=1e-5)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    own = gguf_tokenizer(folder / "eight.gguf")
    assert tokenizer(TEXT).input_ids == [0, *own.encode([TEXT])[0]]
    assert tokenizer(TEXT, add_special_tokens=False).input_ids == own.encode([TEXT])[0].tolist()
    with pytest.raises(ArgapError, match="not empty; choose another `out`"):
        convert(str(folder / "eight.gguf"), tmp_path / "out")


def test_weights_of_an_unknown_type_are_named(folder: Path, tmp_path: Path) -> None:
    whole, name = (folder / "eight.gguf").read_bytes(), text("blk.0.attn_q.weight")
    at = whole.index(name) + len(name) + 4 + 2 * 8  # behind the number of axes, and two of them
    assert struct.unpack_from("<I", whole, at) == (8,)
    (tmp_path / "odd.gguf").write_bytes(whole[:at] + struct.pack("<I", 77) + whole[at + 4 :])
    with pytest.raises(ArgapError, match=r"odd\.gguf: transformers cannot read its configuration \(77 is not a valid"):
        load_model(find_checkpoint(tmp_path / "odd.gguf"), dtype=torch.float32, device="cpu")
