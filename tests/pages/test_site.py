"""What the documentation site is made of, besides the pages in docs/. (`make docs` builds it and checks every link.)"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import argap
from argap.cli import commands

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    return importlib.import_module("repository")


def test_linked_files_are_found_over_pages(site: ModuleType, tmp_path: Path):
    for name, text in {
        "docs/a.md": "[b](../results/b.md#part) [site](https://example.org/x.md) [gone](gone.md) [out](../../out.md)",
        "results/b.md": "![plot](plot.svg) [code](../code.py) [runs](runs)",
        "results/plot.svg": "<svg/>",
        "results/unlinked.md": "",
        "code.py": "# [not a link](results/unlinked.md)",
        "results/runs/1.json": "{}",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = site.linked([tmp_path / "docs" / "a.md"], tmp_path)
    names = [path.relative_to(tmp_path).as_posix() for path in found]
    assert names == ["code.py", "docs/a.md", "results/b.md", "results/plot.svg", "results/runs"]
    assert "- `1.json`" in site.as_page(tmp_path / "results" / "runs", tmp_path)
    assert "~~~~python\n# [not a link]" in site.as_page(tmp_path / "code.py", tmp_path)
    assert site.as_page(tmp_path / "results" / "plot.svg", tmp_path) is None


def test_a_notebook_is_a_page_of_its_cells(site: ModuleType):
    page = site.as_page(ROOT / "notebooks" / "api.ipynb", ROOT)
    assert page.startswith("# argap in Python\n")
    assert "~~~~python\nresult = argap.open_result(out)\nresult\n~~~~" in page
    with_outputs = site.as_page(ROOT / "notebooks" / "quantisation.ipynb", ROOT)
    assert '<img alt="figure drawn by the cell above" src="data:image/png;base64,' in with_outputs
    assert "~~~~text\nthe most likely token changes at 1165 of 4088 tokens\n~~~~" in with_outputs
    assert "<table" in with_outputs
    assert "<style" not in with_outputs


def test_bars_of_code_in_tables_lose_their_backslash(site: ModuleType):
    page = "| `a\\|b` | one\\|two |\n\n`c\\|d`\n"
    assert site.plain_bars(page) == "| `a|b` | one\\|two |\n\n`c\\|d`\n"


def leaves(command: object, words: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    if children := getattr(command, "commands", None):
        for name, child in children.items():
            yield from leaves(child, (*words, name))
    else:
        yield " ".join(words), command


def test_every_command_and_option_is_in_the_reference(site: ModuleType):
    sections = importlib.import_module("command_reference").command_reference().split("\n## ")
    by_name = {section.partition("\n")[0]: section for section in sections[1:]}
    expected = dict(leaves(commands(), ("argap",)))
    assert sorted(by_name) == sorted(expected)
    for name, command in expected.items():
        for parameter in command.params:  # pyright: ignore[reportAttributeAccessIssue]
            for flag in parameter.opts if parameter.param_type_name == "option" else ():
                assert parameter.hidden or flag in by_name[name], f"{name}: {flag}"
    assert "| `--packing <packed\\|document>` |" in by_name["argap score"]


def test_every_public_name_is_in_the_reference(site: ModuleType):
    page = importlib.import_module("python_reference").python_reference()
    for name in set(argap.__all__) - {"__version__"}:
        assert f"::: argap.{name}\n" in f"{page}\n"


def test_pages_that_the_navigation_does_not_name_are_appended(site: ModuleType):
    nav = [{"Start": ["docs/a.md", {"B": "docs/b.md"}]}, {"Project": [{"More": ["NEWS.md"]}]}]
    site.append_unnamed(nav, {"docs/b.md", "docs/new.md"})
    assert site.named(nav) == ["docs/a.md", "docs/b.md", "NEWS.md", "docs/new.md"]
