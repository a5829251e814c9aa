"""From documents of tokens, or a corpus of text and token files, to an index on disk."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from argap.bigram_index.count import BigramCounter, chunk_tokens
from argap.bigram_index.folder import replacing_folder
from argap.bigram_index.kept import keep_tokens
from argap.bigram_index.source import Source
from argap.bigram_index.store import BigramIndex, open_index
from argap.bigram_index.write import write_index
from argap.errors import ArgapError

Progress = Callable[[int, int], None]
"""Called now and then with the documents and tokens so far."""


def build_index(
    documents: Iterable[np.ndarray],
    out: Path,
    *,
    vocab_size: int,
    tokenizer: str,
    tokenizer_fingerprint: str,
    sources: list[str],
    memory: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BigramIndex:
    """Count the bigrams of ``documents`` and write the index ``out``.

    Each document is `[N]` token ids of any integer type; bigrams never cross from one to the next, one
    with a single token adds a token and no bigram, one with none is skipped and counted as empty. The
    folder appears whole or not at all. ``memory``: bytes the process may use (default 2 GB); what does not
    fit is spilled beside ``out``.

    Raises `ArgapError` for a corpus without a token, for an index that is already there (unless
    ``overwrite``), and where the disk refuses; `FormatError` for an id outside the vocabulary.
    """

    def add_documents(counter: BigramCounter) -> None:
        for document in documents:
            counter.add(document)
            if progress is not None:
                progress(counter.documents, counter.tokens)

    return _build(add_documents, out, vocab_size, tokenizer, tokenizer_fingerprint, sources, memory, overwrite)


def build_from_source(
    source: Source,
    out: Path,
    *,
    keep: bool = False,
    stats: bool = False,
    memory: int | None = None,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BigramIndex:
    """Count a share of text corpora and token files and write the index ``out``, as `build_index` does.

    ``keep``: write the text's tokens to the folder `tokens_beside`, and go on behind those that are there.
    ``stats``: also count single tokens (`argap.bigram_index.stats`). ``device``: ``cuda`` sorts on a GPU.
    """
    tokenizer = source.tokenizer
    sources = sorted(source.share.label(corpus.spec) for corpus in source.corpora)

    def add_all(counter: BigramCounter) -> None:
        if keep:
            for shard in keep_tokens(source, tokens_beside(out), sources):
                counter.empty_documents += shard.empty_documents
                counter.add_stream(shard.tokens, tokenizer.eos)
                if progress is not None:
                    progress(counter.documents, counter.tokens)
        else:
            for document in source.documents():
                counter.add(document)
                if progress is not None:
                    progress(counter.documents, counter.tokens)
        for _ in source.count_token_files(counter):
            if progress is not None:
                progress(counter.documents, counter.tokens)

    name, fingerprint = tokenizer.name, tokenizer.fingerprint
    may_be_empty = source.share.of > 1  # the others have the documents, and the merge wants all N
    return _build(
        add_all, out, tokenizer.vocab_size, name, fingerprint, sources, memory, overwrite, may_be_empty, stats, device
    )


def tokens_beside(out: Path) -> Path:
    """The folder of kept tokens that belongs to the index ``out``."""
    return Path(out).with_name(f"{Path(out).name}.tokens")


def _build(
    add_all: Callable[[BigramCounter], None],
    out: Path,
    vocab_size: int,
    tokenizer: str,
    tokenizer_fingerprint: str,
    sources: list[str],
    memory: int | None,
    overwrite: bool,
    may_be_empty: bool = False,
    stats: bool = False,
    device: str = "cpu",
) -> BigramIndex:
    out = Path(out)
    chunk = chunk_tokens(memory, vocab_size)
    with replacing_folder(out, overwrite=overwrite) as folder:
        counter = BigramCounter(vocab_size, chunk=chunk, scratch=folder / "runs", stats=stats, device=device)
        add_all(counter)
        if not counter.tokens and not may_be_empty:
            raise ArgapError(
                f"{', '.join(sources) or 'the corpus'}: no tokens in {counter.empty_documents} documents; "
                "expected a corpus with text"
            )
        write_index(
            folder,
            counter.rows(),
            tokenizer=tokenizer,
            tokenizer_fingerprint=tokenizer_fingerprint,
            vocab_size=vocab_size,
            documents=counter.documents,
            empty_documents=counter.empty_documents,
            tokens=counter.tokens,
            sources=sources,
            stats=counter.stats.result if counter.stats else None,
        )
        counter.close()
    return open_index(out)
