"""Read GGUF files through transformers: configuration, dequantised weights, tokenizer.

A file is named ``FOLDER/NAME.gguf``, or on the hub ``OWNER/REPOSITORY/NAME.gguf``.
"""

from functools import cache
from pathlib import Path
from typing import Any

from argap.errors import ArgapError, FormatError, extra, first_line
from argap.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_in_memory

SUFFIX = ".gguf"


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
        return load_tokenizer(path.parent, name=str(path))
    from transformers import AutoTokenizer

    return tokenizer_in_memory(_read(AutoTokenizer, path, "tokenizer", "; give `tokenizer=T`"), str(path))


def _read(reader: Any, path: Path, what: str, remedy: str = "") -> Any:
    """Read the file with a class of transformers, ``reader``."""
    check_gguf(path)
    try:
        return reader.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # the reader raises whatever the bytes lead to
        raise ArgapError(f"{path}: transformers cannot read its {what} ({first_line(error)}){remedy}") from None
