"""Repeated models are one; checkpoints with equal names get the names of their parent folders as well."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from argap.errors import ArgapError
from argap.scoring.local import CheckpointSource
from argap.scoring.per_model import per_model, split_name, with_name
from argap.scoring.sources import distinct


def source(folder: str, weights: str = "") -> CheckpointSource:
    checkpoint: Any = SimpleNamespace(folder=Path(folder), fingerprint=weights or folder)
    return CheckpointSource(Path(folder).name, checkpoint)


def test_a_checkpoint_without_a_tokenizer_can_be_given_one(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    checkpoint: Any = SimpleNamespace(folder=tmp_path, name="bare", gguf=None)
    with pytest.raises(ArgapError, match=r"^bare: no tokenizer there, .*; save one there, or name one to `argap sco"):
        _ = CheckpointSource("bare", checkpoint).tokenizer


def test_equal_names_get_the_parent_folder_s_name():
    named = distinct([source("a/final"), source("b/final"), source("b/other")])
    assert [one.name for one in named] == ["final", "b/final", "other"]
    assert [str(one.checkpoint.folder) for one in named] == ["a/final", "b/final", "b/other"]


def test_names_still_equal_with_parents_are_refused():
    with pytest.raises(ArgapError, match="b/final: two models have this name"):
        distinct([source("x/final"), source("a/b/final"), source("c/b/final")])


def test_names_that_differ_in_case_alone_are_equal():
    assert [one.name for one in distinct([source("a/final"), source("b/Final")])] == ["final", "b/Final"]
    two = [replace(source(f"{name}/final"), name=name, named=True) for name in ("m", "M")]
    with pytest.raises(ArgapError, match=r"^M: two models have this name \(case aside: m\); write NAME=CKPT for one$"):
        distinct(two)


def test_a_name_is_read_before_the_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "lr=0.1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert split_name("bf16=org/model@step1") == ("bf16", "org/model@step1")
    assert split_name("served=http://host/v1") == ("served", "http://host/v1")
    for whole in ("org/model", "lr=0.1", "runs/lr=0.1/final", "http://host/v1?a=b"):  # a path that is there, or no name
        assert split_name(whole) == (None, whole)
    with pytest.raises(ArgapError, match="model name 'a/b': expected a plain name"):
        with_name("a/b", "org/model")


def test_a_setting_s_path_and_name_may_have_an_equals_sign(tmp_path, monkeypatch):
    (tmp_path / "lr=0.1" / "tok").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found = per_model("tokenizer", ["lr=0.1/tok", "m=lr=0.1/tok", "lr=0.2=org/tok", "n=org/tok"])
    assert found == ("lr=0.1/tok", {"m": "lr=0.1/tok", "lr=0.2": "org/tok", "n": "org/tok"})
    long = "m=" + "x" * 300
    assert per_model("tokenizer", [long]).named == {"m": "x" * 300}
    assert split_name(long) == ("m", "x" * 300)
    with pytest.raises(ArgapError, match="`tokenizer` m=b: given twice for m"):
        per_model("tokenizer", ["m=lr=0.1/tok", "m=b"])


def test_the_name_given_is_not_changed():
    named = replace(source("b/final"), name="final", named=True)
    with pytest.raises(ArgapError, match="final: two models have this name; write NAME=CKPT for one"):
        distinct([source("a/final"), named])


def test_repeated_models_are_the_first_of_them_with_a_line_each(capsys):
    same = [source("a/final", "w"), source("b/final", "v"), source("c/copy", "v"), source("a/final", "w")]
    own = [replace(source("c/copy", "v"), name="own", named=True) for _ in range(2)]
    models = distinct([*own, *same, source("d/copy", "v")])
    assert [model.name for model in models] == ["own", "own", "final", "b/final", "b/final", "final", "b/final"]
    twice = [line.partition(", scored once; NAME=CKPT gives it")[0] for line in capsys.readouterr().err.splitlines()]
    as_first = "copy: the same model as b/final"
    assert twice == ["own: listed twice", as_first, "final: listed twice", as_first]
