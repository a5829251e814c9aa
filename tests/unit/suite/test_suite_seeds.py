"""What seeds change: ranges over seeds beside intervals over documents, and gaps too small to claim a share of."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from msgspec.structs import replace

from argap.records import Bins, Estimate, Gap, GapRow
from argap.reports.tables.suite import seeds_table
from argap.slices.cells import PREFIX
from argap.suite.result import SizeResult, below_seeds, seed_ranges

ROOT = Path(__file__).parents[3]


def gap_of(nlls: dict[str, float], reason: str | None = None, ci95: Any = None) -> Gap:
    """The result of models with the given NLLs, the first of which is the reference."""
    reference = next(iter(nlls))
    estimates = []
    for partition, bin_ in (("all", "all"), ("slice", "ar_hits"), ("slice", "other")):
        for model, nll in nlls.items():
            made = Estimate(model, partition, bin_, 10, 1.0, nll, 2.0)
            compared = {"delta": nll - nlls[reference], "paper_rule": 0.8, "share": 0.8, "share_ci95": ci95}
            estimates.append(made if model == reference else replace(made, **compared, reason=reason))
    rows, known = tuple(map(GapRow, nlls)), {"unit": "token", "slices": (), "date": "", "run": "", "versions": {}}
    unknown: Any = dict.fromkeys(("threshold", "evaluation", "index", "documents", "effective_documents"))
    empty = Bins((), (), ())
    return Gap(format=3, reference=reference, rows=rows, bins=empty, estimates=tuple(estimates), **known, **unknown)


def test_a_gap_within_the_seeds_is_unresolved() -> None:
    gap = gap_of({"ref": 2.80, "near": 2.82, "better": 2.79, "far": 2.84})
    found = below_seeds(gap, {"ref": 0.03}).on_hits
    assert found["ref"].reason is None
    assert found["near"].reason == "the gap of 0.020 nats is smaller than the 0.030 between seeds"
    assert found["better"].reason == "the gap of 0.010 nats is smaller than the 0.030 between seeds"
    assert found["far"].reason is None
    # The model's own seeds count too, and another reason stays.
    wide = below_seeds(gap_of({"ref": 2.80, "far": 2.84}, "a single document"), {"ref": 0.03, "far": 0.05}).on_hits
    assert wide["far"].reason == "a single document; the gap of 0.040 nats is smaller than the 0.050 between seeds"
    assert below_seeds(gap, {}).on_hits == gap.on_hits


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
        ([0.80], (0.79, 0.81), None),
        ([0.80, 0.81], None, (0.80, 0.81)),
    ],
)
def test_the_wider_range_is_shown(
    shares: list[float], interval: Any, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = gap_of({"ref": 1.0, "m": 2.0}, ci95=interval)
    monkeypatch.setattr(SizeResult, "spread", lambda self: {"m": shares})
    assert SizeResult(Path("x"), gap, pd.DataFrame(), ()).interval_over_seeds("m") == shown


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
    gap: Any = SimpleNamespace(reference="ref", threshold=None, documents=None)
    result = SizeResult(Path("x"), gap, cells, members)
    shares = {"m": [6 / 14, 8 / 12, 6 / 6], "close": [0, 1]}  # the third is compared with the first of ref
    assert result.spread() == {member: pytest.approx(values) for member, values in shares.items()}
    table = seeds_table(result)
    assert table is not None
    assert table.rows == [
        ("ref", "1.800", "1.000", "2.000", "—"),
        ("ref-seed1", "1.700", "0.500", "2.000", "—"),
        ("m", "3.200 (+1.400)", "4.000 (+3.000)", "3.000 (+1.000)", "42.9%"),
        ("m-seed1", "2.900 (+1.200)", "4.500 (+4.000)", "2.500 (+0.500)", "66.7%"),
        ("m-seed2", "2.400 (+0.600)", "4.000 (+3.000)", "2.000 (+0.000)", "(100.0%)"),
        ("close", "1.900 (+0.100)", "1.000 (+0.000)", "2.125 (+0.125)", "(0.0%)"),
        ("close-seed1", "1.700 (+0.000)", "1.000 (+0.500)", "1.875 (−0.125)", "(100.0%)"),
    ]
    assert [seed.name for seed in result.seeds if seed.unresolved] == ["m-seed2", "close", "close-seed1"]
    assert "ref 0.100 (0.500), m 0.800 (0.500), close 0.200 (0.000)" in table.notes[0]


def test_the_committed_table_shows_what_seeds_change() -> None:
    lines = (ROOT / "results" / "table1-mini" / "table.md").read_text().partition("## 50m")[0].splitlines()
    based = [line for line in lines if line.startswith("| based")]
    assert any("(86.2%)ᵃ | 83.4–90.5%" in line for line in based)
    assert any(line.startswith("| based-seed2 |") and line.endswith("(79.4%) |") for line in based)
    assert any("the gap of 0.013 nats is smaller than the 0.021 between seeds" in line for line in lines)
