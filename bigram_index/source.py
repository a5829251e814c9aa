"""What is to be counted: documents of text, to be tokenized, and files of tokens, counted as they lie."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from argap.bigram_index import megatron
from argap.bigram_index.count import BigramCounter
from argap.bigram_index.share import Share
from argap.corpus import Corpus
from argap.corpus.document import Tally, TextDocument, TokenShard
from argap.corpus.shards import open_tokens
from argap.corpus.tokenize import token_documents
from argap.errors import FormatError
from argap.tokenizer import Tokenizer


@dataclass
class Source:
    """The share of ``corpora`` that is to be counted, in two streams; read `documents` first.

    Token files are met while the corpora are read; they wait until the text is done, which changes
    nothing, because counts add up in any order.
    """

    corpora: Sequence[Corpus]
    tokenizer: Tokenizer
    share: Share = field(default_factory=Share)
    tally: Tally = field(default_factory=Tally)
    """Of the text: documents, documents without a token, invalid UTF-8."""
    token_files: list[TokenShard] = field(default_factory=list)
    _token_bytes: int = 0
    """Of the token files that are counted."""

    def share_read(self) -> float | None:
        """How much of the corpora's files has been read, 0 to 1; None where their size is not known."""
        sizes = [corpus.size for corpus in self.corpora]
        if None in sizes or not any(sizes):
            return None
        done = self._token_bytes + sum(corpus.tally.bytes_read for corpus in self.corpora)
        return min(done / sum(size for size in sizes if size), 1.0)

    def documents(self, skip: int = 0) -> Iterator[np.ndarray]:
        """The text's documents as token ids, `[N]` int32; the first ``skip`` are not even tokenized.

        A document without a token comes as an empty array.
        """
        text = Corpus("", lambda tally: self._text(skip))
        empty = 0
        for document in token_documents(text, self.tokenizer):
            for _ in range(text.tally.empty - empty):
                yield np.empty(0, dtype=np.int32)
            empty = text.tally.empty
            yield document.ids
        for _ in range(text.tally.empty - empty):
            yield np.empty(0, dtype=np.int32)

    def _text(self, skip: int) -> Iterator[TextDocument]:
        number = 0
        self.token_files.clear()
        for corpus in self.corpora:
            for item in corpus:
                if isinstance(item, TokenShard):
                    self.token_files.append(item)
                    continue
                if number % self.share.of == self.share.number:
                    if skip == 0:
                        yield item
                    skip = max(skip - 1, 0)
                number += 1

    def find_token_files(self) -> None:
        """Look for token files only; for when the text need not be read again."""
        for _ in self._text(skip=2**62):
            pass

    def count_token_files(self, counter: BigramCounter) -> Iterator[None]:
        """Add the token files' share to ``counter``, a file a step. Raises `FormatError` naming file and token."""
        for shard in self.token_files:
            try:
                if megatron.is_pair(shard.path):
                    self._count_sequences(shard.path, counter)
                else:
                    self._count_stream(shard, counter)
            except FormatError as error:
                if str(shard.path) in str(error):
                    raise
                raise FormatError(f"{shard.path}: {error}") from None
            self._token_bytes += shard.path.stat().st_size
            yield

    def _count_stream(self, shard: TokenShard, counter: BigramCounter) -> None:
        tokens = open_tokens(shard, self.tokenizer.vocab_size)
        eos = self.tokenizer.eos
        if eos is not None:
            counter.add_stream(self.share.cut(tokens, eos), eos)
        elif self.share.number == 0:  # one document, which is not cut
            counter.add_stream(tokens, None)

    def _count_sequences(self, path: Path, counter: BigramCounter) -> None:
        tokens, bounds = megatron.open_sequences(path)
        start, stop = self.share.bounds(len(bounds))
        for begin, end in bounds[start:stop]:
            counter.add_stream(tokens[begin:end], self.tokenizer.eos)
