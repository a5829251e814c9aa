"""What the YAML of the recall tasks calls: rows in, prompt, gold and scores out.

Where the rows come from is lm-eval's ``--metadata '{"rows": "FILE.jsonl"}'``: a file, ``fixture``, or
without it the hub.
"""

from typing import Any

from datasets import Dataset

from argap.recall.examples import load_examples
from argap.recall.protocol import contains, whole_word


def dataset(*, task: str, rows: str | None = None, **_: Any) -> dict[str, Dataset]:
    """The one split. Further metadata, as lm-eval hands it on, says nothing here."""
    return {"validation": Dataset.from_list([vars(row) for row in load_examples(task, rows).rows])}


def prompt(doc: dict[str, Any]) -> str:
    return doc["text"]


def gold(doc: dict[str, Any]) -> str:
    return doc["gold"]


def scores(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    generation = results[0]
    return {
        "contains": float(contains(generation, doc["gold"])),
        "whole_word": float(whole_word(generation, doc["gold"])),
    }
