"""Convert text documents to token ids: batched, parallel, streaming."""

import os
from collections.abc import Iterable, Iterator

import numpy as np

from argap.corpus import Corpus, open_corpus, shards
from argap.corpus.document import TextDocument, TokenDocument, TokenShard
from argap.corpus.kept import kept_of
from argap.errors import ArgapError
from argap.runtime.progress import say
from argap.runtime.threads import map_ahead
from argap.text.tokenizer import Tokenizer

BATCH_CHARACTERS = 4 * 2**20
BATCH_DOCUMENTS = 4096
LONG = 20 * 2**20
"""Characters of a document beyond which its tokenization is announced; a piece of a large text file has fewer."""
BYTES = 160
"""Memory that the Rust library takes for a character while it tokenizes (4.7 GB for a line of 30 MB)."""


def token_documents(corpora: Corpus | Iterable[Corpus], tokenizer: Tokenizer) -> Iterator[TokenDocument]:
    """Yield the documents of ``corpora``, in order, as token ids.

    The Rust tokenizer spreads a batch over all cores while the next batch is being read. Documents without a token are
    skipped and counted in the tally of their corpus.
    """
    for corpus in [corpora] if isinstance(corpora, Corpus) else corpora:
        for document in _documents(corpus, tokenizer):
            if len(document.ids):
                corpus.tally.documents += 1
                yield document
            else:
                corpus.tally.empty += 1


def check_length(characters: int, source: str) -> None:
    """Announce a long document before it is tokenized; in pieces it could get other tokens at the cuts.

    Raises `ArgapError` if that takes more than the machine's memory.
    """
    if characters <= LONG:
        return
    memory, needed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), BYTES * characters
    about = (
        f"{source}: one document of {characters:,} characters, whose tokenization takes about {needed / 1e9:,.1f} GB"
    )
    if needed > memory:
        raise ArgapError(f"{about}; this machine has {memory / 1e9:,.1f} GB; split the text into documents")
    say(about)


def encode_corpora(specs: Iterable[str], tokenizer: Tokenizer, *, text_column: str) -> Iterator[np.ndarray]:
    """Yield the documents of the corpora named by ``specs``, in order, as token ids, `[N]` int32."""
    corpora = [open_corpus(spec, text_column=text_column) for spec in specs]
    for document in token_documents(corpora, tokenizer):
        yield document.ids


def _documents(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[TokenDocument]:
    def encode(batch: list[TextDocument] | TokenShard) -> Iterable[TokenDocument]:
        if isinstance(batch, TokenShard):  # read once its turn has come
            return shards.read(batch, eos=tokenizer.eos, vocab_size=tokenizer.vocab_size)
        return _encode(batch, tokenizer)

    for documents in map_ahead(encode, _batches(corpus), threads=1):
        yield from documents


def _batches(corpus: Corpus) -> Iterator[list[TextDocument] | TokenShard]:
    batch: list[TextDocument] = []
    characters = 0
    for item in corpus:
        if isinstance(item, TokenShard):
            if batch:
                yield batch
            batch, characters = [], 0
            yield item
            continue
        check_length(len(item.text), item.source)
        batch.append(item)
        characters += len(item.text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encode(batch: list[TextDocument], tokenizer: Tokenizer) -> list[TokenDocument]:
    ids = tokenizer.encode([document.text for document in batch])
    kept = kept_of(batch, tokenizer)
    return [TokenDocument(i, d.domain, d.source, k) for i, d, k in zip(ids, batch, kept, strict=True)]
