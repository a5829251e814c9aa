"""Checkpoints with equal names get the names of their parent folders as well."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from argap.errors import ArgapError
from argap.targets import CheckpointTarget, with_distinct_names


def target(folder: str) -> CheckpointTarget:
    checkpoint: Any = SimpleNamespace(folder=Path(folder))
    return CheckpointTarget(Path(folder).name, checkpoint)


def test_equal_names_get_the_parent_folder_s_name():
    named = with_distinct_names([target("a/final"), target("b/final"), target("b/other")])
    assert [one.name for one in named] == ["final", "b/final", "other"]
    assert [str(one.checkpoint.folder) for one in named if isinstance(one, CheckpointTarget)] == [
        "a/final",
        "b/final",
        "b/other",
    ]


def test_names_still_equal_with_parents_are_refused():
    with pytest.raises(ArgapError, match="b/final: two models have this name"):
        with_distinct_names([target("x/final"), target("a/b/final"), target("c/b/final")])
