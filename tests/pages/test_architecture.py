"""The rooms: imports go down the floors, and no room is too large."""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import architecture as drawn
import journeys
import pytest

KNOWN = drawn.modules()
MOST = 16
"""Modules in a folder that one can still survey; `argap.models.mixers` has a file for each mixer."""


@pytest.fixture(scope="module")
def imports() -> list[drawn.Import]:
    return drawn.imports(KNOWN)


def test_imports_go_down_the_floors(imports: list[drawn.Import]) -> None:
    assert len(imports) > 1000
    assert drawn.Import("argap.slices.cells", "argap.tokens.labels") in imports
    assert drawn.going_up(imports) == []


def test_an_import_that_goes_up_is_named() -> None:
    up = drawn.Import("argap.slices.tally", "argap.reports.pages.write")
    assert drawn.going_up([up]) == ["argap.slices.tally imports argap.reports.pages.write: reports is not below slices"]


def circle(imports: list[drawn.Import]) -> list[str]:
    """A circle of modules that import each other; empty where there is none."""
    graph: dict[str, set[str]] = {}
    for each in imports:
        graph.setdefault(each.importer, set()).add(each.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other_in_a_circle(imports: list[drawn.Import]) -> None:
    assert circle(imports) == []


def test_every_room_is_small_and_says_what_it_is_for() -> None:
    sizes = Counter(path.parent for path in KNOWN.values() if path.name != "__init__.py")
    large = {folder.name: n for folder, n in sizes.items() if n > MOST and folder.name != "mixers"}
    assert large == {}
    packages = {path for path in KNOWN.values() if path.name == "__init__.py"}
    assert [str(path) for path in packages if not ast.get_docstring(ast.parse(path.read_text()))] == []


@pytest.mark.slow
def test_journeys_are_those_traced() -> None:
    assert journeys.section(journeys.trace()) == journeys.committed()
