"""Read GGUF files through transformers: configuration, dequantised weights, tokenizer.

A file is named ``FOLDER/NAME.gguf``, or on the hub ``OWNER/REPOSITORY/NAME.gguf``. The layout of its header is that of
ggml-org/ggml, docs/gguf.md.
"""

import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from argap.errors import ArgapError, FormatError, extra, first_line
from argap.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_in_memory

SUFFIX = ".gguf"
ADDING_BOS = frozenset(
    (
        *("chameleon", "falcon3", "falcon-h1", "jina-v5-nano", "lfm2", "llama3", "llama-bpe", "llama-v3"),
        *("midm-2.0", "pixtral", "tekken"),
    )
)
"""Pre-tokenizers with which llama.cpp (src/llama-vocab.cpp) puts a BOS before a text unless the file says otherwise."""


def is_gguf(source: str | Path) -> bool:
    """Return whether ``source`` names a GGUF file."""
    return str(source).lower().endswith(SUFFIX)


def check_gguf(path: Path) -> None:
    """Raise `FormatError` for a file that is not GGUF, and `ArgapError` if the package that reads it is missing."""
    with open(path, "rb") as file:
        if (magic := file.read(4)) != b"GGUF":
            raise FormatError(f"{path}: not a GGUF file (begins with {magic!r})")
    with extra("large"):
        import gguf  # noqa: F401


@cache
def gguf_config(path: Path) -> dict[str, Any]:
    """Return the configuration of the file as in transformers' ``config.json``.

    Raises `ArgapError` for an architecture that transformers does not read from GGUF.
    """
    from transformers import AutoConfig

    return _read(AutoConfig, path, "configuration").to_dict()


@cache
def gguf_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a ``tokenizer.json`` beside the file, else the file's own as transformers converts it."""
    if (path.parent / "tokenizer.json").is_file():
        made = load_tokenizer(path.parent, name=str(path))
    else:
        from transformers import AutoTokenizer

        made = tokenizer_in_memory(_read(AutoTokenizer, path, "tokenizer", "; give `tokenizer=T`"), str(path))
    _follow_rule(made, gguf_header(path))
    return made


def _follow_rule(tokenizer: Tokenizer, header: Mapping[str, Any]) -> None:
    """Give ``tokenizer`` the BOS of a file, and its rule for it: the one written there, else llama.cpp's default."""
    bos = header.get("tokenizer.ggml.bos_token_id", tokenizer.bos)
    model, pre = header.get("tokenizer.ggml.model"), header.get("tokenizer.ggml.pre")
    rule = header.get("tokenizer.ggml.add_bos_token", model in ("llama", "bert") or pre in ADDING_BOS)
    if isinstance(bos, int) and 0 <= bos < tokenizer.vocab_size:
        tokenizer.bos, tokenizer.adds_bos = bos, bool(rule)


def gguf_header(path: Path) -> dict[str, Any]:
    """Return the numbers, truth values and texts of a file's header by key; lists are skipped.

    Faster than the package ``gguf``, which makes an array of each entry of the vocabulary. Raises `FormatError` for a
    header that ends early or has values of an unknown type.
    """
    try:
        with open(path, "rb") as file:
            (_, version, _, count), found = struct.unpack("<4sIQQ", file.read(24)), {}
            for _ in range(count if version >= 2 else 0):  # version 1, of 2023, has shorter counts
                key = _text(file)
                found[key] = _value(file, *struct.unpack("<I", file.read(4)))
    except (struct.error, KeyError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise FormatError(f"{path}: its header is not one of a GGUF file ({error})") from None
    return {key: value for key, value in found.items() if value is not None}


NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Types of values in a header, as `struct` writes them."""
TEXT, LIST = 8, 9
"""Types of the other values."""


def _value(file: BinaryIO, kind: int) -> Any:
    """Read a value of type ``kind``, or skip it and return None if it is a list."""
    if kind == TEXT:
        return _text(file)
    if kind != LIST:
        number = f"<{NUMBERS[kind]}"
        return struct.unpack(number, file.read(struct.calcsize(number)))[0]
    inner, length = struct.unpack("<IQ", file.read(12))
    if inner in NUMBERS:
        file.seek(length * struct.calcsize(f"<{NUMBERS[inner]}"), 1)
        return None
    for _ in range(length):
        _value(file, inner)
    return None


def _text(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    return file.read(length).decode("utf-8", "replace")


def _read(reader: Any, path: Path, what: str, remedy: str = "") -> Any:
    """Read the file with a class of transformers, ``reader``."""
    check_gguf(path)
    try:
        return reader.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # the reader raises whatever the bytes lead to
        raise ArgapError(f"{path}: transformers cannot read its {what} ({first_line(error)}){remedy}") from None
