"""The tokenizer of a checkpoint: text to ids, always the same way, and a fingerprint of the encoding.

Text is encoded without special tokens being added *or recognised*: a literal ``<|endoftext|>`` in a document is text
(``add_special_tokens=False, split_special_tokens=True``).
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from argap.errors import ArgapError, FormatError, first_line, within
from argap.files.atomic import read_json, write_json, write_text
from argap.files.checksums import check_unchanged, sha256_of, versions_of
from argap.files.regular import check_regular, is_there
from argap.runtime.trust import is_trusted
from argap.text.backend import LARGEST, check_backend, copy_backend, load_backend, panics

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Set before the Rust library starts its pool, to silence its warning when a process forks later.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
"""The files that a tokenizer may consist of."""
GAPS = 2**20
"""Most ids without a token below the highest one: the Rust library lists them all in memory, and aborts the process if
memory runs out."""


class Tokenizer:
    """A Hugging Face fast tokenizer (``tokenizers.Tokenizer``) with the one encoding that argap uses."""

    def __init__(
        self, backend: Any, *, name: str, eos: int | None, bos: int | None = None, adds_bos: bool | None = None
    ) -> None:
        """Take over ``backend``; ``adds_bos``: what its files say of a BOS, if anything (`adds_bos`)."""
        before = _added_before(backend, name)
        self._backend = backend
        added = backend.get_added_tokens_decoder().get(eos)
        if added is not None and not added.special:  # an ordinary added token would be recognised in text
            self._backend.add_special_tokens([added.content])
        self._backend.encode_special_tokens = True  # what transformers calls split_special_tokens
        self._backend.no_truncation()
        self._backend.no_padding()
        self.name = name
        self.eos = eos
        """Id of the end-of-sequence token, or None where the tokenizer has none."""
        self.before = tuple(before)
        """Ids that the post-processor puts before a text."""
        self.bos = before[0] if len(before) == 1 else bos
        """Id of the beginning-of-sequence token, or None; the one that the post-processor puts first, if it does."""
        self.adds_bos = True if len(before) == 1 else adds_bos if adds_bos is None else adds_bos and bos is not None
        """Whether the tokenizer's own rule puts `bos` before a text: its post-processor, else its ``add_bos_token``.

        None if neither says so. A post-processor that adds nothing says nothing: transformers writes one by default.
        """

    def under(self, name: str) -> "Tokenizer":
        """Return the same tokenizer under another name, with what is computed so far."""
        if name == self.name:
            return self
        other = copy(self)
        other.name = name
        return other

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Id of every token as spelt in the vocabulary, added tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return max(self.vocabulary.values()) + 1

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of the special tokens, including EOS: those that stand for no text."""
        added = {i for i, token in self._backend.get_added_tokens_decoder().items() if token.special}
        return frozenset(added if self.eos is None else added | {self.eos})

    @cached_property
    def unknown(self) -> frozenset[int]:
        """Ids of the tokens for text that the tokenizer cannot spell; empty if it has none."""
        model = json.loads(self._backend.to_str())["model"]
        named = self.vocabulary.get(model.get("unk_token") or "", model.get("unk_id"))
        return frozenset() if named is None else frozenset([named])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the sorted vocabulary, merges, normalizer and pre-tokenizer."""
        state = json.loads(self._backend.to_str())
        merges = [m.split(" ", 1) if isinstance(m, str) else list(m) for m in state["model"].get("merges", [])]
        parts = {
            "vocabulary": sorted(self.vocabulary.items()),
            "merges": merges,
            "normalizer": state.get("normalizer"),
            "pre_tokenizer": state.get("pre_tokenizer"),
        }
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def pieces(self) -> list[str]:
        """The text of each id within a text; a piece of a character becomes U+FFFD.

        Some tokenizers drop the space before a token decoded alone, so each is decoded behind another.
        """
        ids = range(self.vocab_size)
        alone = self._backend.decode_batch([[i] for i in ids], skip_special_tokens=False)
        first = next((i for i in ids if i not in self.special and alone[i][-1:].isalnum() and alone[i].isascii()), None)
        if first is None:
            return alone
        behind = self._backend.decode_batch([[first, i] for i in ids], skip_special_tokens=False)
        start = alone[first]
        pairs = zip(alone, behind, strict=True)
        return [both.removeprefix(start) if both.startswith(start) else own for own, both in pairs]

    @cached_property
    def piece_bytes(self) -> list[bytes]:
        """The UTF-8 bytes of each id: those of `pieces`, or the raw bytes for pieces of characters."""
        spelled = {i: token for token, i in self.vocabulary.items()}
        pairs = enumerate(self.pieces)
        return [
            _bytes_of(spelled.get(i, "")) or text.encode() if "\ufffd" in text else text.encode() for i, text in pairs
        ]

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode each text to token ids, int32. The Rust library spreads the batch over all cores.

        Raises `ArgapError` for text that the vocabulary cannot spell, as the other encoding methods do.
        """
        encoded = self._encoded(self._backend.encode_batch_fast, texts)
        return [np.array(e.ids, dtype=np.int32) for e in encoded]

    def _encoded(self, encode: Callable[..., Any], text: str | Sequence[str]) -> Any:
        with panics(f"{self.name}: the tokenizer cannot encode the text"):
            return encode(text, add_special_tokens=False)

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token ids of a text, and where each token begins and ends in it (characters)."""
        encoded = self._encoded(self._backend.encode, text)
        return encoded.ids, encoded.offsets

    def encode_batch_spans(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return each text's token ids, int32 ``[N]``, and the characters that each token covers, int64 ``[N, 2]``."""
        encoded = self._encoded(self._untrimmed.encode_batch, texts)
        return [(np.array(e.ids, dtype=np.int32), np.array(e.offsets, dtype=np.int64).reshape(-1, 2)) for e in encoded]

    def offsets(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return where each token begins and ends in its text (characters), int64 ``[N, 2]`` per text, not decreasing.

        White space belongs to the token that holds it, even if the tokenizer's own post-processor trims it from the
        offsets; the parts of a character each get the whole character.
        """
        return [np.maximum.accumulate(spans, axis=0) for _, spans in self.encode_batch_spans(texts)]

    @cached_property
    def _untrimmed(self) -> Any:
        """The same tokenizer without its post-processor, which adds special tokens and trims offsets."""
        state = json.loads(self._backend.to_str())
        backend = copy_backend(json.dumps(state | {"post_processor": None}), self.name)
        backend.encode_special_tokens = True
        return backend

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` and the names of the EOS and BOS tokens, for `load_tokenizer`."""
        write_text(folder / "tokenizer.json", self._backend.to_str())
        named = {
            key: None if token is None else self._backend.id_to_token(token)
            for key, token in (("eos_token", self.eos), ("bos_token", self.bos))
            if token is not None or key == "eos_token"
        }
        rule = {} if self.adds_bos is None else {"add_bos_token": self.adds_bos}
        write_json(folder / "tokenizer_config.json", named | rule, seal=False)

    def token_text(self, token: int) -> str:
        """Return a token as spelt in the vocabulary; for a special token, the text that servers parse as it."""
        return self._backend.id_to_token(token) or ""

    def decode(self, ids: Iterable[int]) -> str:
        """Decode consecutive ids; bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)


def _added_before(backend: Any, name: str) -> list[int]:
    """Return the ids that a tokenizer's post-processor puts before a text.

    Raises `FormatError`, with the tokenizer's ``name``, for a template of tokens that it does not define.
    """
    waiting = [] if backend.post_processor is None else [json.loads(backend.post_processor.__getstate__())]
    found: list[int] = []
    for state in waiting:
        waiting += state.get("processors", ())  # of a sequence
        found += [state["cls"][1]] if "cls" in state else []  # BERT's and RoBERTa's
        for piece in takewhile(lambda piece: "SpecialToken" in piece, state.get("single", ())):  # a template
            token = piece["SpecialToken"]["id"]
            if token not in state["special_tokens"]:
                raise FormatError(f"{name}: its post-processor puts {token!r} before a text, which it does not define")
            found += state["special_tokens"][token]["ids"]
    return found


def _bytes_of(spelled: str) -> bytes:
    """Return the bytes of an entry of byte-level BPE (``Ã``) or of byte fallback (``<0xC3>``); empty for others."""
    if match := re.fullmatch(r"<0x([0-9A-F]{2})>", spelled):
        return bytes.fromhex(match[1])
    return bytes(BYTE_OF[c] for c in spelled) if all(c in BYTE_OF for c in spelled) else b""


def _byte_alphabet() -> dict[str, int]:
    """Map each character of byte-level BPE to its byte: printable Latin-1 to itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + k): byte for k, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()


