"""The share of the gap during training, in worked examples."""

import numpy as np
import pandas as pd
import pytest

from argap.suite.trajectory import COLUMNS, LOG_COLUMNS, build_logs, share_along


def trajectory_of(model, steps, hits, other):
    """Two AR hits and six other tokens at every step; a step has 10 training tokens."""
    rows = [(model, step, 10 * step, 2, h, 6, o) for step, h, o in zip(steps, hits, other, strict=True)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_share_matches_a_worked_example():
    # Of 8 tokens 2 are hits. Step 1: 4 nats lost on each hit, 0 on others: all of the gap. Step 2: 3 on each hit, 1 on
    # each other token: 6 of 12. Step 3: 1 won on each other token and 3 lost on each hit: even, so there is no gap.
    reference = trajectory_of("ref", [1, 2, 3], [2.0, 1.0, 1.0], [3.0, 2.0, 2.0])
    model = trajectory_of("m", [1, 2, 3], [6.0, 4.0, 4.0], [3.0, 3.0, 1.0])
    tokens, shares = share_along(pd.concat([reference, model]), "m", "ref")
    assert tokens.tolist() == [10, 20, 30]
    assert shares[:2].tolist() == pytest.approx([1.0, 0.5])
    assert np.isnan(shares[2])


def test_logs_have_no_evaluations_and_an_auxiliary_loss_where_a_mixer_has_one(tmp_path):
    line = '"tokens": 10, "loss": 0.1, "lr": 0.001, "grad_norm": 1.5, "tokens_per_s": 2.5'
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text(f'{{"step": 1, {line}}}\n{{"step": 1, "tokens": 10, "eval_loss": 2.0}}\n')
    second.write_text(f'{{"step": 2, {line}, "auxiliary_loss": 0.3}}\n')
    logs = build_logs({"b": second, "a": first})
    assert tuple(logs) == LOG_COLUMNS
    rows = logs.astype(object).where(logs.notna(), None).to_numpy().tolist()
    same = [10, 0.1, 0.001, 1.5, 2.5]
    assert rows == [["b", 2, *same, 0.3], ["a", 1, *same, None]]
    assert build_logs({}).dtypes.to_list()[1:] == logs.dtypes.to_list()[1:]


def test_only_common_steps_are_compared():
    reference = trajectory_of("ref", [1, 3, 5], [1.0] * 3, [1.0] * 3)
    model = trajectory_of("m", [2, 3, 4, 5], [2.0] * 4, [1.0] * 4)
    tokens, shares = share_along(pd.concat([model, reference]), "m", "ref")
    assert tokens.tolist() == [30, 50]
    assert shares.tolist() == pytest.approx([1.0, 1.0])


def test_without_ar_hits_the_share_is_zero():
    both = pd.concat([trajectory_of("ref", [1], [np.nan], [1.0]), trajectory_of("m", [1], [np.nan], [2.0])])
    assert share_along(both.assign(n_ar_hits=0), "m", "ref")[1].tolist() == [0.0]
