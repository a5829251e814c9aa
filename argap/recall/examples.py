"""Examples of the recall tasks: from the hub, from JSON lines of the same schema, or our own fixture."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argap.errors import ArgapError, FormatError, extra
from argap.recall.fixture import fixture_rows
from argap.recall.protocol import contains

HUB = {
    "swde": "hazyresearch/based-swde-v2",
    "fda": "hazyresearch/based-fda",
    "squad": "hazyresearch/based-squad",
}
TASKS = tuple(HUB)
COLUMNS = ("text", "key", "value")
FIXTURE = "fixture"
QUERY_LINES = {"swde": 1, "fda": 1, "squad": 2}
"""How many of the last lines ask: ``key:``, and for SQuAD ``Question: …`` and ``Answer:``."""


@dataclass(frozen=True)
class Example:
    """One question on one text; all strings are stripped."""

    id: str
    document: str
    """What the text was cut from: examples of one document are not independent."""
    key: str
    gold: str
    text: str
    """The text and, in its last lines, the query."""


@dataclass(frozen=True)
class Examples:
    """The rows of one task."""

    task: str
    label: str
    """What scores are printed under: the task's name for the published rows alone."""
    source: str
    revision: str | None
    """Commit of the data set on the hub."""
    rows: list[Example]

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over texts and golds in order."""
        digest = hashlib.sha256()
        for row in self.rows:
            for part in (row.text, row.gold):
                digest.update(part.encode() + b"\0")
        return digest.hexdigest()

    @property
    def gold_absent(self) -> int:
        """Rows whose gold is nowhere in their text before the query: not recall."""
        return sum(not contains(split_query(row.text, self.task)[0], row.gold) for row in self.rows)

    def describe(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "source": self.source,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "examples": len(self.rows),
            "gold_absent": self.gold_absent,
        }


def load_examples(task: str, source: str | None = None, *, limit: int | None = None) -> Examples:
    """The first ``limit`` rows of ``task``: from ``source``, a JSON lines file or ``fixture``; None: the hub.

    Raises `ArgapError` for an unknown task, a missing column, an empty gold, no rows, and a hub that does
    not answer; `FormatError` for a line that is no JSON object.
    """
    if task not in TASKS:
        raise ArgapError(f"--tasks {task}: expected some of {', '.join(TASKS)}, or zeroshot")
    if limit is not None and limit < 1:
        raise ArgapError(f"--limit {limit}: expected at least 1")
    revision = None
    if source == FIXTURE:
        label, rows = f"fixture:{task}", fixture_rows(task)
    elif source is not None:
        label, rows = f"{Path(source).name} ({task} form)", list(_read_lines(Path(source)))
    else:
        source = f"hub:{HUB[task]}"
        label, (rows, revision) = task, _from_hub(task)
    rows = rows[:limit]
    if not rows:
        raise ArgapError(f"{source}: no rows there; expected {', '.join(COLUMNS)} in each")
    return Examples(task, label, source, revision, list(_checked(rows, source)))


def split_query(text: str, task: str) -> tuple[str, str]:
    """The text before the query, and the query with the line break before it."""
    at = len(text)
    for _ in range(QUERY_LINES[task]):
        at = max(text.rfind("\n", 0, at), 0)
    return text[:at], text[at:]


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise ArgapError(f"--data {path}: no such file; expected JSON lines with {', '.join(COLUMNS)}")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a text may hold other line breaks
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not readable as JSON lines ({error})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FormatError(f"{path}, line {number}: not readable as JSON ({error})") from None
        if not isinstance(row, dict):
            raise FormatError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
        yield row


def _checked(rows: Iterable[dict[str, Any]], source: str) -> Iterator[Example]:
    for number, row in enumerate(rows, 1):
        for column in COLUMNS:
            if not isinstance(row.get(column), str):
                raise ArgapError(
                    f"{source}, row {number}: no text in column {column!r}; its columns are {', '.join(row)}"
                )
        gold = row["value"].strip()
        if not gold:
            raise ArgapError(f"{source}, row {number}: the gold (column 'value') is empty, so any answer holds it")
        document = row.get("file_name") or row.get("title") or row.get("doc_id") or number
        yield Example(
            id=str(row.get("doc_id", number - 1)),
            document=str(document),
            key=row["key"].strip(),
            gold=gold,
            text=row["text"].strip(),
        )


def _from_hub(task: str) -> tuple[list[dict[str, Any]], str]:
    from huggingface_hub import HfApi

    with extra("datasets"):
        from datasets import load_dataset

    name = HUB[task]
    try:
        revision = HfApi().dataset_info(name, timeout=30).sha or "main"
        found: Any = load_dataset(name, split="validation", revision=revision)
    except Exception as error:  # the libraries raise many kinds, all of them the network's or the hub's
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgapError(
            f"hub:{name}: the hub does not answer ({reason}); give the rows with --data {task}=FILE.jsonl, "
            "or try --fixture"
        ) from None
    return list(found), revision