def tokenizer_in_memory(tokenizer: "PreTrainedTokenizerBase", name: str | None = None) -> Tokenizer:
    """Copy a transformers tokenizer; ``name``: by default its own. Raises `ArgapError` for a slow one."""
    name = name or tokenizer.name_or_path or type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ArgapError(f"{name}: a slow tokenizer; expected one with a tokenizer.json")
    fast: Any = tokenizer
    backend = copy_backend(fast.backend_tokenizer.to_str(), name)
    # False is the default of transformers, and says nothing.
    adds_bos = True if getattr(fast, "add_bos_token", False) else None
    return Tokenizer(backend, name=name, eos=fast.eos_token_id, bos=fast.bos_token_id, adds_bos=adds_bos)


def load_tokenizer(source: str | Path, *, name: str | None = None) -> Tokenizer:
    """Load the tokenizer of a local folder, a ``tokenizer.json`` file, or a hub id.

    A folder may point to the tokenizer of another folder (`tokenizer_folder`), so that checkpoints share one file.
    ``name``: the tokenizer's name in messages and records; by default ``source``. Raises `ArgapError` if there is no
    tokenizer, or only a slow one (argap needs the Rust tokenizers: they run in parallel and have a fingerprint).
    """
    if not Path(source).is_dir():
        check_regular(Path(source), LARGEST)
    path = tokenizer_folder(Path(source))
    name = name or str(source)
    if path.is_dir() and is_there(path / "tokenizer.json"):
        return _from_folder(path, name)
    if path.exists():
        return _converted(str(path), name, offline=False)
    offline, downloaded = _is_offline(name), None
    with contextlib.suppress(Exception):  # of many types; transformers may still convert an older format
        downloaded = _download(name, offline=offline)
    return _converted(str(path), name, offline=offline) if downloaded is None else _from_folder(downloaded, name)


