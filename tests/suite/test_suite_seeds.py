"""What seeds change: ranges over seeds beside intervals over documents, and gaps too small to claim a share of."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from argap.cells import PREFIX
from argap.records import GapRow, GapShare, SliceScores
from argap.suite.result import SizeResult, below_seeds, seed_ranges

ROOT = Path(__file__).parents[2]


def row(model: str, nll: float, *, reference: bool = False, unresolved: str | None = None, ci95: Any = None) -> GapRow:
    scores = SliceScores(10, nll, 2.0)
    due = None if reference else GapShare(0.8, 0.8, "explained", ci95, None, unresolved)
    return GapRow(model, reference, scores, scores, scores, 0.1, due, None, None)


def reason(found: GapRow) -> str | None:
    assert found.gap_due_to_ar is not None
    return found.gap_due_to_ar.unresolved


def test_a_gap_within_the_seeds_is_unresolved() -> None:
    rows = [row("ref", 2.80, reference=True), row("near", 2.82), row("better", 2.79), row("far", 2.84)]
    found = below_seeds(rows, {"ref": 0.03})
    assert found[0].gap_due_to_ar is None
    assert reason(found[1]) == "the gap of 0.020 nats is smaller than the 0.030 between seeds"
    assert reason(found[2]) == "the gap of 0.010 nats is smaller than the 0.030 between seeds"
    assert reason(found[3]) is None
    # The model's own seeds count too, and another reason stays.
    wide = below_seeds([rows[0], row("far", 2.84, unresolved="a single document")], {"ref": 0.03, "far": 0.05})
    assert reason(wide[1]) == "a single document; the gap of 0.040 nats is smaller than the 0.050 between seeds"
    assert below_seeds(rows, {}) == rows


def test_the_range_of_a_member_is_over_its_seeds() -> None:
    # NLLs over 4 tokens: ref 1.0 and 1.5, m 2.0.
    cells = pd.DataFrame(
        {"n": [1, 3], PREFIX + "ref": [-1.0, -3.0], PREFIX + "ref-seed1": [-3.0, -3.0], PREFIX + "m": [-8.0, 0.0]}
    )
    members: Any = [SimpleNamespace(name=n, member=m) for n, m in (("ref", "ref"), ("ref-seed1", "ref"), ("m", "m"))]
    assert seed_ranges(cells, members) == {"ref": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("shares", "interval", "shown"),
    [
        ([0.80, 0.90, 0.84], (0.78, 0.86), (0.80, 0.90)),  # 10 points over seeds, 8 over documents
        ([0.80, 0.86], (0.75, 0.85), None),
        ([0.80, float("nan")], (0.79, 0.81), None),
        ([0.80, 0.81], None, (0.80, 0.81)),
    ],
)
def test_the_wider_range_is_shown(
    shares: list[float], interval: Any, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap: Any = SimpleNamespace(rows=(row("ref", 1.0, reference=True), row("m", 2.0, ci95=interval)))
    monkeypatch.setattr(SizeResult, "spread", lambda self: {"m": shares})
    assert SizeResult(Path("x"), gap, pd.DataFrame(), ()).interval_over_seeds("m") == shown


def test_the_committed_table_shows_what_seeds_change() -> None:
    lines = (ROOT / "results" / "table1-mini" / "table.md").read_text().partition("## 50m")[0].splitlines()
    based, delta = (next(line for line in lines if line.startswith(f"| {name} |")) for name in ("based", "delta\\_net"))
    assert "81.2–89.2% ‡" in based
    assert "(100.0%)" in delta
    assert any("the gap of 0.012 nats is smaller than the 0.029 between seeds" in line for line in lines)
