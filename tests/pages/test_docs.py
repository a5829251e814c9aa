"""Links in the documentation work, and every command and option that it names exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from argap.cli import app

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "results", "suites", "benchmarks", "argap")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
MANUAL = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which may name what was renamed since

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"--[a-z][a-z-]*")
FOREIGN = {"--nproc-per-node"}
"""Options of other programs, where a page names one by itself."""

Command = Any  # of click, which typer may vendor
ARGAP: Command = typer.main.get_command(app)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub generates for a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, fragment = link.partition("#")
        if re.match(r"[a-z]+:", link):  # another site's
            continue
        target = page.parent / path if path else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            yield link


def command_lines(text: str) -> Iterator[str]:
    """Arguments of ``argap`` in console blocks and inline code."""
    spans = CODE.findall(FENCE.sub("", text))
    for language, block in FENCE.findall(text):
        if language == "console":
            spans += block.replace("\\\n", " ").splitlines()
    for span in spans:
        for part in re.split(r"[;&]|\s\|\s", span.partition(" #")[0]):
            if match := re.search(r"(?:^|\s)argap\s+(.*)", part):
                yield " ".join(match[1].split())


def below(command: Command) -> dict[str, Command]:
    """The subcommands of a group, by name."""
    return getattr(command, "commands", {})


def reached(words: list[str]) -> tuple[list[Command], list[str]]:
    """Resolve words to commands (several for ``run|status``); returns them and the remaining words."""
    commands = [ARGAP]
    while words and (known := below(commands[0])) and re.fullmatch(r"[a-z|-]+", words[0]):
        word, *words = words
        if unknown := [each for each in word.split("|") if each not in known]:
            raise LookupError(f"no command {unknown[0]}")
        commands = [known[each] for each in word.split("|")]
    return commands, words


def options(command: Command) -> set[str]:
    own = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return own.union({"--help"}, *(options(each) for each in below(command).values()))


def mistakes(line: str) -> Iterator[str]:
    """Errors in a command line given without its leading ``argap``."""
    try:
        words = shlex.split(line)
    except ValueError:  # an apostrophe of the text
        words = line.split()
    try:
        commands, rest = reached(words)
    except LookupError as error:
        yield f"argap {line}: {error}"
        return
    for command in commands:
        for option in OPTION.findall(" ".join(rest)):
            if option not in options(command):
                yield f"argap {line}: {command.name} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", MANUAL, ids=name)
def test_commands_exist(page):
    assert [each for line in command_lines(page.read_text()) for each in mistakes(line)] == []


@pytest.mark.parametrize("page", MANUAL, ids=name)
def test_options_named_by_themselves_exist(page):
    """Checks inline code that starts with an option, such as `--device cuda`."""
    spans = [span for span in CODE.findall(FENCE.sub("", page.read_text())) if span.startswith("--")]
    known = options(ARGAP) | FOREIGN
    assert [span for span in spans if not set(OPTION.findall(span)) <= known] == []


def test_examples_of_exit_codes(run_command):
    page = (ROOT / "docs" / "reliability.md").read_text()
    examples = re.findall(r"^\| (\d+) \|.*\| `argap (.+)` \|$", page, re.MULTILINE)
    assert [code for code, _ in examples] == ["0", "1", "2"]
    for code, command in examples:
        assert run_command(*shlex.split(command))[0] == int(code), command


def test_the_checks_detect_errors(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One page\n\n[gone](gone.md) [here](page.md#one-page) [not](#two) [site](https://example.org)\n")
    assert list(broken_links(page)) == ["gone.md", "#two"]
    text = "`argap suite run|stop`\n\n```console\n$ argap score A \\\n    --ref B --nothing 3  # argap comment\n```\n"
    assert [each for line in command_lines(text) for each in mistakes(line)] == [
        "argap suite run|stop: no command stop",
        "argap score A --ref B --nothing 3: score has no --nothing",
    ]