def tokenizer_folder(path: Path) -> Path:
    """Return the folder with the tokenizer files of ``path``, a folder or a ``tokenizer.json``.

    A folder without a ``tokenizer.json`` may share another folder's: its ``tokenizer_config.json`` then gives the
    relative path, as in ``{"tokenizer_file": "../../tokenizer/tokenizer.json"}``. Raises `FormatError` if nothing is
    there.
    """
    if path.name == "tokenizer.json" and path.is_file():
        return path.parent
    pointer = path / "tokenizer_config.json"
    if not path.is_dir() or is_there(path / "tokenizer.json") or not is_there(pointer):
        return path
    shared = read_json(pointer).get("tokenizer_file")
    if not isinstance(shared, str) or Path(shared).is_absolute():  # hub files may hold a path on their author's machine
        return path
    if not (path / shared).is_file():
        raise FormatError(f"{pointer}: expected the tokenizer at {path / shared}; no such file")
    return (path / shared).parent


def save_tokenizer(source: str | Path, folder: Path) -> None:
    """Save a tokenizer, given as a folder, a ``tokenizer.json`` or a hub id, to ``folder``."""
    path = Path(source)
    if path.exists():
        copy_tokenizer(path, folder)
        return
    _by_transformers(str(source), str(source)).save_pretrained(folder)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer files of ``source``, or those it points to (`tokenizer_folder`), into ``folder``."""
    source = tokenizer_folder(source)
    for name in FILES:
        if is_there(source / name):
            check_regular(source / name, LARGEST)
            shutil.copyfile(source / name, folder / name)


_LOADED: dict[str, tuple[tuple[int | None, int | None, bool | None], Tokenizer]] = {}
"""The last `KEPT` tokenizers of files, by the SHA-256 of ``tokenizer.json``, each with what other files say of it."""
KEPT = 4


def _from_folder(folder: Path, name: str) -> Tokenizer:
    """Load a tokenizer, or take it from another folder with the same file: a command's models often share one."""
    file = folder / "tokenizer.json"
    check_regular(file, LARGEST)
    versions = versions_of([file])
    digest = sha256_of(file)
    said, kept = _LOADED.get(digest, (None, None))
    backend = load_backend(file) if kept is None else kept._backend
    # The BOS in ``config.json`` may be the default of another vocabulary.
    named = _setting(folder / "tokenizer_config.json", "bos_token")
    bos = backend.token_to_id(named) if isinstance(named, str) else None
    adds_bos = _setting(folder / "tokenizer_config.json", "add_bos_token")
    asked = _eos_of_folder(folder, backend), bos, adds_bos if isinstance(adds_bos, bool) else None
    if kept is not None and said == asked:
        return kept.under(name)
    eos, bos, adds_bos = asked
    made = Tokenizer(load_backend(file) if kept else backend, name=name, eos=eos, bos=bos, adds_bos=adds_bos)
    if not made.vocabulary:
        raise FormatError(f"{folder / 'tokenizer.json'}: its vocabulary is empty")
    own: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    if len(spelled := {i: token for token, i in own.items()}) < len(own):
        token, i = next((token, i) for token, i in own.items() if spelled[i] != token)
        found = f"id {i:,} of its vocabulary is both {token!r} and {spelled[i]!r}"
        raise FormatError(f"{folder / 'tokenizer.json'}: {found}; expected an id of its own for each token")
    if made.vocab_size > (most := len(made.vocabulary) + GAPS):
        found = f"its highest id is {made.vocab_size - 1:,}, of {len(made.vocabulary):,} tokens"
        raise FormatError(f"{folder / 'tokenizer.json'}: {found}; expected ids below {most:,}")
    check_unchanged(versions)  # else that of another file would be kept under this digest
    _LOADED.pop(digest, None)
    while len(_LOADED) >= KEPT:
        _LOADED.pop(next(iter(_LOADED)), None)
    _LOADED[digest] = asked, made
    return made


