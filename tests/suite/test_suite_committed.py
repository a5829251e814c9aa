"""The committed results: tables and intervals are rebuilt from the small files, and all of one evaluation set."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from argap.cli.suite import app
from argap.suite.result import read_result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "table1-mini"


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


@pytest.mark.parametrize(
    ("size", "model"), [("7m", "base_conv"), ("7m", "based"), ("50m", "base_conv"), ("50m", "based")]
)
def test_the_page_prints_what_was_measured(size, model):
    result = read_result(RESULTS / size)
    row = next(row for row in result.gap["rows"] if row["model"] == model)
    low, high = row["gap_due_to_ar"]["ci95"]
    table = (RESULTS / "README.md").read_text().partition(f"| {size} | Overall ")[2]
    line = next(line for line in table.splitlines() if line.startswith(f"| {model} "))
    assert f"{100 * row['gap_due_to_ar']['value']:.1f}% | {100 * low:.1f}–{100 * high:.1f}%" in line
    assert f"{row['overall']['ppl']:.2f} ({row['overall']['nll']:.2f})" in line
