"""An index on disk, opened: who made it from what, and how often a bigram occurs."""

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from argap.bigram_index import checksum, csr
from argap.bigram_index.engine import count_pairs
from argap.bigram_index.manifest import COUNTED, REBUILD, Manifest, read_manifest
from argap.bigram_index.stats import TokenStats, read_stats
from argap.errors import ArgapError, MismatchError


class BigramIndex:
    """The bigram counts of a training corpus. Made by `open_index`; the counts are read when first asked."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokenizer = manifest.tokenizer
        self.tokenizer_fingerprint = manifest.tokenizer_fingerprint
        self.vocab_size = manifest.vocab_size
        self.documents = manifest.documents
        self.tokens = manifest.tokens
        self.bigrams = manifest.bigrams
        self.distinct = manifest.distinct
        self.sources = manifest.sources
        self.proxy = manifest.origin != COUNTED
        """Whether the counts are not, or not all, those of the training documents themselves."""

    def count(self, first: ArrayLike, second: ArrayLike) -> np.ndarray:
        """How often each bigram (first, second) occurs in the corpus.

        ``first``, ``second``: integers of one shape, any dtype. Returns int64 of that shape; a bigram that
        was never seen counts 0, and so does one with an id outside the vocabulary.
        """
        firsts, seconds = np.asarray(first), np.asarray(second)
        if firsts.shape != seconds.shape:
            raise ArgapError(f"{firsts.shape} first tokens for {seconds.shape} second ones: expected as many")
        for ids in (firsts, seconds):
            if ids.size and ids.dtype.kind not in "iu":
                raise ArgapError(f"token ids of type {ids.dtype}: expected integers")
        return count_pairs(self._csr, firsts.reshape(-1), seconds.reshape(-1)).reshape(firsts.shape)

    @cached_property
    def stats(self) -> TokenStats:
        """Counts of single tokens. Raises `ArgapError` where the index was built without ``--stats``."""
        return read_stats(self.folder, self.manifest.stats)

    def verify(self) -> None:
        """Check every byte of every part. Raises `FormatError` naming the file and where it is damaged."""
        for part in self.manifest.parts:
            checksum.check(self.folder / part["file"], part, REBUILD)
        if self.manifest.stats:
            checksum.check(self.folder / self.manifest.stats["file"], self.manifest.stats, REBUILD)
        csr.verify(self.folder)

    @cached_property
    def _csr(self) -> csr.Csr:
        return csr.load(self.folder, self.manifest)


def open_index(folder: str | Path) -> BigramIndex:
    """Open the index in ``folder``; reads ``index.json`` and the parts' sizes only.

    Raises `FormatError` for a missing, corrupt or newer ``index.json`` and for a part that is missing or
    truncated.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for part in manifest.parts:
        checksum.check_size(folder / part["file"], part, REBUILD)
    return BigramIndex(folder, manifest)


def require_tokenizer(index: BigramIndex, fingerprint: str, owner: str) -> None:
    """Raise `MismatchError` unless ``index`` was counted with the tokenizer of ``owner``."""
    if index.tokenizer_fingerprint != fingerprint:
        raise MismatchError(
            f"{index.folder}: counted with tokenizer {index.tokenizer} "
            f"({index.tokenizer_fingerprint[:12]}), but {owner} has another ({fingerprint[:12]}); build the "
            f"right one with `argap index build DATA --tokenizer {owner} --out DIR`"
        )
