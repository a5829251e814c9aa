"""The score of one model on one task: accuracy with its interval, chance, and where recall fails.

Examples from one document are not independent, so the interval resamples documents.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from argap.metric import intervals
from argap.recall.examples import contains
from argap.recall.samples import Sample
from argap.records import Interval, Record

DISTANCES = (32, 64, 128, 256, 512, 1024)
GOLD_LENGTHS = (1, 2, 4, 8, 16)
NOT_IN_PROMPT = "not in the prompt"


class Group(Record, frozen=True):
    """Some of a task's examples: one row of a breakdown."""

    bin: str
    n: int
    contains: float
    stderr: float | None
    gold_nll: float | None = None
    """Mean over the gold tokens, in nats; None for the copy baseline, and if the file omits it."""


class StopCounts(Record, frozen=True):
    """Number of answers that ended at the stop sequence, at EOS, and at the limit of new tokens."""

    stop: int
    eos: int
    length: int


class Failures(Record, frozen=True, omit_defaults=False):
    """Counts of answers without the gold, each under the first of these reasons that applies."""

    not_in_prompt: int = 0
    """The gold was cut, or the text never contained it."""
    left: int = 0
    """The gold's first token was the model's most likely one, but the answer continued differently."""
    empty: int = 0
    copied: int = 0
    """The answer is another part of the prompt."""
    invented: int = 0
    """The answer is not in the prompt."""


class Score(Record, frozen=True):
    """One model on one task. Shares are fractions; standard errors are None for a single example."""

    model: str
    task: str
    n: int
    contains: float
    """Share of answers that contain the gold."""
    stderr: float | None
    """As lm-eval computes it: over examples, as if they were independent."""
    ci95: Interval | None
    """Interval of ``contains``; None for a single document."""
    whole_word: float
    whole_word_stderr: float | None
    chance: float | None
    truncated: float
    """Share of prompts that were cut."""
    gold_absent: int
    """Examples whose text does not contain the gold."""
    gold_survived: float
    """Share of prompts that contain the gold."""
    gold_nll: float | None
    """Mean over all gold tokens, in nats; None for the copy baseline."""
    gold_first_rank_0: float | None
    """Share of golds whose first token is the model's most likely one; None for the copy baseline."""
    stops: StopCounts
    by_distance: list[Group]
    by_gold_length: list[Group]
    by_key: list[Group]
    failures: Failures | None = None
    """None if the file omits them."""
    gold_ci95: Interval | None = None
    """Interval of ``gold_nll``; None for a single document or without log-probs, and if the file omits it."""


def score(model: str, task: str, samples: Sequence[Sample]) -> Score:
    """Score a model's samples on one task."""
    n = len(samples)
    hits = np.array([s.contains for s in samples], dtype=float)
    words = np.array([s.whole_word for s in samples], dtype=float)
    stops = [s.stop for s in samples]
    ranks = [s.gold_rank for s in samples if s.gold_rank is not None]
    return Score(
        model=model,
        task=task,
        n=n,
        contains=float(hits.mean()),
        stderr=_stderr(hits),
        ci95=interval(hits, [s.document for s in samples]),
        whole_word=float(words.mean()),
        whole_word_stderr=_stderr(words),
        chance=chance(samples),
        truncated=sum(s.truncated_tokens > 0 for s in samples) / n,
        gold_absent=sum(not s.gold_in_text for s in samples),
        gold_survived=sum(s.gold_survived for s in samples) / n,
        gold_nll=gold_nll(samples),
        gold_first_rank_0=float(np.mean([rank == 0 for rank in ranks])) if ranks else None,
        stops=StopCounts(stops.count("stop"), stops.count("eos"), stops.count("length")),
        by_distance=_binned(samples, [s.distance for s in samples], DISTANCES),
        by_gold_length=_binned(samples, [len(s.gold_tokens) for s in samples], GOLD_LENGTHS),
        by_key=by_key(samples),
        failures=Failures(**Counter(why(s) for s in samples if not s.contains)),
        gold_ci95=gold_interval(samples),
    )


