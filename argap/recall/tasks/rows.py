"""The functions of the recall tasks' YAML: rows in; prompt, gold and scores out.

lm-eval's ``--metadata '{"rows": "FILE.jsonl"}'`` says where the rows come from: a file, or ``fixture``; by default the
hub.
"""

from typing import Any

from datasets import Dataset

from argap.recall.examples import contains, load_examples, whole_word


def dataset(*, task: str, rows: str | None = None, **_: Any) -> dict[str, Dataset]:
    """Return the only split. Other metadata from lm-eval is ignored."""
    return {"validation": Dataset.from_list([vars(row) for row in load_examples(task, rows).rows])}


def prompt(doc: dict[str, str]) -> str:
    return doc["text"]


def gold(doc: dict[str, str]) -> str:
    return doc["gold"]


def scores(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    generation = results[0]
    return {
        "contains": float(contains(generation, doc["gold"])),
        "whole_word": float(whole_word(generation, doc["gold"])),
    }
