"""Suite tables against worked examples."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from argap.records import Bin
from argap.reports.tables.suite import paper_table, rare_table, trajectory_table
from argap.slices.cells import PREFIX
from argap.suite.result import SizeResult


def test_nll_on_rare_bigrams():
    # Never seen: 4 repeated tokens with 8 nats of the reference (2 each) and 10 of the model, 2 others with 9 and 8.
    # Seen once: one repeated token, in two documents' cells 3 tokens; none that is not repeated, so no column of it.
    # Bin 2 is left out.
    cells = pd.DataFrame(
        {
            "document": [0, 0, 0, 1, 1],
            "repeated": [True, False, True, True, True],
            "frequency": [0, 0, 1, 1, 2],
            "n": [4, 2, 1, 2, 50],
            PREFIX + "ref": [-8.0, -9.0, -1.0, -5.0, -1.0],
            PREFIX + "m": [-10.0, -8.0, -1.0, -5.0, -99.0],
        }
    )
    bins = [Bin("0", 0, 0), Bin("1", 1, 1), Bin("> 1", 2, None)]
    gap: Any = SimpleNamespace(
        bins=SimpleNamespace(frequency=bins), models=["ref", "m"], reference="ref", seeds={"ref": ["ref"], "m": ["m"]}
    )
    table = rare_table(SizeResult(Path("x"), gap, cells, ()))
    assert table is not None
    assert table.columns[1:] == ("Never seen, repeated", "Never seen, not repeated", "Seen once, repeated")
    assert table.rows == [
        ("ref", "2.00", "4.50", "2.00"),
        ("m", "2.50 (+0.50)", "4.00 (−0.50)", "2.00 (+0.00)"),
    ]
    assert "4, 2, 3 tokens" in table.notes[0]
    assert rare_table(SizeResult(Path("x"), gap, cells.query("frequency == 2"), ())) is None


def test_no_model_to_compare_with_the_paper():
    gap: Any = SimpleNamespace(compared=[SimpleNamespace(model="m")])
    assert paper_table(SizeResult(Path("x"), gap, pd.DataFrame(), ()), {"ref": "Attention"}) is None


def test_shares_along_training():
    """NLLs of 2 and 3 on one hit, of 1 and 2 on the other token: half of the gap; then a lead with two thirds on it."""
    columns = ["model", "tokens", "n_ar_hits", "nll_ar_hits", "n_other", "nll_other"]
    rows = [
        ("ref", 100, 1, 2.0, 1, 1.0),
        ("m", 100, 1, 3.0, 1, 2.0),
        ("ref", 200, 1, 2.0, 1, 1.0),
        ("m", 200, 1, 0.0, 1, 0.0),
    ]
    gap: Any = SimpleNamespace(hits="hits", unit="token", index=None)
    table = trajectory_table(pd.DataFrame(rows, columns=columns), "ref", gap)
    assert table.rows == [
        ("100", "2.00", "1.00", "3.00", "2.00", "50%"),
        ("200", "2.00", "1.00", "0.00", "0.00", "67%"),
    ]
