"""From documents of tokens to an index on disk."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from argap.bigram_index.count import BigramCounter, chunk_tokens
from argap.bigram_index.folder import replacing_folder
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
    out = Path(out)
    chunk = chunk_tokens(memory, vocab_size)
    with replacing_folder(out, overwrite=overwrite) as folder:
        counter = BigramCounter(vocab_size, chunk=chunk, scratch=folder / "runs")
        for document in documents:
            counter.add(document)
            if progress is not None:
                progress(counter.documents, counter.tokens)
        if not counter.tokens:
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
        )
        counter.close()
    return open_index(out)
