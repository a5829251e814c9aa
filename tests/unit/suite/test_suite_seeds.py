"""Models of several seeds: one row of means, each seed in a table of its own, and ranges that are called ranges."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from argap.reports.tables.suite import seeds_table
from argap.slices.cells import PREFIX, mean_over_seeds
from argap.suite.gap import _alike
from argap.suite.result import SizeResult, read_size

ROOT = Path(__file__).parents[3]
SUITES = [ROOT / "results" / name for name in ("table1-mini/7m", "table1-7m/7m", "table1-50m/50m")]


def test_each_seed_is_compared_with_the_reference_of_its_seed() -> None:
    # Two AR hits and eight other tokens; sums of log p.
    logprobs = {
        "ref": [-2, -16], "m": [-8, -24], "close": [-2, -17],
        "ref-seed1": [-1, -16], "m-seed1": [-9, -20], "close-seed1": [-2, -15],
        "m-seed2": [-8, -16],
    }  # fmt: skip
    cells = pd.DataFrame({"n": [2, 8], "repeated": [True, False]} | {PREFIX + m: v for m, v in logprobs.items()})
    members: Any = [
        SimpleNamespace(name=name, member=name.split("-")[0], seed=int(name.partition("-seed")[2] or 0))
        for name in logprobs
    ]
    seeds = {name: [each for each in logprobs if each.startswith(name)] for name in ("ref", "m", "close")}
    gap: Any = SimpleNamespace(
        reference="ref", threshold=None, bins=None, seeds=seeds, hits="AR hits",
        directions={"m": "behind", "close": "level"}, on_hits=SimpleNamespace(share_of_tokens=0.2),
    )  # fmt: skip
    result = SizeResult(Path("x"), gap, cells, members)
    table = seeds_table(result)
    assert table is not None
    assert table.rows == [
        ("ref", "1.800", "1.000", "2.000", "—"),
        ("ref-seed1", "1.700", "0.500", "2.000", "—"),
        ("m", "3.200 (+1.400)", "4.000 (+3.000)", "3.000 (+1.000)", "42.9%"),
        ("m-seed1", "2.900 (+1.200)", "4.500 (+4.000)", "2.500 (+0.500)", "66.7%"),
        ("m-seed2", "2.400 (+0.600)", "4.000 (+3.000)", "2.000 (+0.000)", "100.0%"),
        ("close", "1.900 (+0.100)", "1.000 (+0.000)", "2.125 (+0.125)", "—"),
        ("close-seed1", "1.700 (+0.000)", "1.000 (+0.500)", "1.875 (−0.125)", "—"),
    ]
    assert "ref 0.100 (0.500), m 0.800 (0.500), close 0.200 (0.000)" in table.notes[0]
    # Over all pairs: m loses 6 and 14, 7 and 15; 7 and 11, 8 and 12; 6 and 6, 7 and 7.
    assert result.share_range("m") == (pytest.approx(6 / 14), pytest.approx(1.0))
    assert "m 42.9–100.0%" in table.notes[1]
    assert result.share_range("ref") is not None


def test_a_model_of_one_seed_has_no_range() -> None:
    gap: Any = SimpleNamespace(reference="ref", seeds={"ref": ("ref",), "m": ("m",)})
    assert SizeResult(Path("x"), gap, pd.DataFrame(), ()).share_range("m") is None


def test_the_mean_over_seeds_replaces_their_columns() -> None:
    cells = pd.DataFrame({"n": [1], PREFIX + "a": [-1.0], PREFIX + "a-seed1": [-3.0], PREFIX + "b": [-5.0]})
    found = mean_over_seeds(cells, {"a": ("a", "a-seed1"), "b": ("b",)})
    assert found.to_dict("list") == {"n": [1], PREFIX + "a": [-2.0], PREFIX + "b": [-5.0]}


@pytest.mark.parametrize("folder", SUITES, ids=str)
def test_committed_rows_are_means_over_the_seeds_of_their_table(folder: Path) -> None:
    result = read_size(folder)
    means: dict[str, list[float]] = {}
    for seed in result.seeds:
        means.setdefault(seed.member, []).append(seed.nll["overall"] or np.nan)
    assert means.keys() == {model for model, seeds in result.gap.seeds.items() if len(seeds) > 1}
    for model, values in means.items():
        assert result.gap.on_all[model].nll == pytest.approx(np.mean(values))


def test_numbers_that_differ_in_the_last_digits_are_alike() -> None:
    assert _alike({"a": [1.0, None, "x"]}, {"a": [1.0 + 1e-12, None, "x"]})
    assert not _alike({"a": [1.0]}, {"a": [1.0 + 1e-6]})
    assert not _alike({"a": 1.0}, {"b": 1.0})
    assert not _alike([1.0], [1.0, 2.0])
