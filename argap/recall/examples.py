"""Questions of the recall tasks: from the hub, from JSON lines with the same columns, or made by argap."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argap.corpus import jsonl
from argap.errors import ArgapError, extra, first_line
from argap.files.configs import whole_number
from argap.files.regular import is_there
from argap.recall.fixture import LENGTHS, LONGEST, SHORTEST, fixture_rows, needle_rows
from argap.records import Record

HUB = {
    "swde": "hazyresearch/based-swde-v2",
    "fda": "hazyresearch/based-fda",
    "squad": "hazyresearch/based-squad",
}
NEEDLE = "needle"
TASKS = (*HUB, NEEDLE)
COLUMNS = ("text", "key", "value")
NAMES = ("doc_id", "file_name", "title")
"""Optional columns: the name of a row, and that of its document."""
FIXTURE = "fixture"
NEEDLES = "needles:"
"""Start of a source of needles, which the lengths of the texts in words follow: ``needles:128,512``."""
Rows = Sequence[Mapping[str, Any]]
"""The rows of a source, not checked yet."""
COPY = "copy"
"""The name of the copy baseline, in place of a checkpoint."""
QUERY_LINES = {"swde": 1, "fda": 1, "squad": 2, NEEDLE: 1}
"""Lines at the end of a text that ask the question: ``key:``, and for SQuAD ``Question: …`` and ``Answer:``."""


@dataclass(frozen=True)
class Example:
    """One question about one text. All strings are stripped."""

    id: str
    document: str
    """Where the text comes from: examples from one document are not independent."""
    key: str
    gold: str
    text: str
    """The text; its last lines are the query."""


class TaskData(Record, frozen=True):
    """The examples of one task, as ``recall.json`` and ``run.json`` describe them."""

    label: str
    source: str
    """``hub:NAME``, ``fixture``, ``needles:LENGTHS`` or the path of a file."""
    revision: str | None
    """Commit of the data set on the hub."""
    fingerprint: str
    examples: int
    gold_absent: int
    """Examples whose text does not contain the gold."""


@dataclass(frozen=True)
class Examples:
    """The examples of one task, in order."""

    task: str
    label: str
    """The name under which scores are printed. Only the published rows have the task's own name."""
    source: str
    revision: str | None
    rows: list[Example]

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the texts and golds in order."""
        digest = hashlib.sha256()
        for row in self.rows:
            for part in (row.text, row.gold):
                digest.update(part.encode() + b"\0")
        return digest.hexdigest()

    @property
    def gold_absent(self) -> int:
        """Number of examples without the gold in the text (except the query): answering them takes no recall."""
        return sum(not contains(split_query(row.text, self.task)[0], row.gold) for row in self.rows)

    def describe(self) -> TaskData:
        return TaskData(self.label, self.source, self.revision, self.fingerprint, len(self.rows), self.gold_absent)


def load_tasks(
    tasks: Sequence[str], data: Sequence[str] = (), *, fixture: bool = False, limit: int | None = None
) -> list[Examples]:
    """Load the examples of several tasks: from the hub, from the fixture, or from ``data``.

    ``data``: entries ``TASK=FILE.jsonl``, or one ``FILE.jsonl`` for the only task. Raises the errors of
    `load_examples`, and `ArgapError` for an entry that fits no task.
    """
    if not tasks:
        raise ArgapError(f"`tasks` (none): expected some of {', '.join(TASKS)}, or names of lm-eval's tasks")
    files: dict[str, str] = {}
    for entry in data:
        task, equals, path = entry.partition("=")
        if equals and task in tasks:
            files[task] = path
        elif len(tasks) == len(data) == 1:
            files[tasks[0]] = entry
        else:
            raise ArgapError(
                f"`data` {entry}: for which task? With several tasks give each its file, as in {tasks[0]}=FILE.jsonl"
            )
    return [load_examples(task, FIXTURE if fixture else files.get(task), limit=limit) for task in tasks]


def load_examples(task: str, source: str | None = None, *, limit: int | None = None) -> Examples:
    """Load the first ``limit`` rows of ``task``.

    ``source``: a JSON lines file, ``fixture``, ``needles:LENGTHS``, or None for the hub, and for needles of every
    default length.

    Raises `ArgapError` for an unknown task, a missing column, an empty gold, a source without rows, and a hub that
    cannot be reached; `FormatError` for a line that is not a JSON object.
    """
    if task not in TASKS:
        raise ArgapError(f"`tasks` {task}: expected some of {', '.join(TASKS)}; lm-eval's tasks need no examples")
    if limit is not None and limit < 1:
        raise ArgapError(f"`limit` {limit}: expected at least 1")
    rows: Rows
    revision = None
    if task == NEEDLE and source is None:
        source = NEEDLES + ",".join(map(str, LENGTHS))
    if source == FIXTURE:
        label, rows = f"fixture:{task}", needle_rows((128,)) if task == NEEDLE else fixture_rows(task)
    elif source is not None and source.startswith(NEEDLES):
        lengths = _lengths(source)
        label, rows = f"needles in {', '.join(map(str, lengths))} words", needle_rows(lengths)
    elif source is not None:
        label, rows = f"{Path(source).name} ({task} form)", _read_lines(Path(source))
    else:
        source = f"hub:{HUB[task]}"
        label, (rows, revision) = task, _from_hub(task)
    rows = rows[:limit]
    if not rows:
        raise ArgapError(f"{source}: no rows; expected JSON lines with {', '.join(COLUMNS)}")
    return Examples(task, label, source, revision, list(_checked(rows, source)))


def split_query(text: str, task: str) -> tuple[str, str]:
    """Split a text into the part before the query, and the query with its leading line break."""
    at = len(text)
    for _ in range(QUERY_LINES[task]):
        at = max(text.rfind("\n", 0, at), 0)
    return text[:at], text[at:]


def contains(text: str, gold: str) -> bool:
    """Return whether the gold is a substring of the text, ignoring case: the papers' metric."""
    return re.search(re.escape(gold), text, re.IGNORECASE) is not None