def _is_offline(name: str) -> bool:
    """Return whether the hub cannot be reached, so that only its cache may have the tokenizer.

    One request is enough to tell; the downloads of huggingface_hub would wait and retry for over a minute in all.
    """
    from huggingface_hub import file_exists

    repository, _, revision = name.partition("@")
    try:
        file_exists(repository, "tokenizer.json", revision=revision or None)
    except (OSError, ValueError):  # the hub answered, or the name is invalid
        return False
    except Exception:  # from the HTTP client, which differs between versions
        return True
    return False


def _download(name: str, *, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = name.partition("@")
    fetch = partial(hf_hub_download, repository, revision=revision or None, local_files_only=offline)
    file = Path(fetch("tokenizer.json"))
    with contextlib.suppress(EntryNotFoundError):
        fetch("tokenizer_config.json")
    return file.parent


def _converted(source: str, name: str, *, offline: bool) -> Tokenizer:
    """Load a tokenizer that transformers reads or converts from an older format."""
    tokenizer = _by_transformers(source, name, offline=offline)
    if tokenizer.is_fast:
        check_backend(tokenizer.backend_tokenizer, name)
    return tokenizer_in_memory(tokenizer, name)


def _by_transformers(source: str, name: str, *, offline: bool = False) -> Any:
    """Load a tokenizer through transformers; bundled code runs only if the caller trusts the source.

    Raises `ArgapError`, naming the source ``name``, if there is none, or one that names code without trust.
    """
    from transformers import AutoTokenizer

    try:
        with within(name), panics("not a readable tokenizer"):
            return AutoTokenizer.from_pretrained(source, trust_remote_code=is_trusted(), local_files_only=offline)
    except (ArgapError, MemoryError):
        raise
    except Exception as error:  # transformers raises any type for values of another type
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            found = "the tokenizer runs code of its own; if you trust it, use `trust_remote_code=True`"
        else:
            found = f"no tokenizer there, as a folder or on the hub ({first_line(error)})"
        raise ArgapError(f"{name}: {found}") from None


def _setting(file: Path, key: str) -> Any:
    """Return the value of ``key`` in a JSON file, for a written-out AddedToken its text; None if absent."""
    value = read_json(file).get(key) if is_there(file) else None
    return value.get("content") if isinstance(value, dict) else value


def _eos_of_folder(folder: Path, backend: Any) -> int | None:
    """Return the EOS id named in ``tokenizer_config.json``, else the one in ``config.json``.

    Raises `FormatError` for an EOS that is not in the vocabulary.
    """
    for file, key in (("tokenizer_config.json", "eos_token"), ("config.json", "eos_token_id")):
        value = _setting(folder / file, key)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str):
            value = backend.token_to_id(value)
        if value is None:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 0 <= value < 2**32
            or backend.id_to_token(value) is None  # ids may have gaps
        ):
            size = 1 + max(backend.get_vocab().values(), default=-1)
            raise FormatError(f"{folder / file}: {key}: expected a token or an id below {size:,}, found {value!r}")
        return value
    return None
