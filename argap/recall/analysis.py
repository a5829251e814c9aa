"""From samples to tables: scores with intervals, chance, breakdowns, flips between two models.

A sample is a row of `argap.recall.why.explain`. Examples on one document are not independent, so the
interval resamples documents.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest, pearsonr, spearmanr

Sample = dict[str, Any]
RESAMPLES, SEED = 10_000, 1234
DISTANCES = (32, 64, 128, 256, 512, 1024)
GOLD_LENGTHS = (1, 2, 4, 8, 16)


def score_row(samples: Sequence[Sample]) -> dict[str, Any]:
    """What a table prints of one model on one task."""
    hits = np.array([s["contains"] for s in samples], dtype=float)
    words = np.array([s["whole_word"] for s in samples], dtype=float)
    n = len(samples)
    return {
        "n": n,
        "contains": hits.mean(),
        "stderr": _stderr(hits),
        "ci95": interval(hits, [s["document"] for s in samples]),
        "whole_word": words.mean(),
        "whole_word_stderr": _stderr(words),
        "chance": chance(samples),
        "truncated": sum(s["truncated_tokens"] > 0 for s in samples) / n,
        "gold_absent": sum(not s["gold_in_text"] for s in samples),
        "gold_survived": sum(s["gold_survived"] for s in samples) / n,
        "gold_nll": _gold_nll(samples),
        "gold_first_rank_0": _first_choice(samples),
        "stops": {kind: sum(s["stop"] == kind for s in samples) for kind in ("stop", "eos", "length")},
        "by_distance": by_distance(samples),
        "by_gold_length": by_gold_length(samples),
        "by_key": by_key(samples),
    }


def chance(samples: Sequence[Sample]) -> float | None:
    """Shuffled gold: how often an answer holds the gold of another example, the mean over all pairs."""
    golds = [re.compile(re.escape(s["gold"]), re.IGNORECASE) for s in samples]
    if len(samples) < 2:
        return None
    found = sum(
        gold.search(sample["generation"]) is not None
        for j, gold in enumerate(golds)
        for i, sample in enumerate(samples)
        if i != j
    )
    return found / (len(samples) * (len(samples) - 1))


def interval(hits: np.ndarray, documents: Sequence[str]) -> tuple[float, float] | None:
    """Percentile 95% bootstrap over documents, from each one's sum; None where there is one only."""
    _, member = np.unique(np.array(documents, dtype=object).astype(str), return_inverse=True)
    sums, sizes = np.bincount(member, weights=hits), np.bincount(member)
    if len(sums) < 2:
        return None
    draws = np.random.default_rng(SEED).integers(len(sums), size=(RESAMPLES, len(sums)))
    means = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def by_distance(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Accuracy by tokens from the nearest gold to the answer; last, the samples without a gold to find."""
    return _binned(samples, [s["distance"] for s in samples], DISTANCES, missing="not in the prompt")


def by_gold_length(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Accuracy by the gold's tokens."""
    return _binned(samples, [len(s["gold_tokens"]) for s in samples], GOLD_LENGTHS, missing="")


def by_key(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Accuracy by the key that is asked for, the most frequent first."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample["key"].lower(), []).append(sample)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_group(key, members) for key, members in ordered]


def flips(samples: Sequence[Sample], reference: Sequence[Sample]) -> dict[str, Any]:
    """How two models differ on the same examples, with McNemar's exact test of no difference."""
    pairs = [(a["contains"], b["contains"]) for a, b in zip(samples, reference, strict=True)]
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    return {
        "both": pairs.count((True, True)),
        "gained": gained,
        "lost": lost,
        "neither": pairs.count((False, False)),
        "difference": (gained - lost) / len(pairs),
        "p_value": float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0,
        "lost_ids": [a["id"] for a, (own, other) in zip(samples, pairs, strict=True) if other and not own],
    }


def link_to_gap(rows: Sequence[dict[str, Any]], gap: dict[str, Any], reference: str) -> list[dict[str, Any]]:
    """For each task the recall gap of each model beside its AR gap in ``gap.json``, and their correlation
    over models, which three at least must have."""
    ar = {r["model"]: r["ar_hits"]["nll"] for r in gap["rows"]}
    links = []
    for task in dict.fromkeys(row["task"] for row in rows):
        scored = {row["model"]: row["contains"] for row in rows if row["task"] == task}
        models = [m for m in scored if m != reference and ar.get(m) is not None]
        if reference not in scored or ar.get(reference) is None:
            continue
        points = [
            {"model": m, "ar_gap_nll": ar[m] - ar[reference], "recall_gap": scored[reference] - scored[m]}
            for m in models
        ]
        x, y = [p["ar_gap_nll"] for p in points], [p["recall_gap"] for p in points]
        varied = len(set(x)) > 1 and len(set(y)) > 1 and len(points) > 2
        links.append(
            {
                "task": task,
                "points": points,
                "pearson": float(pearsonr(x, y).statistic) if varied else None,  # pyright: ignore
                "spearman": float(spearmanr(x, y).statistic) if varied else None,  # pyright: ignore
            }
        )
    return links


def _binned(
    samples: Sequence[Sample], values: Sequence[int | None], edges: Sequence[int], *, missing: str
) -> list[dict[str, Any]]:
    """Groups ``≤ edge`` and one past the last; empty ones are left out."""
    names = [f"≤ {edge}" for edge in edges] + [f"> {edges[-1]}"]
    groups: dict[str, list[Sample]] = {name: [] for name in [*names, missing]}
    for sample, value in zip(samples, values, strict=True):
        name = missing if value is None else names[int(np.searchsorted(edges, value))]
        groups[name].append(sample)
    return [_group(name, members) for name, members in groups.items() if members]


def _group(name: str, members: Sequence[Sample]) -> dict[str, Any]:
    hits = np.array([s["contains"] for s in members], dtype=float)
    return {"bin": name, "n": len(members), "contains": hits.mean(), "stderr": _stderr(hits)}


def _stderr(values: np.ndarray) -> float | None:
    """Of the mean, as lm-eval has it: the sample's standard deviation over √n."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def _gold_nll(samples: Sequence[Sample]) -> float | None:
    """Mean over all tokens of the golds, in nats."""
    logprobs = [p for s in samples if s["gold_logprobs"] is not None for p in s["gold_logprobs"]]
    return -float(np.mean(logprobs)) if logprobs else None


def _first_choice(samples: Sequence[Sample]) -> float | None:
    """Share of samples whose gold begins with the model's own first choice."""
    ranks = [s["gold_rank"] for s in samples if s["gold_rank"] is not None]
    return float(np.mean([rank == 0 for rank in ranks])) if ranks else None
