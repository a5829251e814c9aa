"""An option of `argap score` is declared once: flags, fields and the parameters of `argap.score` agree."""

import inspect
import re
from typing import get_args

import typer

import argap
from argap.api import NOT_OPTIONS
from argap.cli.options import options_of
from argap.cli.score import score as command
from argap.records import EvaluationSpec
from argap.scoring.config import DEFAULT, OF_TEXT, ScoreConfig

DECLARED = {*OF_TEXT, *ScoreConfig.__struct_fields__} - {"text"}
PARAMETERS = {name: each for name, each in inspect.signature(argap.score).parameters.items() if name not in NOT_OPTIONS}


def test_argap_score_takes_every_option_with_the_declared_default():
    assert PARAMETERS.keys() == DECLARED
    assert ScoreConfig.of(**{name: each.default for name, each in PARAMETERS.items()}) == DEFAULT


def test_the_docstring_of_argap_score_describes_every_option():
    text = inspect.getdoc(argap.score)
    headed = {name for line in text.splitlines() if re.fullmatch(r"\w+(, \w+)*", line) for name in line.split(", ")}
    assert headed - {"Parameters", "Raises", "Examples", "ArgapError"} == DECLARED | {*NOT_OPTIONS}


def test_the_command_has_every_option_with_help_and_the_declared_default():
    options = options_of(ScoreConfig)
    assert options.keys() == DECLARED
    assert ScoreConfig.of(**{name: default for name, (_, default) in options.items()}) == DEFAULT
    for hint, _ in options.values():
        (option,) = (each for each in get_args(hint) if isinstance(each, typer.models.OptionInfo))
        assert option.help
    assert inspect.signature(command).parameters["config"].annotation is ScoreConfig


def test_options_are_read_as_users_write_them(tmp_path):
    given = ScoreConfig.of(
        data=tmp_path, keep="year", index=tmp_path, threshold="7", batch_size="4", dtype=["float16", "a=float32"]
    )
    assert given.text == EvaluationSpec(data=(str(tmp_path),), keep=("year",))
    assert (given.index, given.threshold, given.batch_size) == (str(tmp_path), 7, 4)
    assert (given.dtype.of("a"), given.dtype.of("b")) == ("float32", "float16")
    assert ScoreConfig.of(dtype={"a": "float32"}).dtype.of("b") is None
