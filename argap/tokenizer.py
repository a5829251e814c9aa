"""The tokenizer of a checkpoint: text to ids, always the same way, and a fingerprint of how.

Text is encoded without special tokens being added *or recognised*: a literal ``<|endoftext|>`` in a
document is text (``add_special_tokens=False, split_special_tokens=True``).
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from argap.errors import ArgapError

# Must be set before the Rust library starts its pool; silences its warning when a process forks later.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class Tokenizer:
    """A Hugging Face fast tokenizer (``tokenizers.Tokenizer``) with the one encoding that argap uses."""

    def __init__(self, backend: Any, *, name: str, eos: int | None) -> None:
        self._backend = backend
        self._backend.encode_special_tokens = True  # what transformers calls split_special_tokens
        self._backend.no_truncation()
        self._backend.no_padding()
        self.name = name
        self.eos = eos
        """Id of the end-of-sequence token, or None where the tokenizer has none."""

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the sorted vocabulary, merges, normalizer and pre-tokenizer."""
        state = json.loads(self._backend.to_str())
        merges = [m.split(" ", 1) if isinstance(m, str) else list(m) for m in state["model"].get("merges", [])]
        parts = {
            "vocabulary": sorted(self._backend.get_vocab(with_added_tokens=True).items()),
            "merges": merges,
            "normalizer": state.get("normalizer"),
            "pre_tokenizer": state.get("pre_tokenizer"),
        }
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text, int32. The batch is spread over all cores by the Rust library."""
        encoded = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(e.ids, dtype=np.int32) for e in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a run of ids; bytes that are no UTF-8 come back as U+FFFD."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a local folder, a ``tokenizer.json`` file, or a hub id.

    Raises `ArgapError` where there is none, or only a slow one (argap needs the Rust tokenizers: they
    are parallel and their state can be fingerprinted).
    """
    import tokenizers

    path = Path(source)
    if path.name == "tokenizer.json" and path.is_file():
        path = path.parent
    name = str(source)
    if path.exists() and not (path / "tokenizer.json").is_file():
        raise ArgapError(
            f"{path}: no tokenizer.json there; expected a folder with a fast tokenizer "
            "(save one with `AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)`)"
        )
    if path.is_dir():
        try:
            backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:  # the Rust library raises bare Exception
            raise ArgapError(f"{path / 'tokenizer.json'}: not a readable tokenizer ({error})") from None
        return Tokenizer(backend, name=name, eos=_eos_of_folder(path, backend))

    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ArgapError(
            f"{name}: no such folder, and no tokenizer under that name on the hub ({_first_line(error)})"
        ) from None
    if not tokenizer.is_fast:
        raise ArgapError(f"{name}: only a slow tokenizer; expected one with a tokenizer.json")
    return Tokenizer(tokenizer.backend_tokenizer, name=name, eos=tokenizer.eos_token_id)


def _eos_of_folder(folder: Path, backend: Any) -> int | None:
    """The EOS id that ``tokenizer_config.json`` names, else the one that ``config.json`` gives."""
    for file, key in (("tokenizer_config.json", "eos_token"), ("config.json", "eos_token_id")):
        if not (folder / file).is_file():
            continue
        value = json.loads((folder / file).read_text(encoding="utf-8")).get(key)
        if isinstance(value, dict):  # an AddedToken written out
            value = value.get("content")
        if isinstance(value, list):
            value = value[0]
        if isinstance(value, str):
            value = backend.token_to_id(value)
        if value is not None:
            return int(value)
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
