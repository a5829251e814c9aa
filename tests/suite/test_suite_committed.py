"""The committed results: tables and intervals are rebuilt from the small files, and all of one evaluation set."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from argap.cli.suite import app
from argap.suite.result import read_result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "table1-mini"
PARTS = ("overall", "ar_hits", "other")


def test_the_tables_are_rebuilt_to_the_byte(tmp_path):
    copy = tmp_path / "table1-mini"
    shutil.copytree(RESULTS, copy, ignore=shutil.ignore_patterns("*.md", "*.csv", "figures", "report.html"))
    result = CliRunner().invoke(app, ["table", str(ROOT / "suites" / "table1-mini.yaml"), "--out", str(copy)])
    assert result.exit_code == 0, result.output
    for name in ("table.md", "table.csv"):
        assert (copy / name).read_text() == (RESULTS / name).read_text()


@pytest.mark.parametrize("size", ["7m", "50m"])
def test_every_row_has_a_member_scored_on_the_same_text(size):
    result = read_result(RESULTS / size)
    members = {member["name"]: member for member in result.members}
    assert {member["evaluation"] for member in members.values()} == {result.gap["fingerprint"]}
    parameters = [members[row["model"]]["parameters"] for row in result.gap["rows"]]
    assert max(parameters) / min(parameters) < 1.05
    assert {member["train"]["data"]["fingerprint"] for member in members.values()} == {
        result.members[0]["train"]["data"]["fingerprint"]
    }
    for row in result.gap["rows"]:
        assert row["run"] == members[row["model"]]["checkpoint"]


@pytest.mark.parametrize("size", ["7m", "50m"])
def test_the_page_prints_what_was_measured(size):
    """For every model that has its own name on the page."""
    table = (RESULTS / "README.md").read_text().partition(f"| {size} | Overall ")[2].partition("\n\n")[0]
    lines = {line.split(" ")[1]: line for line in table.splitlines()[2:]}
    rows = {row["model"]: row for row in read_result(RESULTS / size).gap["rows"]}
    assert len(lines.keys() & rows.keys()) >= 6
    for name in lines.keys() & rows.keys():
        cells = (f"{rows[name][part]['ppl']:.2f} ({rows[name][part]['nll']:.2f})" for part in PARTS)
        assert " | ".join(cells) in lines[name]
        if not rows[name]["reference"]:
            low, high = rows[name]["gap_due_to_ar"]["ci95"]
            assert f"{100 * low:.1f}–{100 * high:.1f}%".replace("100.0", "100") in lines[name]
