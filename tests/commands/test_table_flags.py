"""``--latex`` and ``--markdown``: one mechanism for every command that prints a table."""

import json
from pathlib import Path
from typing import Any

import pytest

from argap.cli import commands
from argap.cli.output import Output
from argap.reports.tables.formats import Table
from tests.conftest import RunCommand

TABLES = [
    ["compare"], ["demo"], ["discover"], ["kernels"], ["label"], ["models", "bench"], ["models", "list"], ["paper"],
    ["recall"], ["score"], ["slice"], ["suite", "table"], ["suite", "trajectory"],
]  # fmt: skip
"""Commands with both flags."""


def test_every_command_that_prints_a_table_has_the_flags() -> None:
    def walk(command: Any, path: list[str]) -> list[list[str]]:
        children = getattr(command, "commands", {})
        found = [path] if any("--latex" in each.opts for each in command.params) else []
        return found + [each for name, child in children.items() for each in walk(child, [*path, name])]

    assert sorted(walk(commands(), [])) == TABLES


@pytest.mark.parametrize("flags", [["--latex", "--markdown"], ["--json", "--latex"]])
def test_two_forms_at_once_are_refused(flags: list[str], run_command: RunCommand) -> None:
    code, _, said = run_command("paper", *flags)
    assert code == 1
    assert "expected one of them at most" in said


def test_slices_in_latex_and_markdown(token_result: Path, run_command: RunCommand) -> None:
    command = ["slice", str(token_result), "--where", "repeated", "--name", "again_1"]
    tex = run_command(*command, "--latex")[1]
    assert tex.startswith("% \\usepackage{booktabs}\n\\begin{tabular}{llrrrrrrrrr}\n\\toprule\n")
    assert tex.count("again\\_1") == 4  # three models, and the note with its condition
    best = [line for line in tex.splitlines() if "\\textbf" in line]
    assert [line.partition(" & ")[0] for line in best] == ["m-1", "m-1", "m-1"]  # all, AR hits, this one
    text = run_command(*command, "--markdown")[1]
    assert text.startswith("| Model | Slice |")
    assert text.count("**") == 2 * 3


def test_the_papers_check_in_markdown(run_command: RunCommand) -> None:
    text = run_command("paper", "--markdown")[1]
    assert text.startswith("**% of gap due to AR, as printed and as its row gives it**\n\n| Table | Scale |")
    assert "- 16 of 17 rows agree with the share" in text
    assert "\n\n**Share of BaseConv's gap to attention that is closed (table 2)**\n\n" in text


def test_json_makes_no_tables(capsys: pytest.CaptureFixture[str]) -> None:
    def tables() -> list[Table]:
        pytest.fail("not printed")

    Output(as_json=True).show({"n": 1}, tables)
    assert json.loads(capsys.readouterr().out) == {"n": 1}