def why(sample: Sample) -> str:
    """Return the field of `Failures` that counts an answer without the gold."""
    if not sample.gold_survived:
        return "not_in_prompt"
    if sample.gold_rank == 0:
        return "left"
    answer = sample.generation.strip()
    if not answer:
        return "empty"
    return "copied" if contains(sample.prompt, answer) else "invented"


def chance(samples: Sequence[Sample]) -> float | None:
    """Return how often an answer contains the gold of another example, over all pairs; None for one example."""
    n = len(samples)
    if n < 2:
        return None
    golds = [re.compile(re.escape(s.gold), re.IGNORECASE) for s in samples]
    hits = sum(
        gold.search(sample.generation) is not None
        for j, gold in enumerate(golds)
        for i, sample in enumerate(samples)
        if i != j
    )
    return hits / (n * (n - 1))


def gold_interval(samples: Sequence[Sample], reference: Sequence[Sample] | None = None) -> Interval | None:
    """Compute the interval of the golds' mean NLL, or of its gap to ``reference`` on the same examples, in nats.

    None for a single document or without log-probs.
    """
    lost, tokens = [], []
    for own, other in zip(samples, samples if reference is None else reference, strict=True):
        if own.gold_logprobs is None or other.gold_logprobs is None:
            return None
        lost.append((0.0 if reference is None else sum(other.gold_logprobs)) - sum(own.gold_logprobs))
        tokens.append(len(own.gold_logprobs))
    return interval(np.array(lost), [sample.document for sample in samples], np.array(tokens))


def interval(values: np.ndarray, documents: Sequence[str], weights: np.ndarray | None = None) -> Interval | None:
    """Compute the 95% percentile bootstrap over documents of Σ values / Σ weights; None for a single document.

    ``weights``: one per value; None: 1 each, which makes it the mean.
    """
    _, member = np.unique(np.array(documents, dtype=object), return_inverse=True)
    sums, sizes = np.bincount(member, weights=values), np.bincount(member, weights=weights)
    if len(sums) < 2:
        return None
    bootstrap = intervals.DocumentBootstrap(len(sums))
    drawn = bootstrap.resample(bootstrap.by_unit(np.column_stack([sums, sizes])))
    return intervals.interval(drawn[:, 0] / drawn[:, 1])


def by_key(samples: Sequence[Sample]) -> list[Group]:
    """Group by the key that is asked for, most frequent first."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.key.lower(), []).append(sample)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_group(key, members) for key, members in ordered]


def bin_names(edges: Sequence[int]) -> list[str]:
    """Name the bins that end at ``edges``, and the one beyond."""
    return [*(f"≤ {edge}" for edge in edges), f"> {edges[-1]}"]


def _binned(samples: Sequence[Sample], values: Sequence[int | None], edges: Sequence[int]) -> list[Group]:
    """Group by value, in the bins ``≤ edge``, one beyond the last edge, and one for None; empty bins are omitted."""
    names = [*bin_names(edges), NOT_IN_PROMPT]
    groups: dict[str, list[Sample]] = {name: [] for name in names}
    for sample, value in zip(samples, values, strict=True):
        groups[names[-1 if value is None else int(np.searchsorted(edges, value))]].append(sample)
    return [_group(name, members) for name, members in groups.items() if members]


def _group(name: str, members: Sequence[Sample]) -> Group:
    hits = np.array([s.contains for s in members], dtype=float)
    return Group(name, len(members), float(hits.mean()), _stderr(hits), gold_nll(members))


def gold_nll(samples: Sequence[Sample]) -> float | None:
    """Return the mean NLL of all gold tokens; None without log-probs."""
    logprobs = [p for s in samples if s.gold_logprobs is not None for p in s.gold_logprobs]
    return -float(np.mean(logprobs)) if logprobs else None


def _stderr(values: np.ndarray) -> float | None:
    """Return the standard error of the mean as in lm-eval: the sample's standard deviation over √n."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
