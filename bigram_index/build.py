"""Build an index on disk from a corpus of text and token files."""

from collections.abc import Callable
from pathlib import Path

from argap.bigram_index.counting.count import BigramCounter, chunk_tokens
from argap.bigram_index.manifest import check_multiplier, refuse_existing
from argap.bigram_index.sources.token_cache import cached_tokens
from argap.bigram_index.sources.token_source import TokenSource
from argap.bigram_index.store import BigramIndex, open_index, write_index
from argap.errors import ArgapError
from argap.files.atomic import replacing_folder

Progress = Callable[[int, int], None]
"""Called from time to time with the number of documents and tokens counted so far."""


def build_from_source(
    source: TokenSource,
    out: Path,
    *,
    keep: bool = False,
    memory: int | None = None,
    device: str = "cpu",
    passes: float = 1.0,
    overwrite: bool = False,
    progress: Progress = lambda documents, tokens: None,
) -> BigramIndex:
    """Count a shard of text corpora and token files and write the index ``out``.

    Bigrams never cross documents: a document of one token adds a token and no bigram, an empty one is skipped and
    counted as empty. The folder appears whole or not at all.

    ``keep``: write the text's tokens to the folder `tokens_beside`, resuming after those already there. ``memory``:
    bytes the process may use (default 2 GB); whatever does not fit is spilled beside ``out``. ``device``: ``cuda``
    sorts on a GPU. ``passes``: how often the training run read the documents.

    Raises `ArgapError` for a corpus without a token, for an existing index (unless ``overwrite``), for ``passes`` of 0
    or less, and if the disk refuses; `FormatError` for an id outside the vocabulary.
    """
    out, tokenizer = Path(out), source.tokenizer
    sources = sorted(source.shard.label(corpus.spec) for corpus in source.corpora)
    check_multiplier("passes", passes)
    chunk = chunk_tokens(memory, tokenizer.vocab_size)
    refuse_existing(out, overwrite=overwrite)
    with replacing_folder(out) as folder:
        counter = BigramCounter(tokenizer.vocab_size, chunk=chunk, scratch=folder / "runs", device=device)
        if keep:
            for shard in cached_tokens(source, tokens_beside(out), sources):
                counter.empty_documents += shard.empty_documents
                counter.add_stream(shard.tokens, tokenizer.eos)
                progress(counter.documents, counter.tokens)
        else:
            for document in source.documents():
                counter.add(document)
                progress(counter.documents, counter.tokens)
        for _ in source.count_token_files(counter):
            progress(counter.documents, counter.tokens)
        # The other shards may have the documents, and the merge needs all N.
        if not counter.tokens and source.shard.of == 1:
            raise ArgapError(
                f"{', '.join(sources) or 'the corpus'}: no tokens in {counter.empty_documents} documents; "
                "expected a corpus with text"
            )
        write_index(
            folder,
            counter.rows(),
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.name,
            tokenizer_fingerprint=tokenizer.fingerprint,
            sources=sources,
            passes=passes,
            documents=counter.documents,
            empty_documents=counter.empty_documents,
            tokens=counter.tokens,
        )
        counter.close()
    return open_index(out)


def tokens_beside(out: Path) -> Path:
    """Return the folder of the tokens kept beside the index ``out``."""
    return Path(out).with_name(f"{Path(out).name}.tokens")
