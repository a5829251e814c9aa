"""docs/fidelity.md: every path exists, and no item counts as done without a result or a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fidelity.md"
FOLDERS = ("argap", "kernels", "reports", "benchmarks", "suites", "results", "tests", "docs")
COLUMNS = ["item", "in argap", "settings that differ", "result and scale", "agreement"]
MEASURED, OTHERS = ("agrees", "partly", "differs"), ("tested", "ready", "absent")


def rows(text: str) -> list[list[str]]:
    """The cells of every row below a header of `COLUMNS`."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")] if line.startswith("|") else []
        if cells == COLUMNS:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(line) <= set("|-: "):
            found.append(cells)
    return found


def paths(text: str) -> list[str]:
    """Repository paths, some with ``::test``, in code and as targets of links."""
    code = [span for span in re.findall(r"`([^`]+)`", text) if span.split("/")[0] in FOLDERS and "/" in span]
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    return code + [(PAGE.parent / link).resolve().relative_to(ROOT.resolve()).as_posix() for link in links]


def problem(row: list[str]) -> str | None:
    """What a row lacks; None if nothing."""
    if len(row) != len(COLUMNS):
        return f"{len(row)} cells"
    agreement, named = row[-1], paths(" | ".join(row))
    for path in named:
        file, _, test = path.partition("::")
        if not (ROOT / file).exists():
            return f"no file {file}"
        if test and f"def {test}(" not in (ROOT / file).read_text():
            return f"no test {path}"
    if agreement in MEASURED:
        results = [path for path in named if path.startswith(("results/", "benchmarks/results/"))]
        return None if results else f"{agreement}, but no result"
    if agreement == "tested":
        return None if any(path.startswith("tests/") for path in named) else "tested, but by no test"
    if agreement == "ready":
        runs = any(path.startswith(("suites/", "argap/", "benchmarks/")) for path in named) or "`argap " in row[1]
        return None if runs else "ready, but nothing to run"
    return None if agreement == "absent" else f"agreement {agreement!r}"


def test_every_row_is_backed_by_what_it_names() -> None:
    found = rows(PAGE.read_text())
    assert len(found) > 40
    assert {row[0]: reason for row in found if (reason := problem(row))} == {}


def test_every_word_of_agreement_is_explained() -> None:
    used = {row[-1] for row in rows(PAGE.read_text())}
    legend = PAGE.read_text().partition("| agreement | meaning |")[2].partition("\n\n")[0]
    assert used <= {*MEASURED, *OTHERS}
    assert all(re.search(rf"\b{word}\b", legend) for word in used)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (["a", "`argap/metric/share.py`", "", "[x](../results/mqar/README.md)", "agrees"], None),
        (["a", "`argap/metric/share.py`", "", "", "agrees"], "agrees, but no result"),
        (["a", "`argap/metric/share.py`", "", "`tests/unit/metric/test_gap.py`", "done"], "agreement 'done'"),
        (["a", "`argap/nothing.py`", "", "", "ready"], "no file argap/nothing.py"),
        (
            ["a", "", "", "`tests/unit/metric/test_gap.py::test_nothing`", "tested"],
            "no test tests/unit/metric/test_gap.py::test_nothing",
        ),
        (["a", "", "", "", "ready"], "ready, but nothing to run"),
        (["a", "`argap/metric/share.py`", "", "", "tested"], "tested, but by no test"),
        (["a", "", "", "absent"], "4 cells"),
    ],
)
def test_the_check_detects_errors(row: list[str], reason: str | None) -> None:
    assert problem(row) == reason
