"""Packed training tokens: all documents, each followed by one EOS, in one flat array on disk.

``tokens.bin`` is headerless little-endian (uint16 if the vocabulary fits, else uint32); ``tokens.json`` describes it.
Their folder is named for the data and the tokenizer, so that the models of a suite share it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from argap.corpus import Corpus, megatron, open_corpus, say_remarks
from argap.corpus.shards import smallest_dtype
from argap.corpus.tokenize import token_documents
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import replacing
from argap.files.checksums import Version, sha256_of, version_of
from argap.files.regular import is_there
from argap.files.remedies import remedy_for
from argap.records import read_record, write_record
from argap.runtime.progress import say
from argap.text.tokenizer import Tokenizer
from argap.train.config import DataSource
from argap.train.records import CorpusRecord, TextRecord, TokensRecord, TrainRecord

COPY = 16 * 2**20  # bytes per read when a repeated source is copied
READING = 2
"""Counts up when the same files become other documents, so that tokens read the earlier way are not reused."""


@dataclass(frozen=True)
class TokenFile:
    """A ``tokens.bin`` and its ``tokens.json``."""

    folder: Path
    about: TokensRecord

    @cached_property
    def ids(self) -> np.ndarray:
        """All token ids, ``[N]``, memory-mapped."""
        return np.memmap(self.folder / "tokens.bin", dtype=self.about.dtype, mode="r")

    @property
    def fingerprint(self) -> str:
        return self.about.fingerprint


def pack_tokens(sources: Sequence[DataSource], tokenizer: Tokenizer, cache: Path) -> TokenFile:
    """Return the token file of ``sources`` below ``cache``, written if missing.

    Memory use is independent of the corpus size. Raises `ArgapError` for a tokenizer without EOS and for a source that
    is unreadable or empty.
    """
    if tokenizer.eos is None:
        raise ArgapError(
            f"{tokenizer.name}: the tokenizer has no EOS token, which must separate training documents; name one of "
            "its tokens as eos_token in its tokenizer_config.json"
        )
    folder = cache / _key(sources, tokenizer)
    if is_there(folder / "tokens.json"):
        packed = open_tokens(folder)
        changes = [f"{source.path} {change}" for source in packed.about.sources if (change := _change(source))]
        if not changes:
            return packed
        say(f"{folder}: {'; '.join(changes)}; packed again")
    dtype = smallest_dtype(tokenizer.vocab_size)
    # All are opened before the first is read, so that a wrong path wastes no tokenization.
    corpora = [open_corpus(source.path, text_column=source.text_column) for source in sources]
    with replacing(folder / "tokens.bin") as temporary, open(temporary, "w+b") as file:
        digest = hashlib.sha256()
        parts = [
            _write_source(file, digest, source, corpus, tokenizer, tokenizer.eos, dtype)
            for source, corpus in zip(sources, corpora, strict=True)
        ]
        file.flush()
        (folder / "tokens.json").unlink(missing_ok=True)  # a kill must not leave it beside other tokens
    about = TokensRecord(
        tokens=sum(part.tokens for part in parts),
        documents=sum(part.documents for part in parts),
        fingerprint=digest.hexdigest(),
        dtype=dtype,
        eos=tokenizer.eos,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        sources=parts,
    )
    write_record(folder / "tokens.json", about)
    return open_tokens(folder)


def open_tokens(folder: Path) -> TokenFile:
    """Open an existing token file. Raises `FormatError` if it does not match its JSON."""
    about = read_record(folder / "tokens.json", TokensRecord)
    path = folder / "tokens.bin"
    expected = about.tokens * np.dtype(about.dtype).itemsize
    size = path.stat().st_size if is_there(path) else 0
    if size != expected:
        raise FormatError(f"{path}: {size} bytes, expected {expected}{remedy_for(path)}")
    if sha256_of(path) != about.fingerprint:
        raise FormatError(f"{path}: damaged, its fingerprint is not the one in tokens.json{remedy_for(path)}")
    return TokenFile(folder, about)


def _write_source(
    file: IO[bytes], digest: Any, source: DataSource, corpus: Corpus, tokenizer: Tokenizer, eos: int, dtype: str
) -> CorpusRecord:
    """Append the documents of ``source``, ``source.repeat`` times; tokenized once, then copied."""
    start, tokens = file.tell(), 0
    for document in token_documents(corpus, tokenizer):
        data = np.append(document.ids, eos).astype(dtype).tobytes()
        digest.update(data)
        file.write(data)
        tokens += len(document.ids) + 1
    if not tokens:
        raise ArgapError(f"{source.path}: no tokens; expected a corpus to train on")
    length = file.tell() - start
    for _ in range(source.repeat - 1):
        for offset in range(0, length, COPY):
            file.seek(start + offset)
            data = file.read(min(COPY, length - offset))
            digest.update(data)
            file.seek(0, 2)
            file.write(data)
    say_remarks([corpus])
    documents = corpus.tally.documents * source.repeat
    counts = tokens * source.repeat, documents
    return CorpusRecord(source.path, source.repeat, source.text_column, *counts, _text_of(corpus.files))


def check_text(record: TrainRecord, where: object, remedy: str) -> None:
    """Raise `MismatchError` if a local text of a run has changed since it was packed; one that is gone passes.

    ``where``: what was trained on it. ``remedy``: what to do about it. Raises as `open_corpus` for a text that cannot
    be read any more.
    """
    for source in (*record.data.sources, *(record.eval_data.sources if record.eval_data else ())):
        if (change := _change(source)) is not None:
            raise MismatchError(f"{where}: was trained on {source.path}, which {change}; {remedy}")


def _change(source: CorpusRecord) -> str | None:
    """Return how a local text has changed since it was packed, in words; None if it has not, or is gone."""
    if (was := source.text) is None:
        return None
    found = tuple((file, version_of(file)) for file in _local_files(source.path))
    if not found:
        return None
    now = _text_of(_files_read(source.path, source.text_column, found))
    if now is None or now == was:
        return None
    return f"had {was.bytes:,} bytes and has {now.bytes:,} now" if now.bytes != was.bytes else "has other contents now"


@lru_cache
def _files_read(path: str, text_column: str, found: tuple[tuple[Path, Version | None], ...]) -> tuple[Path, ...]:
    """Return the files of a source that are read; ``found``: all files in its folder, with their versions."""
    return open_corpus(path, text_column=text_column).files


def _text_of(files: Sequence[Path]) -> TextRecord | None:
    """Return the record of local files, which are read; None for none."""
    if not files:
        return None
    contents = hashlib.sha256("".join(_sha256(file, version_of(file)) for file in files).encode()).hexdigest()
    return TextRecord(sum(file.stat().st_size for file in files), contents)


@lru_cache(maxsize=10_000)
def _sha256(file: Path, version: Version | None) -> str:
    """Return `sha256_of` a file, which is read once per ``version``."""
    return sha256_of(file)


def _key(sources: Sequence[DataSource], tokenizer: Tokenizer) -> str:
    """Hash data and tokenizer; covers names and sizes of local files, so most edits change it (`_change` sees all)."""
    identity = [[source.repeat, source.text_column, _contents(source.path)] for source in sources]
    text = json.dumps([READING, identity, tokenizer.fingerprint, tokenizer.eos])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _contents(spec: str) -> list[Any]:
    if spec.startswith("stdlib:"):
        from argap.corpus import stdlib

        files = stdlib.modules(spec.removeprefix("stdlib:"))
    else:
        files = _local_files(spec)
    return [spec, [[path.as_posix(), path.stat().st_size] for path in files]]


def _local_files(path: str) -> list[Path]:
    """Return the files of a source and others beside them in its folder; none if it is not local, or gone."""
    root = Path(path)
    of_file = [root, *([root.with_suffix(".idx")] if megatron.is_pair(root) else [])]
    return of_file if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
