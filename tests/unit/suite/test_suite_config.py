"""Reading a suite's YAML, and its one-line errors."""

from pathlib import Path

import pytest
import yaml

from argap.errors import ArgapError
from argap.suite.config import load_suite

GOOD = {
    "reference": "attention",
    "train": {"tokenizer": "t", "data": ["d"], "steps": 4, "warmup_steps": 1},
    "sizes": {"small": {"hidden_size": 32, "num_layers": 2}, "wide": {"hidden_size": 64, "num_layers": 2}},
    "evaluation": {"data": ["e"], "seq_len": 64},
    "members": {"attention": {"seeds": [0, 1]}, "mixed": {"mixers": ["attention", "base_conv"], "num_layers": None}},
}


def written(tmp_path: Path, **changes) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(GOOD | changes))
    return path


def test_entries_differ_only_in_mixers_and_seed(tmp_path):
    entries = load_suite(written(tmp_path)).entries("wide")
    assert [entry.name for entry in entries] == ["attention", "mixed", "attention-seed1"]
    assert [entry.config.architecture for entry in entries] == ["attention", None, "attention"]
    assert {entry.config.hidden_size for entry in entries} == {64}
    assert [entry.config.seed for entry in entries] == [0, 0, 1]
    first, _, again = (entry.config.as_json() for entry in entries)
    assert {key for key in first if first[key] != again[key]} == {"seed"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "nobody"}, "reference: 'nobody' is not a member; members are attention, mixed"),
        ({"base": "nobody"}, "base: 'nobody' is not a member"),
        ({"members": {"attention": None, "nonesuch": None}}, "nonesuch: unknown architecture"),
        ({"sizes": {}}, "sizes: expected at least one"),
        ({"sizes": {"small": {"hiden_size": 3}}}, "attention at small: unknown key hiden_size"),
        ({"sizes": {"small": 3}}, "sizes: small: expected KEY: VALUE lines or nothing, found 3"),
        ({"members": {"attention": 3}}, "members: attention: expected KEY: VALUE lines or nothing, found 3"),
        ({"members": {"attention": {"seeds": 3}}}, "members: attention: seeds: expected a list of different numbers"),
        (
            {"members": {"attention": {"seeds": [0, 0]}}},
            "members: attention: seeds: expected a list of different numbers",
        ),
        ({"members": {"attention": {"seeds": [1]}}}, "members: attention: seeds: expected 0 among them"),
        ({"surprise": 1}, "unknown key surprise; known are"),
        ({"evaluation": {"data": ["e"], "seq_len": "long"}}, "seq_len: expected a whole number"),
        ({"evaluation": {"data": ["e"], "keep": ["language"]}}, "evaluation: keep: a suite's result has no tokens"),
    ],
)
def test_errors_are_one_line(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    with pytest.raises(ArgapError, match=r"^\S+suite\.yaml: ") as error:
        load_suite(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
