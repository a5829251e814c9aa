"""What a sweep refuses, each in one line and before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from argap.errors import ArgapError
from argap.synthetics.sweep import load_sweep

SMALL = {
    "members": {"attention": None},
    "lengths": [16],
    "widths": [8],
    "pairs": [2],
    "lrs": [1e-3],
    "run": {
        "vocab_size": 32,
        "train_examples": 32,
        "validation_examples": 8,
        "test_examples": 8,
        "batch_size": 16,
        "epochs": 1,
    },
}


def written(folder: Path, **change: Any) -> Path:
    """The small sweep, changed, as a file."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | change))
    return path


def refused(folder: Path, **change: Any) -> str:
    """What is said of the small sweep, changed: one line that begins with the file's name."""
    path = written(folder, **change)
    with pytest.raises(ArgapError) as raised:
        load_sweep(path)
    said = str(raised.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize("value", [3, "hyena", ["hyena"], 0])
def test_a_member_is_what_differs_from_its_default(value, tmp_path):
    expected = "attention: expected nothing or KEY: VALUE lines (mixers, learned_positions, mlp), found"
    assert refused(tmp_path, members={"attention": value}) == f"{expected} {value!r}"
