"""The share of the gap by τ: a worked example, and equality with the metric at single thresholds."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from argap.metric.share import gap_due_to_ar
from argap.slices.cells import PREFIX
from argap.suite.curve import build_curve, fine_bounds
from argap.suite.result import SizeResult
from argap.tokens.labels import Labels


def labels_of(repeated, counts, position=None):
    n = len(repeated)
    zeros = np.zeros(n, np.int32)
    position = np.arange(1, n + 1, dtype=np.int32) if position is None else position
    record: Any = None  # not read
    return Labels(zeros, position, np.array(repeated), zeros, zeros, np.array(counts), zeros, ["d"], zeros[:1], record)


def curve_of(labels, logprobs, thresholds=()):
    """Return the curve of a result with these tokens, all in one document."""
    seeds = {name: (name,) for name in logprobs}
    scored = labels.scored
    sums = {PREFIX + name: [values[scored].astype(np.float64).sum()] for name, values in logprobs.items()}
    cells = pd.DataFrame({"document": labels.document_of_window[:1], "n": [scored.sum()], **sums})
    gap: Any = SimpleNamespace(reference="ref", seeds=seeds)
    result = SizeResult(Path("x"), gap, cells, ())
    vars(result)["_sums"] = build_curve(labels, logprobs, thresholds)
    return result.curve


def test_curve_matches_a_worked_example():
    # Five scored tokens; the reference gives -1 everywhere. The model loses 1, 2 and 3 nats on repeated
    # bigrams seen 0, 5 and 100 times, and 4 on a token that is not repeated: 10 nats in all.
    labels = labels_of([True, True, True, False, False], [0, 5, 100, 7, 7])
    logprobs = {"ref": np.full(5, -1.0), "model": np.array([-2.0, -3, -4, -5, -1])}
    found = {int(point.bin): point for point in curve_of(labels, logprobs)}
    assert [found[tau]["model"].share for tau in (0, 4, 5)] == pytest.approx([0.1, 0.1, 0.3])
    last = found[max(found)]
    assert last["model"].share == pytest.approx(0.6)
    assert last.share_of_tokens == pytest.approx(3 / 5)


@pytest.mark.parametrize("threshold", [0, 3, 37, 1250])
def test_curve_equals_the_metric_at_any_threshold(threshold):
    rng = np.random.default_rng(0)
    n = 5000
    labels = labels_of(rng.random(n) < 0.4, rng.zipf(1.3, n).clip(max=10**7) - 1)
    logprobs = {"ref": -rng.exponential(2, n).astype(np.float32), "m": -rng.exponential(2.3, n).astype(np.float32)}
    hits = labels.ar_hit(threshold)
    lost = logprobs["m"].astype(np.float64) - logprobs["ref"]
    expected = gap_due_to_ar(lost[hits].mean(), lost.mean(), hits.mean()).raw
    curve = curve_of(labels, logprobs, (threshold,))
    (point,) = [point for point in curve if point.bin == str(threshold)]
    assert point["m"].share == pytest.approx(expected, rel=1e-12)


def test_the_curve_has_a_row_for_each_document():
    labels = labels_of([True, True, True, False], [0, 0, 3, 3])
    labels = dataclasses.replace(labels, window=np.array([0, 1, 1, 1], np.int32), document_of_window=np.array([4, 9]))
    curve = build_curve(labels, {"ref": np.array([-1.0, -2, -3, -4])})
    rows = curve.loc[curve["n"] > 0, ["document", "high", "n", PREFIX + "ref"]]
    assert rows.to_numpy().tolist() == [[4, 0, 1, -1], [9, 0, 1, -2], [9, 3, 1, -3]]


def test_a_model_without_a_gap_has_no_share():
    labels = labels_of([True, False], [0, 0])
    logprobs = {"ref": np.array([-2.0, -2.0]), "m": np.array([-1.0, -1.0])}
    found = curve_of(labels, logprobs)
    assert {point["m"].paper_rule for point in found} == {None}
    assert {point["m"].share for point in found} == {0.5}  # of the lead


def test_the_first_token_of_a_window_is_not_scored():
    labels = labels_of([True, True], [0, 0], position=np.array([0, 1], np.int32))
    assert build_curve(labels, {"ref": np.array([np.nan, -1.0])})["n"].to_numpy().sum() == 1


def test_bounds_increase_and_include_every_threshold():
    bounds = fine_bounds(10**6, (1250, 17))
    assert (np.diff(bounds) > 0).all()
    assert set(range(11)) | {17, 1250} <= set(bounds.tolist())
    assert bounds[-1] >= 10**6
