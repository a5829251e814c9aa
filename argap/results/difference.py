"""Compare two runs of the same weights token by token: two engines, dtypes, batch sizes, backends or versions.

No model runs, and labels are not needed: distances are found in the tokens.
"""

from collections.abc import Sequence

import numpy as np

from argap.errors import AbsentError, ArgapError, MismatchError
from argap.evaluation.windows import separator_of
from argap.files.regular import is_there
from argap.metric.bins import distance_bins, position_bins
from argap.metric.fidelity import Spread, differences, fidelity, finite, measures
from argap.metric.location import Tokens, locate, shared_prefixes
from argap.records import ALL, Bin, LabelsRecord, read_record
from argap.records.difference import Bundle, Difference, MovedToken
from argap.runtime.progress import say
from argap.scoring.per_model import split_name
from argap.text.tokenizer import Tokenizer
from argap.tokens.labels import FORMAT, read_document_of_window, repeats_in
from argap.tokens.runs import (
    Run,
    check_same_set,
    named,
    open_run,
    read_logprobs,
    read_token_ids,
    read_window_offsets,
    tokenizer_of,
)

WORST = 10
"""Tokens, windows and documents that are listed."""
CONTEXT = 12
"""Tokens of text shown before one."""


def compare_pair(first: str, second: str, *, tolerance: float | None = None) -> Difference:
    """Compare the finished runs ``first`` and ``second``, folders or ``NAME=RUN``.

    ``tolerance``: count the tokens whose |Δ log p| exceeds it, in nats. Raises `ArgapError` for a negative tolerance
    and for unfinished runs, `MismatchError` for runs of different tokens and for runs of segments.
    """
    if tolerance is not None and not 0 <= tolerance < np.inf:
        raise ArgapError(f"`tolerance` {tolerance}: expected a finite number of nats, 0 or more")
    runs = [named(open_run(path), name) for name, path in (split_name(each) for each in (first, second))]
    for run in runs:
        if run.record.evaluation.unit == "byte":
            raise MismatchError(f"{run.folder}: log-probs of segments; expected a run of a model's own tokens")
    check_same_set(runs[1], runs[0].record.evaluation, f"{runs[0].folder} holds")
    own = _Pair(runs)
    delta, same = own.delta, own.same
    spread = Spread()
    spread.add(np.abs(delta))
    sums = {name: np.bincount(own.window, each, own.windows) for name, each in measures(delta, same).items()}
    n = np.bincount(own.window, minlength=own.windows)
    whole = fidelity(runs[1].model, ALL, n, sums, of_all={"n": float(n.sum()), "kl": 0.0}, quantiles=spread.quantiles())
    return Difference(
        runs=(str(runs[0].folder), str(runs[1].folder)),
        names=(runs[0].model, runs[1].model),
        settings=_settings(*runs),
        whole=whole,
        findings=tuple(locate(own.tokens_located())),
        breakdowns=own.breakdowns(),
        worst=own.worst(),
        tolerance=tolerance,
        beyond=None if tolerance is None else int((np.abs(delta) > tolerance).sum()),
    )


