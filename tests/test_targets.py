"""Checkpoints of one name, told apart by where they lie."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from argap.errors import ArgapError
from argap.targets import Settings, Target, told_apart


def target(folder: str) -> Target:
    checkpoint: Any = SimpleNamespace(folder=Path(folder))
    return Target(Path(folder).name, checkpoint, None, Settings())


def test_a_second_checkpoint_of_a_name_has_its_parent_s_too():
    found = told_apart([target("a/final"), target("b/final"), target("b/other")])
    assert [one.name for one in found] == ["final", "b/final", "other"]
    assert [str(one.checkpoint and one.checkpoint.folder) for one in found] == ["a/final", "b/final", "b/other"]


def test_what_its_parent_does_not_tell_apart_is_refused():
    with pytest.raises(ArgapError, match="b/final: a second checkpoint of that name"):
        told_apart([target("x/final"), target("a/b/final"), target("c/b/final")])
