"""Sums by combination of keys: the same as pandas' group-by, however the combinations are numbered."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from argap.metric.bins import Binning, distance_bins, frequency_bins, position_bins
from argap.metric.intervals import DocumentBootstrap
from argap.records import read_gap
from argap.slices.cells import PREFIX, ar_hits, read_cells, sum_by
from argap.slices.figures import Key, slices_of_cells
from argap.slices.margins import AXES, Margins, joint_margins, margins_of
from argap.slices.tally import Groups, joined, tally
from tests.conftest import assert_close

WAYS = {
    "numbered": {"argap.slices.tally.DENSE": 2**16},
    "sorted": {"argap.slices.tally.DENSE": 0},
    "by lexsort": {"argap.slices.tally.DENSE": 0, "argap.slices.tally.BITS": 1},
}


@pytest.fixture(params=WAYS)
def numbered(request, monkeypatch):
    """Combinations are numbered in each of the ways in turn."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(name, value)


def table_of(rows: int) -> Any:
    """Keys of several types, some negative, and columns of whole numbers, whose sums are exact."""
    rng = np.random.default_rng(rows)
    return pd.DataFrame(
        {
            "unit": rng.integers(-1, 3, rows, dtype=np.int32),
            "flag": rng.random(rows) < 0.3,
            "bin": rng.integers(0, 5, rows, dtype=np.int16),
            "n": rng.integers(0, 4, rows),
            "a": rng.integers(-9, 0, rows).astype(np.float32),
            "b": rng.integers(-9, 0, rows).astype(np.float64),
        }
    )


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_sums_are_those_of_a_group_by(numbered, rows):
    frame = table_of(rows)
    keys: Any = ["unit", "flag", "bin"]
    found = tally([frame[key].to_numpy() for key in keys], [frame["a"].to_numpy(), frame["b"].to_numpy()])
    expected = frame.groupby(keys).agg({"a": "sum", "b": "sum", "n": "size"}).reset_index()
    for key, of_key in zip(keys, found.keys, strict=True):
        assert of_key.dtype == frame[key].dtype
        assert of_key.tolist() == expected[key].tolist()
    assert found.n.tolist() == expected["n"].tolist()
    assert found.sums.tolist() == [expected["a"].tolist(), expected["b"].tolist()]


def test_weights_are_counted_in_place_of_rows(numbered):
    frame = table_of(200)
    found = tally([frame["bin"].to_numpy()], [], frame["n"].to_numpy())
    assert found.n.dtype == np.int64
    assert found.n.tolist() == frame.groupby("bin")["n"].sum().tolist()
    assert found.sums.shape == (0, 5)


def test_without_rows_there_are_no_combinations():
    found = tally([np.array([], np.int32), np.array([], bool)], [np.array([])])
    assert [len(each) for each in (*found.keys, found.n, *found.sums)] == [0, 0, 0, 0]


def test_portions_add_up_to_the_whole(numbered):
    frame = table_of(500)

    def of(part: Any) -> Groups:
        return tally([part["unit"].to_numpy(), part["bin"].to_numpy()], [part["b"].to_numpy()], part["n"].to_numpy())

    parts, whole = joined([of(frame[:100]), of(frame[100:101]), of(frame[101:])]), of(frame)
    for one, all_of in zip((*parts.keys, parts.n, parts.sums), (*whole.keys, whole.n, whole.sums), strict=True):
        assert one.tolist() == all_of.tolist()


def test_keys_beyond_an_integer_together(numbered):
    far = np.array([0, 2**40, 0, 2**40, -(2**40)])
    found = tally([far, far, far + 1], [np.arange(5.0)])
    assert found.keys[2].tolist() == [1 - 2**40, 1, 2**40 + 1]
    assert found.sums.tolist() == [[4, 2, 4]]


def test_minus_infinity_stays_in_its_group():
    found = tally([np.array([0, 1, 1])], [np.array([-1, -np.inf, -2])])
    assert found.sums.tolist() == [[-1, -np.inf]]


@pytest.mark.parametrize("keys", [1, 50, 2**17])  # with and without lanes, and by sorting
def test_infinities_of_both_signs_are_nan_without_a_warning(keys: int):
    column = np.ones(100)
    column[[3, 4]] = np.inf, -np.inf
    found = tally([np.where(np.arange(100) < 5, 0, keys - 1)], [column])
    assert np.isnan(found.sums[0, 0])
    assert found.sums[0, 1:].tolist() == [95] * (keys > 1)


def test_text_and_categories_are_keys_of_frames():
    frame: Any = pd.DataFrame({"name": ["b", "a", "b"], "kind": pd.Categorical(["y", "x", "y"]), "n": [1, 2, 3]})
    found, expected = sum_by(frame, ["name", "kind"]), frame.groupby(["name", "kind"], observed=True).sum()
    pd.testing.assert_frame_equal(found, expected.reset_index())


@pytest.mark.parametrize("waiting", [0, 2**18])
def test_margins_tell_what_the_cells_do(token_result, monkeypatch, waiting):
    monkeypatch.setattr("argap.slices.margins.WAITING", waiting)
    cells: Any = read_cells(token_result / "cells.parquet")

    def masks(part: Any) -> dict[Key, np.ndarray]:
        found = {}
        if "repeated" in part:
            found |= {"hits": ar_hits(part, 2, bins), "rest": ~ar_hits(part, 2, bins)}
        if "domain" in part:
            found |= {f"of {name}": (part["domain"] == name).to_numpy() for name in domains}
        for name in ("distance", "position", "copy", "induction"):
            if name in part:
                found |= {f"{name} {k}": (part[name] == k).to_numpy() for k in range(3)}
        return {Key("of the test", name): mask for name, mask in found.items()}

    domains, bins = sorted(set(cells["domain"])), read_gap(token_result).bins
    models = [name.removeprefix(PREFIX) for name in cells.columns if name.startswith(PREFIX)]
    documents, n = np.unique(cells["document"]), cells.groupby("document")["n"].sum().to_numpy()
    margins = Margins(models, documents, n)
    for window in np.array_split(np.arange(len(cells)), 7):
        margins.add(margins_of(joint_margins(cells.iloc[window])))
    expected, found = slices_of_cells(cells, masks(cells), "ref"), slices_of_cells(margins, masks, "ref")
    assert len(expected) > 8
    assert found.keys() == expected.keys()
    for key, part in expected.items():
        assert_close(list(found[key].estimates.values()), list(part.estimates.values()))
    frames = list(margins.frames())
    assert len(frames) == sum(map(len, AXES))
    assert all(frame["unit"].max() < DocumentBootstrap(len(documents)).units for frame in frames)


@pytest.mark.parametrize(
    "bins", [frequency_bins(0), frequency_bins(1250), frequency_bins(10**6), distance_bins(48), position_bins(48)]
)
def test_bins_that_are_looked_up_are_those_of_a_search(bins: Binning):
    near = np.concatenate([np.array(bins.upper) + d for d in (-1, 0, 1)])
    values = np.concatenate([np.arange(70_000), near[near >= 0], [2**16 - 1, 2**16, 2**40]])
    assert (bins.index(values) == np.searchsorted(np.array(bins.upper), values)).all()