class _Pair:
    """The scored tokens of two runs. Legend: N scored tokens, W windows."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._ids = read_token_ids(runs[0])
        if not np.array_equal(self._ids, read_token_ids(runs[1])):
            raise MismatchError(f"{runs[1].folder}: other tokens than {runs[0].folder}; expected runs of one text")
        self._offsets = read_window_offsets(runs[0])
        self.windows = len(self._offsets) - 1
        lengths = np.diff(self._offsets)
        position = np.arange(len(self._ids)) - np.repeat(self._offsets[:-1], lengths)
        window = np.repeat(np.arange(self.windows), lengths)
        self.rows = np.flatnonzero(position > 0)
        self.window = window[self.rows]
        self.position = position[self.rows]
        (logprob, top1), (other, other_top1) = (read_logprobs(run) for run in runs)
        self._logprobs = logprob[self.rows], other[self.rows]
        self._top1 = top1[self.rows], other_top1[self.rows]
        self.delta = differences(self._logprobs[1], self._logprobs[0])
        """float64 ``[N]``: the second's log-probs minus the first's."""
        self.same = self._top1[0] == self._top1[1]
        self._tokenizer = _tokenizer(runs)
        packed = runs[0].record.evaluation.packing == "packed"
        eos = None
        if self._tokenizer is None:
            across = ", and bigrams repeat across documents" if packed else ""
            say(f"{runs[0].folder}: its tokenizer is not here, so tokens are shown by their ids{across}")
        elif packed:
            eos = separator_of(self._tokenizer)
        self._distance = repeats_in(self._ids, window, eos).distance[self.rows]

    def tokens_located(self) -> Tokens:
        """Return what `locate` reads; an infinite difference counts as the largest finite one, or 1 nat."""
        absolute = np.abs(self.delta)
        finite = absolute[np.isfinite(absolute)]
        absolute = np.minimum(absolute, max(1.0, float(finite.max(initial=0.0))))
        lengths, shared = np.diff(self._offsets), shared_prefixes(self._ids, self._offsets)
        return Tokens(absolute, self.window, self.position, self._distance, lengths, shared)

    def breakdowns(self) -> dict[str, tuple[Bundle, ...]]:
        """Return |Δ log p| by position, distance and length of the window, and in the worst windows and documents."""
        longest = int(np.diff(self._offsets).max())
        positions, distances = position_bins(longest), distance_bins(longest)
        short = np.diff(self._offsets)[self.window] < longest
        found = {
            "position": self._by(positions.index(self.position), _labels(positions.bins())),
            "distance": self._by(distances.index(self._distance), _labels(distances.bins())),
            "length": self._by(short, (f"{longest:,} tokens", "shorter")),
            "window": _worst(self._by(self.window, [str(w) for w in range(self.windows)])),
        }
        if (documents := _documents(self._runs)) is not None:
            of_window, sources = documents
            found["document"] = _worst(self._by(of_window[self.window], sources))
        return found

    def _by(self, number: np.ndarray, names: Sequence[str]) -> tuple[Bundle, ...]:
        """Return the tokens of each number that occurs."""
        absolute, number = np.abs(self.delta), number.astype(np.int64)
        n, sums, total = np.bincount(number), np.bincount(number, absolute), absolute.sum()
        largest = np.zeros(len(n))
        np.maximum.at(largest, number, absolute)
        same = np.bincount(number, self.same)
        return tuple(
            Bundle(
                name=names[k],
                n=int(n[k]),
                absolute=finite(sums[k] / n[k]),
                largest=finite(largest[k]),
                agreement=float(same[k] / n[k]),
                share=finite(float(sums[k]) / float(total)) if total else None,
            )
            for k in np.flatnonzero(n).tolist()
        )

    def worst(self) -> tuple[MovedToken, ...]:
        """Return the tokens that differ most, with their text."""
        absolute = np.abs(self.delta)
        order = np.argsort(-absolute, kind="stable")[:WORST]
        tokenizer, documents = self._tokenizer, _documents(self._runs)
        found = []
        for k in order[absolute[order] > 0].tolist():
            row, window = int(self.rows[k]), int(self.window[k])
            before = self._ids[max(int(self._offsets[window]), row - CONTEXT) : row]
            found.append(
                MovedToken(
                    window=window,
                    position=int(self.position[k]),
                    source=None if documents is None else documents[1][int(documents[0][window])],
                    before=_text(tokenizer, before),
                    token=_text(tokenizer, self._ids[[row]]),
                    logprobs=(finite(float(self._logprobs[0][k])), finite(float(self._logprobs[1][k]))),
                    top1=(_text(tokenizer, self._top1[0][[k]]), _text(tokenizer, self._top1[1][[k]])),
                )
            )
        return tuple(found)


def _worst(bundles: Sequence[Bundle]) -> tuple[Bundle, ...]:
    """Return the bundles with the largest means, largest first."""
    ordered = sorted(bundles, key=lambda each: -(np.inf if each.absolute is None else each.absolute))
    return tuple(ordered[:WORST])


def _labels(bins: Sequence[Bin]) -> list[str]:
    return [each.label for each in bins]


def _documents(runs: Sequence[Run]) -> tuple[np.ndarray, Sequence[str]] | None:
    """Return the document of each window and the documents' sources, from labels beside one of the runs, if any."""
    for run in runs:
        folder = run.folder.parent / "labels"
        if is_there(folder / "labels.json"):
            record = read_record(folder / "labels.json", LabelsRecord, newest=FORMAT)
            if record.evaluation.fingerprint == run.record.evaluation.fingerprint:
                return read_document_of_window(folder, record), record.sources
    return None


def _tokenizer(runs: Sequence[Run]) -> Tokenizer | None:
    """Return the runs' tokenizer; None if it is nowhere. Raises `FormatError` if its files are damaged."""
    for run in runs:
        try:
            return tokenizer_of(run)
        except AbsentError:
            continue
    return None


def _text(tokenizer: Tokenizer | None, ids: np.ndarray) -> str:
    return " ".join(map(str, ids.tolist())) if tokenizer is None else tokenizer.decode(ids[ids >= 0].tolist())


def _settings(first: Run, second: Run) -> dict[str, tuple[str, str]]:
    """Return what differs of how two runs were made."""
    both = [_made(run) for run in (first, second)]
    names = dict.fromkeys(name for made in both for name in made)
    pairs = {name: (both[0].get(name, "none"), both[1].get(name, "none")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _made(run: Run) -> dict[str, str]:
    """Return how a run was made, as text."""
    record, identity = run.record, run.record.identity
    made = {name: str(getattr(identity, name)) for name in ("dtype", "device", "batch_size", "backend", "bos")}
    made = {name.replace("_", " "): value for name, value in made.items()}
    made |= {"weights": identity.checkpoint[:12], **record.versions}
    if record.finished is not None:
        made |= {"head": record.finished.head, "device name": record.finished.device_name}
    return made
