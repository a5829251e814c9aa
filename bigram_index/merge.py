"""Add up indexes: the merged indexes of all shards equal the index of the whole corpus."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from argap.bigram_index.counting import count
from argap.bigram_index.counting.count import chunk_tokens, merge_runs
from argap.bigram_index.counting.sorted_runs import Rows, Run, row_ranges
from argap.bigram_index.manifest import Weight, check_multiplier, refuse_existing
from argap.bigram_index.parquet_parts import ParquetRun
from argap.bigram_index.sources.shard import unite
from argap.bigram_index.store import BigramIndex, open_index, write_index
from argap.errors import ArgapError, MismatchError
from argap.files.atomic import replacing_folder


def merge_indexes(
    folders: Sequence[str | Path],
    out: Path,
    *,
    weights: Sequence[float] | None = None,
    memory: int | None = None,
    overwrite: bool = False,
    may_be_empty: bool = False,
) -> BigramIndex:
    """Write the sum of the indexes in ``folders`` to ``out``; the order of the indexes does not change its bytes.

    ``weights``: how often the training run read each index's corpus. The merged counts are then exposures, ``sum(weight
    * count)`` in float64, rounded half to even for each bigram (one that rounds to 0 is dropped), and ``passes`` is 1.
    Without ``weights``, indexes of equal ``passes`` are added up and keep them; indexes of unequal ``passes`` are
    weighted by them. The merge streams: it holds one row group of each index in memory at a time.

    Raises `MismatchError` naming two indexes of different tokenizers, `FormatError` for a damaged index, `ArgapError`
    for an empty list, for indexes without a token (unless ``may_be_empty``), for the wrong number of ``weights``, for
    ``weights`` not above 0 or beside recorded ``passes``, and for an existing ``out``.
    """
    if not folders:
        raise ArgapError("no index to merge; expected at least one folder")
    indexes = [open_index(folder) for folder in folders]
    head = indexes[0]
    _check_tokenizers(indexes)
    if not may_be_empty and not any(index.tokens for index in indexes):
        raise ArgapError(f"{', '.join(str(f) for f in folders)}: no tokens in any of them; expected a corpus with text")
    weights = _weights(indexes, weights)
    entries = min(count.MERGE_ENTRIES, chunk_tokens(memory, head.vocab_size))
    manifests = [index.manifest for index in indexes]
    tokens = [np.array(m.tokens) for m in manifests]
    refuse_existing(Path(out), overwrite=overwrite)
    with replacing_folder(Path(out)) as folder:
        runs = [ParquetRun(index.folder, index.manifest.parts, index.vocab_size, index.bigrams) for index in indexes]
        write_index(
            folder,
            merge_runs(runs, entries) if weights is None else weigh_runs(runs, weights, entries),
            tokenizer=min(m.tokenizer for m in manifests),  # one tokenizer, perhaps under several paths
            tokenizer_fingerprint=head.tokenizer_fingerprint,
            vocab_size=head.vocab_size,
            documents=sum(m.documents for m in manifests),
            empty_documents=sum(m.empty_documents for m in manifests),
            tokens=int(sum(tokens) if weights is None else weighted_sum(tokens, weights)),
            sources=unite(source for m in manifests for source in m.sources),
            origin="+".join(sorted({origin for m in manifests for origin in m.origin.split("+")})),
            passes=head.passes if weights is None else 1.0,
            weights=_recorded(indexes, weights),
        )
    return open_index(out)


def weigh_runs(runs: Sequence[Run], weights: Sequence[float], entries: int = count.MERGE_ENTRIES) -> Iterator[Rows]:
    """Yield the rows of the weighted sum of ``runs``, rounded as `merge_indexes` says, in order."""
    vocab_size = len(runs[0].indptr) - 1
    total = np.sum([run.indptr for run in runs], axis=0)
    for start, stop in row_ranges(total, entries):
        keys, counts = [], []
        for run in runs:
            second, count_of = run.read(int(run.indptr[start]), int(run.indptr[stop]))
            row = np.repeat(np.arange(stop - start), np.diff(run.indptr[start : stop + 1]))
            keys.append(row * vocab_size + second)
            counts.append(count_of)
        known, number = np.unique(np.concatenate(keys), return_inverse=True)
        numbers = np.split(number, np.cumsum([len(each) for each in keys])[:-1])
        dense = np.zeros((len(runs), len(known)), dtype=np.int64)
        for line, at, count_of in zip(dense, numbers, counts, strict=True):
            line[at] = count_of
        summed = weighted_sum(list(dense), weights)
        known, summed = known[summed > 0], summed[summed > 0]
        indptr = np.searchsorted(known, np.arange(stop - start + 1) * vocab_size)
        yield Rows(start, indptr, (known % vocab_size).astype(np.uint32), summed)


def weighted_sum(counts: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """``sum(weight * count)`` in float64, rounded half to even, int64. The order of the terms does not matter.

    Raises `ArgapError` where that is 2⁶³ or more.
    """
    total = np.zeros(counts[0].shape)
    for weight in sorted(set(weights)):
        total += weight * np.sum([c for c, w in zip(counts, weights, strict=True) if w == weight], axis=0)
    if total.max() >= 2.0**63:
        raise ArgapError(f"`weights`: a count of {total.max():.3g} exposures; expected less than 2⁶³")
    return np.rint(total).astype(np.int64)


def _check_tokenizers(indexes: Sequence[BigramIndex]) -> None:
    head = indexes[0]
    for index in indexes[1:]:
        same = index.tokenizer_fingerprint == head.tokenizer_fingerprint
        if not same or index.vocab_size != head.vocab_size:
            raise MismatchError(
                f"{head.folder} was counted with tokenizer {head.tokenizer} "
                f"({head.tokenizer_fingerprint[:12]}, {head.vocab_size} entries), {index.folder} with "
                f"{index.tokenizer} ({index.tokenizer_fingerprint[:12]}, {index.vocab_size} entries): "
                "only indexes of one tokenizer can be merged"
            )


def _weights(indexes: Sequence[BigramIndex], weights: Sequence[float] | None) -> list[float] | None:
    """Return the weights to apply; None for a plain sum."""
    if weights is None:
        passes = [index.passes for index in indexes]
        return passes if len(set(passes)) > 1 else None
    if len(weights) != len(indexes):
        raise ArgapError(f"{len(weights)} `weights` for {len(indexes)} indexes; expected one for each")
    for index, weight in zip(indexes, weights, strict=True):
        check_multiplier("weights", weight)
        if index.passes != 1:
            raise ArgapError(
                f"{index.folder}: already records {index.passes:g} passes, which weight its counts; leave `weights` out"
            )
    return [float(weight) for weight in weights]


def _recorded(indexes: Sequence[BigramIndex], weights: Sequence[float] | None) -> list[Weight]:
    """Return the merged manifest's weights: none for a plain sum of unweighted indexes."""
    if weights is None and not any(index.manifest.weights for index in indexes):
        return []
    by_weight: dict[float, list[str]] = {}
    for index, outer in zip(indexes, weights or [1.0] * len(indexes), strict=True):
        for inner in index.manifest.weights or (Weight(1.0, index.manifest.sources),):
            by_weight.setdefault(outer * inner.weight, []).extend(inner.sources)
    return [Weight(weight, tuple(unite(sources))) for weight, sources in sorted(by_weight.items())]