def whole_word(text: str, gold: str) -> bool:
    """Return `contains`, but not inside a longer word or number: ``5`` does not match ``1995``."""
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text, re.IGNORECASE) is not None


def _lengths(source: str) -> tuple[int, ...]:
    """Parse the lengths of a source of needles."""
    numbers = [whole_number(text) for text in source.removeprefix(NEEDLES).split(",")]
    found = tuple(number for number in numbers if number is not None and SHORTEST <= number <= LONGEST)
    if len(found) < len(numbers):
        raise ArgapError(f"`data` {source}: expected lengths of {SHORTEST} to {LONGEST:,} words, as in needles:128,512")
    return found


def _read_lines(path: Path) -> Rows:
    if not is_there(path):
        raise ArgapError(f"`data` {path}: no such file; expected JSON lines with {', '.join(COLUMNS)}")
    return jsonl.valid_rows(path)


def _checked(rows: Rows, source: str) -> Iterator[Example]:
    for number, row in enumerate(rows, 1):
        for column in COLUMNS:
            if not isinstance(row.get(column), str):
                raise ArgapError(
                    f"{source}, row {number}: expected a string in column {column!r}; its columns are {', '.join(row)}"
                )
        gold = row["value"].strip()
        if not gold:
            raise ArgapError(f"{source}, row {number}: the gold (column 'value') is empty, so any answer would match")
        names = {column: _name(row, column, f"{source}, row {number}") for column in NAMES}
        yield Example(
            id=names["doc_id"] or str(number - 1),
            document=names["file_name"] or names["title"] or names["doc_id"] or str(number),
            key=row["key"].strip(),
            gold=gold,
            text=row["text"].strip(),
        )


def _name(row: Mapping[str, Any], column: str, where: str) -> str:
    """Return what a row has in one of `NAMES`; empty if it is null or not there."""
    name = row.get(column)
    if name is None or (isinstance(name, str | int) and not isinstance(name, bool)):
        return "" if name is None else str(name)
    raise ArgapError(f"{where}: expected a string or a whole number in column {column!r}, found {name!r}"[:300])


def _from_hub(task: str) -> tuple[Rows, str]:
    from huggingface_hub import HfApi

    with extra("datasets"):
        from datasets import load_dataset

    name = HUB[task]
    try:
        revision = HfApi().dataset_info(name, timeout=30).sha or "main"
        rows: Any = load_dataset(name, split="validation", revision=revision)
    except Exception as error:  # the libraries raise many types, all caused by the network or the hub
        raise ArgapError(
            f"hub:{name}: the hub cannot be reached ({first_line(error)}); give the rows with "
            f"`data={task}=FILE.jsonl`, or try `fixture=True`"
        ) from None
    return list(rows), revision
