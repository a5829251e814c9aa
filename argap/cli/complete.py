"""Complete words on the command line: results, references, architectures, and the models of a result.

``argap --install-completion`` turns completion on. Where nothing is found the shell completes files.
"""

import json
from contextlib import suppress
from pathlib import Path

import typer

DEEPEST = 3
"""Levels of folders searched for results: ``results/SUITE/SIZE``."""


def results(incomplete: str) -> list[str]:
    """Return folders with a ``gap.json`` that start with ``incomplete``."""
    typed = Path(incomplete)
    parent = typed if incomplete.endswith("/") else typed.parent
    found: list[str] = []
    level = [parent]
    with suppress(OSError):
        for _ in range(DEEPEST):
            level = [each for folder in level for each in sorted(folder.iterdir()) if _may_hold_result(each)]
            level = [each for each in level if str(each).startswith(incomplete.rstrip("/"))]
            found += [str(each) for each in level if (each / "gap.json").is_file()]
    return found


def _may_hold_result(folder: Path) -> bool:
    return folder.is_dir() and not folder.name.startswith(".")


def references(incomplete: str) -> list[str]:
    """Return the names of `argap ref list`."""
    from argap.checkpoints.references import references as recorded

    return [name for name in sorted(recorded()) if name.startswith(incomplete)]


def architectures(incomplete: str) -> list[str]:
    """Return the names of `argap models list`."""
    from argap.records.models import read_listed

    return [each.name for each in read_listed() if each.name.startswith(incomplete)]


def models_of_result(context: typer.Context, incomplete: str) -> list[str]:
    """Return the models of the result named earlier on the line, without its reference."""
    files = [Path(word) / "gap.json" for word in (context.params.get("result"), *context.args) if word]
    for path in files:
        with suppress(OSError, ValueError, KeyError, TypeError):
            models = [row["model"] for row in json.loads(path.read_text())["models"][1:]]
            return [name for name in models if name.startswith(incomplete)]
    return []
