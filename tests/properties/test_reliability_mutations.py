"""Altered files: every outcome is the result of the original, or one line and exit 1; never a traceback.

300 mutations that Hypothesis draws from a fixed seed: of JSON, YAML and Parquet by structure (a key removed, a value of
another type or size, a column without values), of all files by bytes. Any number from a fresh seed:

    ARGAP_TRIES=2000 pytest -m slow tests/properties/test_reliability_mutations.py
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import each
import mutations
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argap.checkpoints.find import find_checkpoint
from argap.cli import main
from argap.errors import ArgapError
from argap.records import EvaluationSpec, read_gap
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from argap.slices.cells import read_cells
from argap.suite.config import load_suite
from argap.tokens.labels import read_labels
from argap.tokens.runs import open_run, read_logprobs

DEMO = Path(__file__).parents[2] / "argap" / "demo"
TRIES = 300
COMMANDS = 24


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of one of the demo's models, a suite file, and the model's configuration."""
    out = tmp_path_factory.mktemp("mutations") / "out"
    spec = EvaluationSpec(data=("stdlib:heldout",), seq_len=64, limit_tokens=300)
    hybrid = DEMO / "checkpoints" / "hybrid"
    score_models([str(hybrid)], "attention", out, ScoreConfig(text=spec, index=str(DEMO / "index")))
    suite = {
        "reference": "attention",
        "members": {"attention": None, "hyena": {"seeds": [0, 1]}},
        "sizes": {"tiny": {"hidden_size": 8}},
        "train": {"tokenizer": "t", "data": ["text"], "steps": 1, "warmup_steps": 0},
        "evaluation": {"data": ["text"], "seq_len": 64},
    }
    (out / "suite.yaml").write_text(yaml.safe_dump(suite))
    shutil.copytree(hybrid, out / "model")
    return out


def described(out: Path) -> Any:
    from argap.models.describe import describe_checkpoint

    return describe_checkpoint("hybrid", find_checkpoint(out / "model").folder)


READERS: dict[str, Callable[[Path], Any]] = {
    "hybrid/run.json": lambda out: open_run(out / "hybrid"),
    "hybrid/tokens/part-00000.parquet": lambda out: [a.tobytes() for a in read_logprobs(open_run(out / "hybrid"))],
    "labels/labels.json": lambda out: read_labels(out / "labels").record,
    "labels/labels.parquet": lambda out: read_labels(out / "labels").train_count.tobytes(),
    "gap.json": lambda out: read_gap(out),
    "cells.parquet": lambda out: read_cells(out / "cells.parquet").to_csv(),
    "model/config.json": described,
    "suite.yaml": lambda out: load_suite(out / "suite.yaml"),
}


FRESH = pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.slow)])
RECORDS = ["hybrid/run.json", "attention/run.json", "labels/labels.json"]


def tries(count: int, files: int, *, fresh: bool, of_asked: int = 1) -> settings:
    """The settings of each file's part of ``count`` tries from a fixed seed, or, ``fresh``, of those asked for."""
    count = int(os.environ.get("ARGAP_TRIES", "2000")) // of_asked if fresh else count
    return settings(
        max_examples=max(1, count // files),
        derandomize=not fresh,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
    )


@FRESH
@pytest.mark.parametrize("name", READERS)
def test_an_altered_file_is_read_or_refused_in_one_line(result: Path, tmp_path: Path, name: str, fresh: bool) -> None:
    out = Path(shutil.copytree(result, tmp_path / "out"))
    path = out / name
    original, whole = path.read_bytes(), READERS[name](out)
    refused = []

    @tries(TRIES, len(READERS), fresh=fresh)
    @given(st.randoms(use_true_random=True))
    def altered(rng: Random) -> None:
        path.write_bytes(original)
        how = mutations.mutate(rng, path)
        try:
            found = READERS[name](out)
        except ArgapError as error:
            refused.append(str(error))
            assert "\n" not in refused[-1], how
        else:
            sealed = path.suffix == ".parquet" or (path.suffix == ".json" and b"checksum" in original)
            assert not sealed or mutations.UNSEALED in how or found == whole, f"{how}: believed"

    altered()
    assert len(refused) > 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


@FRESH
@pytest.mark.parametrize("name", RECORDS)
def test_the_command_ends_with_the_result_or_one_line(
    result: Path, tmp_path: Path, name: str, fresh: bool, capsys: Any, monkeypatch: Any
) -> None:
    out = Path(shutil.copytree(result, tmp_path / "out"))
    monkeypatch.chdir(tmp_path)
    path, original = out / name, (out / name).read_bytes()
    command = ["compare", str(out / "hybrid"), "--ref", str(out / "attention"), "--out", str(tmp_path / "again")]
    monkeypatch.setattr(sys, "argv", ["argap", *command])

    @tries(COMMANDS, len(RECORDS), fresh=fresh, of_asked=10)
    @given(st.randoms(use_true_random=True))
    def altered(rng: Random) -> None:
        path.write_bytes(original)
        how = mutations.mutate(rng, path)
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr().err.splitlines()
        assert left.value.code == 0 or (left.value.code == 1 and len(said) == 1), (how, said)

    altered()


def test_each_part_is_changed_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"a": 1, "list": [{"b": "x"}, {"b": "y"}, {"b": "z", "c": null}], "checksum": "0"}')
    found = [(how, json.loads(content)) for how, content in each.changes(path)]
    assert [how for how, _ in found if how.startswith("list.")] == [
        "list.0: \"{'b': 'x'}\" removed",
        "list.0: \"{'b': 'x'}\" to {}",
        "list.0: \"{'b': 'x'}\" to None",
        "list.0.b: 'x' removed",
        "list.0.b: 'x' to 'xx'",
        "list.0.b: 'x' to ''",
        "list.0.b: 'x' to None",
        "list.2.c: 'None' removed",
        "list.2.c: 'None' to 1",
        "list.2.c: 'None' to 'x'",
    ]
    assert found[0] == ("a: '1' removed", {"list": [{"b": "x"}, {"b": "y"}, {"b": "z", "c": None}]})
    assert len(found) == 10 + 6 + 3
