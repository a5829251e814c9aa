"""An index on disk: written, opened, and queried for the count of a bigram."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from argap.bigram_index.counting import csr
from argap.bigram_index.counting.engines import looking_up
from argap.bigram_index.counting.sorted_runs import Rows
from argap.bigram_index.manifest import COUNTED, FILE, REBUILD, Manifest, Weight, read_manifest, write_manifest
from argap.bigram_index.parquet_parts import open_part, write_parts
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files import checksums
from argap.files.hub import fetched, is_hub, parse_address


class BigramIndex:
    """The bigram counts of a training corpus. Created by `open_index`; the counts are read at the first lookup."""

    def __init__(self, folder: Path, manifest: Manifest, address: str | None = None) -> None:
        self.folder = folder
        self.name = address or str(folder)
        """Where it is, for records: the folder, or an address of the hub."""
        self.manifest = manifest
        self.tokenizer = manifest.tokenizer
        self.tokenizer_fingerprint = manifest.tokenizer_fingerprint
        self.vocab_size = manifest.vocab_size
        self.documents = manifest.documents
        self.tokens = manifest.tokens
        self.bigrams = manifest.bigrams
        self.distinct = manifest.distinct
        self.sources = list(manifest.sources)
        self.passes = manifest.passes
        """How often the training run read the corpus."""
        self.weights = manifest.weights
        self.proxy = manifest.origin != COUNTED
        """Whether any counts were not counted from the training documents themselves."""

    def count(self, first: ArrayLike, second: ArrayLike) -> np.ndarray:
        """Return the occurrences of each bigram (first, second) in the corpus.

        ``first``, ``second``: integers of one shape, any dtype. Returns int64 of that shape, 0 for a bigram that does
        not occur and for one with an id outside the vocabulary.
        """
        firsts, seconds = np.asarray(first), np.asarray(second)
        if firsts.shape != seconds.shape:
            raise ArgapError(f"{firsts.shape} first tokens for {seconds.shape} second tokens: expected equal shapes")
        for ids in (firsts, seconds):
            if ids.size and ids.dtype.kind not in "iu":
                raise ArgapError(f"token ids of type {ids.dtype}: expected integers")
        count_pairs = looking_up(firsts.size).count_pairs
        return count_pairs(self._csr, firsts.reshape(-1), seconds.reshape(-1)).reshape(firsts.shape)

    def exposures(self, first: ArrayLike, second: ArrayLike) -> np.ndarray:
        """Return how often training read each bigram (first, second): `count` × ``passes``, float64.

        Raises `FormatError` where that is 2⁶³ or more, which labels could not hold.
        """
        exposed = self.count(first, second) * self.passes
        if exposed.max(initial=0) >= 2.0**63:
            raise FormatError(f"{self.folder}: {exposed.max():.3g} exposures of a bigram; expected less than 2⁶³")
        return exposed

    @property
    def exposed_tokens(self) -> float:
        """Tokens that training read: ``tokens`` × ``passes``."""
        return self.tokens * self.passes

    def verify(self) -> None:
        """Check every byte of every part, its columns and its rows.

        Raises `FormatError` naming the file and where it is damaged.
        """
        for part in self.manifest.parts:
            open_part(self.folder / part.file, part).close()
        csr.verify(self.folder)

    @cached_property
    def _csr(self) -> csr.Csr:
        return csr.load(self.folder, self.manifest)


def open_index(folder: str | Path) -> BigramIndex:
    """Open the index in ``folder``, or at an address of the hub; reads only ``index.json`` and the parts' sizes.

    Raises `FormatError` for a missing, corrupt or newer ``index.json`` and for a part that is missing or truncated, and
    `ArgapError` for an address that the hub does not give.
    """
    address = str(parse_address(folder)) if is_hub(folder) else None
    folder = Path(folder) if address is None else fetched(address)
    manifest = read_manifest(folder)
    for part in manifest.parts:
        checksums.check_size(folder / part.file, part, REBUILD)
    return BigramIndex(folder, manifest, address)


def write_index(
    folder: Path,
    rows: Iterable[Rows],
    *,
    tokenizer: str,
    tokenizer_fingerprint: str,
    vocab_size: int,
    documents: int,
    empty_documents: int,
    tokens: int,
    sources: list[str],
    origin: str = COUNTED,
    passes: float = 1.0,
    weights: Sequence[Weight] = (),
) -> None:
    """Write parts, ``index.json`` and, for an index too large for memory, its rows for lookups.

    For the arguments see `Manifest`. Raises `OSError` if the disk refuses (`argap.files.atomic.replacing_folder`
    reports it in one line).
    """
    parts, bigrams = write_parts(folder, rows)
    contents = Manifest(
        tokenizer=tokenizer,
        tokenizer_fingerprint=tokenizer_fingerprint,
        vocab_size=vocab_size,
        documents=documents,
        empty_documents=empty_documents,
        tokens=tokens,
        bigrams=bigrams,
        distinct=sum(part.rows for part in parts),
        sources=tuple(sorted(sources)),
        parts=tuple(parts),
        origin=origin,
        passes=float(passes),
        weights=tuple(weights),
    )
    write_manifest(folder, contents)
    if contents.distinct > csr.IN_MEMORY:
        identity = hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
        csr.write(folder, contents, folder / csr.FOLDER, identity)


def check_tokenizer(index: BigramIndex, tokenizer: str, fingerprint: str) -> None:
    """Raise `MismatchError` unless ``index`` was counted with the tokenizer of that fingerprint."""
    if index.tokenizer_fingerprint != fingerprint:
        raise MismatchError(
            f"{index.folder}: counted with the tokenizer {index.tokenizer} ({index.tokenizer_fingerprint[:12]}), "
            f"the text is tokenized with {tokenizer} ({fingerprint[:12]}); build the right index with "
            f"`argap index build TRAINING_TEXT --tokenizer {tokenizer} --out DIR`"
        )
