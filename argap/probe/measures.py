"""Turn the log-prob and top-1 token of every token of the prompts into scores by load and by distance."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import asdict

from argap.metric.influence import Estimates, estimates, ratio
from argap.metric.intervals import share_interval
from argap.probe.drafts import Answer, Prompt
from argap.probe.prompts import ProbeSet
from argap.probe.records import DistanceRow, ProbeRow, Scores
from argap.records import Interval


@dataclass(frozen=True)
class Answered:
    """All answers of one model. Legend: A answers."""

    condition: np.ndarray
    """int ``[A]``, as are `prompt` and `distance`."""
    prompt: np.ndarray
    distance: np.ndarray
    tokens: np.ndarray
    """Tokens of each answer, float64 ``[A]``, as are the next."""
    right: np.ndarray
    """Tokens that are the most probable one."""
    loss: np.ndarray
    """Nats."""
    chance: np.ndarray
    decoy: np.ndarray
    """1 where the first wrong token begins a decoy, 0 where not; NaN for an answer without decoys."""
    control: np.ndarray
    """``[W]``: nats per token of each prompt's control; NaN without one."""


def read_answers(made: ProbeSet, logprob: np.ndarray, top1: np.ndarray) -> Answered:
    """Collect the answers from the log-prob (nats, NaN at position 0) and top-1 id of every token, ``[N]`` each."""
    rows = list(_rows(made, logprob.astype(np.float64), top1))
    columns = np.array(rows, dtype=np.float64).T
    starts = made.data.offsets[:-1].tolist()
    controls = [_control(prompt, logprob[start:]) for prompt, start in zip(made.prompts, starts, strict=True)]
    whole = (columns[k].astype(np.int64) for k in range(3))
    return Answered(*whole, *columns[3:], control=np.array(controls))


def _control(prompt: Prompt, logprob: np.ndarray) -> float:
    if prompt.control is None:
        return np.nan
    return -float(logprob[slice(*prompt.control)].mean(dtype=np.float64))


def _rows(made: ProbeSet, logprob: np.ndarray, top1: np.ndarray) -> Iterator[tuple[float, ...]]:
    for window, prompt in enumerate(made.prompts):
        start = int(made.data.offsets[window])
        own, best = logprob[start : start + len(prompt.ids)], top1[start : start + len(prompt.ids)]
        right = best == prompt.ids
        for answer in prompt.answers:
            within = slice(answer.start, answer.stop)
            yield (
                window // made.per_condition,
                window,
                answer.distance,
                answer.stop - answer.start,
                right[within].sum(),
                -own[within].sum(),
                answer.chance,
                _decoy(prompt, answer, best),
            )


def _decoy(prompt: Prompt, answer: Answer, best: np.ndarray) -> float:
    """Return 1 if the model's first wrong token continues a decoy as far as that agrees with the answer."""
    if not answer.decoys:
        return np.nan
    gold, wrote = prompt.ids[answer.start : answer.stop], best[answer.start : answer.stop]
    wrong = np.flatnonzero(gold != wrote)
    if not len(wrong):
        return 0.0
    until = int(wrong[0]) + 1
    written = [*gold[: until - 1].tolist(), int(wrote[until - 1])]
    return float(any(prompt.ids[low:high][:until].tolist() == written for low, high in answer.decoys))


def rows_by_load(model: str, made: ProbeSet, answered: Answered) -> list[ProbeRow]:
    """Return a row for each condition."""
    rows = []
    for k, condition in enumerate(made.conditions):
        chosen, windows = np.flatnonzero(answered.condition == k), made.of(k)
        lengths = [len(made.prompts[window].ids) for window in windows]
        scores = _scores(answered, chosen, control=True)
        rows.append(
            ProbeRow(
                model=model,
                task=condition.task,
                form=condition.form,
                load=condition.load,
                length=condition.length,
                tokens=float(np.mean(lengths)),
                distance=float(answered.distance[chosen].mean()),
                **asdict(scores),
            )
        )
    return rows


def rows_by_distance(model: str, made: ProbeSet, answered: Answered) -> list[DistanceRow]:
    """Return a row for each task, form and power of two of the distance."""
    groups: dict[tuple[str, Any], list[int]] = {}
    for k, condition in enumerate(made.conditions):
        groups.setdefault((condition.task, condition.form), []).append(k)
    rows = []
    low = 2 ** np.floor(np.log2(np.maximum(answered.distance, 1))).astype(np.int64)
    for (task, form), conditions in groups.items():
        of_task = np.isin(answered.condition, conditions)
        for each in np.unique(low[of_task]).tolist():
            scores = _scores(answered, np.flatnonzero(of_task & (low == each)), control=False)
            rows.append(DistanceRow(model=model, task=task, form=form, low=each, **asdict(scores)))
    return rows


def _scores(answered: Answered, chosen: np.ndarray, *, control: bool) -> Scores:
    """Return the means over the ``chosen`` answers; ``control``: also of the tokens where nothing predicts them."""
    prompts, unit = np.unique(answered.prompt[chosen], return_inverse=True)
    tokens, right, loss = answered.tokens[chosen], answered.right[chosen], answered.loss[chosen]
    whole = (right == tokens).astype(np.float64)
    count, rights, losses = (np.bincount(unit, each) for each in (np.ones(len(chosen)), whole, loss))
    decoy, before = answered.decoy[chosen], answered.control[prompts]
    return Scores(
        prompts=len(prompts),
        answers=len(chosen),
        accuracy=float(whole.mean()),
        accuracy_ci95=_of_share(rights, count),
        nll=float(loss.mean()),
        nll_ci95=_ends(estimates(ratio(losses, count))),
        token_nll=float(loss.sum() / tokens.sum()),
        token_accuracy=float(right.sum() / tokens.sum()),
        chance=float(answered.chance[chosen].mean()),
        decoys=None if np.isnan(decoy).any() else float(decoy.mean()),
        control_nll=float(before.mean()) if control and not np.isnan(before).any() else None,
    )


def _of_share(right: np.ndarray, count: np.ndarray) -> Interval:
    """Return the interval of the share of right answers, from the sums of each prompt.

    Wilson's, with as many independent answers as would have the variance between prompts: at least one per prompt
    where all are right or none is, at most all.
    """
    found, prompts = estimates(ratio(right, count)), len(count)
    share = float(found.value)
    variance = float(found.error) ** 2
    own = share * (1 - share) / variance + 1 if variance > 0 else prompts  # one answer per prompt: their number
    return share_interval(share, float(np.clip(own, 1, max(prompts, count.sum()))))


def mean_with_interval(values: np.ndarray) -> tuple[float, Interval]:
    """Return the mean of a value per prompt and its 95% interval (Student-t). Needs two prompts."""
    ends = _ends(estimates(ratio(values, np.ones(len(values)))))
    assert ends is not None
    return float(np.mean(values)), ends


def _ends(found: Estimates) -> Interval | None:
    return None if found.reason else (float(found.low), float(found.high))
