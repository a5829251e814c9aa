"""Find the folders that define lm-eval's tasks, without lm-eval's own index of all tasks, which takes 25 s.

The names are those written out in task files (``task:``, ``group:``, ``tag:``). Files are read as text, not imported.
"""

import difflib
import importlib.util
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from argap.errors import ArgapError

KEYS = rb"[\"']?(?:task|group|tag)[\"']?\s*:[ \t]*"
NAME = rb"[\"']?([\w.+/@:-]+)[\"']?"
DEFINED = re.compile(
    rb"^" + KEYS + NAME + rb"[ \t\r]*(?:#.*)?$|^[\"']?tag[\"']?\s*:[ \t\r]*\n((?:[ \t]*-.*\n?)+)", re.M
)
ITEM = re.compile(rb"-\s*" + NAME)
SHOWN = 4
"""Number of close names in an error."""


def task_folders(names: Sequence[str], own: Path | None = None) -> list[Path]:
    """Return the folders with the files that define ``names``: in ``own``, the user's folder, else in lm-eval.

    Raises `ArgapError` for an undefined name, with the closest ones.
    """
    sources = [*([_defined(own)] if own else []), _defined(_shipped())]
    found: list[Path] = []
    for name in names:
        folders = next((defined[name] for defined in sources if name in defined), None)
        if folders is None:
            known = [known for defined in sources for known in defined]
            close = ", ".join(difflib.get_close_matches(name, known, SHOWN))
            raise ArgapError(
                f"`tasks` {name}: no task of lm-eval{f' or of {own}' if own else ''}; "
                f"{f'close are {close}' if close else 'see lm_eval ls tasks'}"
            )
        found += folders
    return _outermost(found)


def _shipped() -> Path:
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ArgapError("lm_eval is not installed; run `pip install 'argap[recall]'`")
    return Path(spec.submodule_search_locations[0]) / "tasks"


@cache
def _defined(root: Path) -> dict[str, tuple[Path, ...]]:
    """Return the names that the task files below ``root`` define, and the folders of these files."""
    if not root.is_dir():
        raise ArgapError(f"`task_path` {root}: no such folder")
    names: dict[str, dict[Path, None]] = {}
    for path in filter(Path.is_file, root.rglob("*.yaml")):
        for match in DEFINED.finditer(path.read_bytes()):
            for name in [match[1]] if match[1] else ITEM.findall(match[2]):
                names.setdefault(name.decode(), {})[path.parent] = None
    return {name: tuple(folders) for name, folders in names.items()}


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Drop repetitions and folders inside others."""
    kept: list[Path] = []
    for folder in sorted(set(folders)):
        if not kept or kept[-1] not in folder.parents:
            kept.append(folder)
    return kept
