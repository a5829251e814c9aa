"""The tokens to count: text documents, which are tokenized, and token files, counted in place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from argap.bigram_index.counting.count import BigramCounter
from argap.bigram_index.sources.shard import Shard
from argap.corpus import Corpus
from argap.corpus.document import Tally, TextDocument, TokenShard
from argap.corpus.shards import open_tokens
from argap.corpus.tokenize import token_documents
from argap.errors import FormatError
from argap.text.tokenizer import Tokenizer


@dataclass
class TokenSource:
    """A shard of ``corpora`` in two streams: first `documents`, then `count_token_files`.

    Reading the text also collects the token files. They are counted after the text; the order does not affect counts.
    """

    corpora: Sequence[Corpus]
    tokenizer: Tokenizer
    shard: Shard = field(default_factory=Shard)
    tally: Tally = field(default_factory=Tally)
    """For the text: documents, empty documents, invalid UTF-8."""
    token_files: list[TokenShard] = field(default_factory=list)
    _token_bytes: int = 0
    """Size of the counted token files."""

    def fraction_read(self) -> float | None:
        """Return the fraction of the corpora's files read so far; None if their size is unknown."""
        sizes = [corpus.size for corpus in self.corpora]
        if None in sizes or not any(sizes):
            return None
        done = self._token_bytes + sum(corpus.tally.bytes_read for corpus in self.corpora)
        return min(done / sum(size for size in sizes if size), 1.0)

    def documents(self, skip: int = 0) -> Iterator[np.ndarray]:
        """Yield the text's documents as token ids, `[N]` int32, skipping the first ``skip`` without tokenizing them.

        A document without a token is an empty array.
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
                if number % self.shard.of == self.shard.number:
                    if skip == 0:
                        yield item
                    skip = max(skip - 1, 0)
                number += 1

    def find_token_files(self) -> None:
        """Collect the token files without tokenizing the text."""
        for _ in self._text(skip=2**62):
            pass

    def count_token_files(self, counter: BigramCounter) -> Iterator[None]:
        """Add the token files to ``counter``, one per step. Raises `FormatError` naming file and token."""
        for shard in self.token_files:
            try:
                self._count(shard, counter)
            except FormatError as error:
                if str(shard.path) in str(error):
                    raise
                raise FormatError(f"{shard.path}: {error}") from None
            self._token_bytes += shard.stored
            yield

    def _count(self, shard: TokenShard, counter: BigramCounter) -> None:
        tokens, bounds = open_tokens(shard, self.tokenizer.vocab_size)
        eos = self.tokenizer.eos
        if bounds is not None:
            start, stop = self.shard.bounds(len(bounds))
            for begin, end in bounds[start:stop]:
                counter.add_stream(tokens[begin:end], eos)
        elif eos is not None:
            counter.add_stream(self.shard.cut(tokens, eos), eos)
        elif self.shard.number == 0:  # the file is one document, which is not cut
            counter.add_stream(tokens, None)
