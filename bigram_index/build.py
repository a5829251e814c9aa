"""Build an index on disk from documents of tokens, or from a corpus of text and token files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from argap.atomic import replacing_folder
from argap.bigram_index.count import BigramCounter, chunk_tokens
from argap.bigram_index.manifest import check_multiplier, refuse_existing
from argap.bigram_index.store import BigramIndex, open_index, write_index
from argap.bigram_index.token_cache import cached_tokens
from argap.bigram_index.token_source import TokenSource
from argap.errors import ArgapError

Progress = Callable[[int, int], None]
"""Called from time to time with the documents and tokens counted so far."""


def build_index(
    documents: Iterable[np.ndarray],
    out: Path,
    *,
    vocab_size: int,
    tokenizer: str,
    tokenizer_fingerprint: str,
    sources: list[str],
    memory: int | None = None,
    passes: float = 1.0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BigramIndex:
    """Count the bigrams of ``documents`` and write the index ``out``.

    Each document is `[N]` token ids of any integer type. Bigrams never cross documents: a document of one token adds
    a token and no bigram, an empty one is skipped and counted as empty. The folder appears whole or not at all.
    ``memory``: bytes the process may use (default 2 GB); what does not fit is spilled beside ``out``. ``passes``: how
    often the training run reads the documents.

    Raises `ArgapError` for a corpus without a token, for an existing index (unless ``overwrite``), for ``passes`` of 0
    or less, and where the disk refuses; `FormatError` for an id outside the vocabulary.
    """

    def add_documents(counter: BigramCounter) -> None:
        for document in documents:
            counter.add(document)
            if progress is not None:
                progress(counter.documents, counter.tokens)

    made_from = _Origin(vocab_size, tokenizer, tokenizer_fingerprint, sources, passes)
    return _build(add_documents, out, made_from, memory=memory, overwrite=overwrite)


def build_from_source(
    source: TokenSource,
    out: Path,
    *,
    keep: bool = False,
    stats: bool = False,
    memory: int | None = None,
    device: str = "cpu",
    passes: float = 1.0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BigramIndex:
    """Count a shard of text corpora and token files and write the index ``out``, as `build_index` does.

    ``keep``: write the text's tokens to the folder `tokens_beside`, resuming after those that are there. ``stats``:
    also count single tokens (`argap.bigram_index.token_stats`). ``device``: ``cuda`` sorts on a GPU.
    """
    tokenizer = source.tokenizer
    sources = sorted(source.shard.label(corpus.spec) for corpus in source.corpora)

    def report(counter: BigramCounter) -> None:
        if progress is not None:
            progress(counter.documents, counter.tokens)

    def add_all(counter: BigramCounter) -> None:
        if keep:
            for shard in cached_tokens(source, tokens_beside(out), sources):
                counter.empty_documents += shard.empty_documents
                counter.add_stream(shard.tokens, tokenizer.eos)
                report(counter)
        else:
            for document in source.documents():
                counter.add(document)
                report(counter)
        for _ in source.count_token_files(counter):
            report(counter)

    return _build(
        add_all,
        out,
        _Origin(tokenizer.vocab_size, tokenizer.name, tokenizer.fingerprint, sources, passes),
        memory=memory,
        overwrite=overwrite,
        may_be_empty=source.shard.of > 1,  # the other shards may have the documents, and the merge needs all N
        stats=stats,
        device=device,
    )


def tokens_beside(out: Path) -> Path:
    """The folder of the tokens that are kept beside the index ``out``."""
    return Path(out).with_name(f"{Path(out).name}.tokens")


@dataclass(frozen=True)
class _Origin:
    """What an index is counted from, as its manifest records it."""

    vocab_size: int
    tokenizer: str
    tokenizer_fingerprint: str
    sources: list[str]
    passes: float


def _build(
    add_all: Callable[[BigramCounter], None],
    out: Path,
    origin: _Origin,
    *,
    memory: int | None,
    overwrite: bool,
    may_be_empty: bool = False,
    stats: bool = False,
    device: str = "cpu",
) -> BigramIndex:
    out = Path(out)
    check_multiplier("passes", origin.passes)
    chunk = chunk_tokens(memory, origin.vocab_size)
    refuse_existing(out, overwrite=overwrite)
    with replacing_folder(out) as folder:
        counter = BigramCounter(origin.vocab_size, chunk=chunk, scratch=folder / "runs", stats=stats, device=device)
        add_all(counter)
        if not counter.tokens and not may_be_empty:
            raise ArgapError(
                f"{', '.join(origin.sources) or 'the corpus'}: no tokens in {counter.empty_documents} documents; "
                "expected a corpus with text"
            )
        write_index(
            folder,
            counter.rows(),
            **vars(origin),
            documents=counter.documents,
            empty_documents=counter.empty_documents,
            tokens=counter.tokens,
            stats=counter.stats.result if counter.stats else None,
        )
        counter.close()
    return open_index(out)
