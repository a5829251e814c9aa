"""The smallest models that solve a task."""

import math

import pandas as pd
import pytest

from argap.synthetics.sweeps.selection import MEASURES, across_seeds, best_runs, smallest_solving


def test_to_solve_takes_the_least_of_the_solved():
    # Two widths solve the task, the narrower with the larger state; the best run is chosen by validation.
    columns = ["name", "length", "pairs", "width", "lr", "validation_accuracy", "accuracy", "flops", "state_size"]
    rows = [
        ("a", 64, "4", 64, 1e-3, 0.90, 1.000, 10, 100),  # not chosen: another rate validates better
        ("a", 64, "4", 64, 1e-2, 0.95, 0.960, 10, 100),
        ("a", 64, "4", 128, 1e-3, 1.00, 0.995, 20, 300),
        ("a", 64, "4", 256, 1e-3, 1.00, 0.999, 40, 200),
        ("b", 64, "4", 64, 1e-3, 0.50, 0.500, 5, 50),
    ]
    runs = pd.DataFrame(rows, columns=pd.Index(columns)).assign(parameters=7)
    assert best_runs(runs)["accuracy"].tolist() == [0.960, 0.995, 0.999, 0.500]
    solved = smallest_solving(runs).set_index("name")
    assert solved.loc["a", ["width", "flops", "state_size"]].tolist() == [128, 20, 200]
    assert solved.loc["b", ["width", "flops"]].isna().all()
    assert solved.loc["b", "best"] == 0.5


def test_rows_are_by_length_then_pairs_as_numbers_then_members_in_their_order():
    rows = [
        (name, 64, pairs, 8, lr, 0.9, accuracy, 10, 100, 7)
        for name in ("b", "a")
        for pairs in ("16", "4")
        for lr, accuracy in ((1e-2, 0.5), (1e-3, 0.99))  # the lower rate wins a tie, and 0.99 is enough
    ]
    columns = [*("name", "length", "pairs", "width", "lr", "validation_accuracy", "accuracy"), *MEASURES]
    runs = pd.DataFrame(rows, columns=pd.Index(columns))
    assert list(best_runs(runs)) == columns
    solved = smallest_solving(runs)
    order = [[64, "4", "b"], [64, "4", "a"], [64, "16", "b"], [64, "16", "a"]]
    assert solved[["length", "pairs", "name"]].to_numpy().tolist() == order
    assert solved[[*MEASURES, "width", "best"]].to_numpy().tolist() == [[10, 100, 7, 8, 0.99]] * 4
    assert across_seeds(runs.assign(seed=0))[["length", "pairs", "name"]].to_numpy().tolist() == order


def test_each_seed_counts_with_its_best_rate():
    columns = ["name", "seed", "lr", "validation_accuracy", "accuracy"]
    rows = [
        ("a", 0, 1e-3, 0.50, 0.9),  # not chosen: the other rate validates better
        ("a", 0, 1e-2, 0.60, 0.4),
        ("a", 1, 1e-3, 0.90, 0.8),
        ("a", 2, 1e-3, 0.10, 0.6),
        ("b", 0, 1e-3, 0.30, 0.3),
    ]
    runs = pd.DataFrame(rows, columns=pd.Index(columns)).assign(length=64, pairs="4", width=8)
    found = across_seeds(runs).set_index("name")
    assert found.index.tolist() == ["a", "b"]
    # 0.4, 0.8 and 0.6: mean 0.6, sample deviation √((0.04 + 0.04) / 2) = 0.2.
    assert found.loc["a", ["seeds", "accuracy", "deviation", "lowest", "highest"]].tolist() == pytest.approx(
        [3, 0.6, 0.2, 0.4, 0.8]
    )
    assert found.loc["b", ["seeds", "accuracy"]].tolist() == [1, 0.3]
    assert math.isnan(found.loc["b", "deviation"])
