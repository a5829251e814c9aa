"""Options of several commands mean the same in each: devices and dtypes, those of a score, and the forms of tables."""

import inspect
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer

import argap
from argap.api import NOT_OPTIONS
from argap.cli import app, commands
from argap.cli.options import options_of
from argap.cli.output import Output
from argap.cli.score import score as command
from argap.errors import ArgapError
from argap.records import EvaluationSpec
from argap.reports.tables.formats import Table
from argap.runtime.device import resolve_device, resolve_dtype, use_device
from argap.runtime.torchrun import join
from argap.scoring.config import DEFAULT, OF_TEXT, ScoreConfig
from tests.conftest import RunCommand

KNOWN = "expected auto, cpu, cuda or cuda:N"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Simulate a machine with two GPUs; the list records which are made current."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_devices_on_a_machine_with_gpus(gpus: list[torch.device]) -> None:
    assert [resolve_device(name) for name in ("auto", "cpu", "cuda", "cuda:1")] == ["cuda", "cpu", "cuda", "cuda:1"]
    with pytest.raises(ArgapError, match="`device` cuda:2: this machine has 2 CUDA devices, numbered from 0"):
        resolve_device("cuda:2")
    assert gpus == []


@pytest.mark.usefixtures("no_gpu")
def test_devices_on_a_machine_without_a_gpu() -> None:
    assert resolve_device("auto") == "cpu"
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ArgapError, match=f"`device` {name}: no CUDA device available; use `device=cpu`"):
            resolve_device(name)


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "cpu:0", "CPU", ""])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ArgapError, match=f"`device` {name}: {KNOWN}"):
        resolve_device(name)


def test_a_numbered_gpu_becomes_the_current_device(gpus: list[torch.device]) -> None:
    assert [str(use_device(name)) for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    assert gpus == []
    assert use_device("cuda:1") == torch.device("cuda", 1)
    assert gpus == [torch.device("cuda", 1)]


def test_auto_dtype_is_bfloat16_except_on_a_cpu() -> None:
    assert [resolve_dtype("auto", device) for device in ("cpu", "cuda", "cuda:1")] == ["float32", *["bfloat16"] * 2]
    assert resolve_dtype("float16", "cpu") == "float16"
    with pytest.raises(ArgapError, match="`dtype` int8: expected auto, float32, bfloat16, float16"):
        resolve_dtype("int8", "cpu")


def test_a_single_process_uses_the_named_gpu(gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join("cuda:1") as parallel:
        assert parallel.device == torch.device("cuda", 1)
    assert gpus == [parallel.device]


@pytest.mark.usefixtures("gpus")
def test_several_processes_use_one_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgapError, match="`device` cuda:1: expected auto, cpu or cuda; torchrun"), join("cuda:1"):
        pass


LEFT = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({"WORLD_SIZE": "x"}, "the variables of torchrun are not from it (invalid literal"),
        (
            {"WORLD_SIZE": "0"},
            "the variables of torchrun are not from it (RANK is 1, of 0 processes); ",
        ),
        ({"RANK": "-1"}, "the variables of torchrun are not from it (RANK is -1, of 2 processes)"),
        ({"RANK": None}, "WORLD_SIZE is set without RANK; unset it, or use torchrun"),
        ({"MASTER_PORT": "99999"}, "the variables of torchrun are not from it (MASTER_PORT is 99999)"),
        ({"MASTER_ADDR": "no.such.invalid"}, "the variables of torchrun are not from it (MASTER_ADDR is no.such.inv"),
        ({}, "2 processes did not meet in 1 s at 127.0.0.1:1 ("),
    ],
)
def test_variables_that_another_launcher_left_are_refused(
    left: dict[str, str | None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argap.runtime.torchrun.MEETING_TIMEOUT", timedelta(seconds=1))
    for name, value in (LEFT | left).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(ArgapError, match=rf"^{re.escape(said)}"), join("cpu"):
        pass


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("local", "said"), [(None, "WORLD_SIZE is set without LOCAL_RANK"), ("x", "the variables of torchrun are not")]
)
def test_a_local_rank_that_another_launcher_left_is_refused(
    local: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (LEFT | {"LOCAL_RANK": local}).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(ArgapError, match=rf"^{said}"), join("cuda"):
        pass


def options(command: Any, path: str = "argap") -> Iterator[tuple[str, Any]]:
    """The ``--device`` option of every command with one."""
    for name, each in getattr(command, "commands", {}).items():
        yield from options(each, f"{path} {name}")
    for option in command.params:
        if "--device" in option.opts:
            yield path, option


def test_every_command_documents_it_alike() -> None:
    found = dict(options(typer.main.get_command(app)))
    assert {"argap score", "argap recall", "argap train", "argap synthetics sweep", "argap suite run"} < found.keys()
    # Counting has no need of a GPU: there it is asked for, and said what it is for.
    assert found.pop("argap index build").default == "cpu"
    assert {(option.default, option.help) for option in found.values()} == {("auto", "auto, cpu, cuda or cuda:N.")}


DECLARED = {*OF_TEXT, *ScoreConfig.__struct_fields__} - {"text"}
PARAMETERS = {name: each for name, each in inspect.signature(argap.score).parameters.items() if name not in NOT_OPTIONS}


def test_argap_score_takes_every_option_with_the_declared_default():
    assert PARAMETERS.keys() == DECLARED
    assert ScoreConfig.of(**{name: each.default for name, each in PARAMETERS.items()}) == DEFAULT


def test_the_docstring_of_argap_score_describes_every_option():
    text = inspect.getdoc(argap.score)
    headed = {line for line in text.splitlines() if re.fullmatch(r"\w+", line)}  # each with a text of its own
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


TABLES = [
    ["compare"], ["demo"], ["diff"], ["discover"], ["kernels"], ["label"], ["models", "bench"], ["models", "list"],
    ["paper"], ["probe"], ["recall"], ["score"], ["slice"], ["suite", "rates"], ["suite", "table"],
    ["suite", "trajectory"],
]  # fmt: skip
"""Commands with both flags."""


def test_every_command_that_prints_a_table_has_the_flags() -> None:
    def walk(command: Any, path: list[str]) -> list[list[str]]:
        children = getattr(command, "commands", {})
        found = [path] if any("--latex" in each.opts for each in command.params) else []
        return found + [each for name, child in children.items() for each in walk(child, [*path, name])]

    assert sorted(walk(commands(), [])) == TABLES


def test_slices_in_latex_and_markdown(token_result: Path, run_command: RunCommand) -> None:
    command = ["slice", str(token_result), "--where", "repeated", "--name", "again_1"]
    tex = run_command(*command, "--latex")[1]
    assert tex.startswith("% \\usepackage{booktabs}\n\\begin{tabular}{llrrrrrrrrr}\n\\toprule\n")
    assert tex.count("again\\_1") == 4  # three models, and the note with its condition
    best = [line for line in tex.splitlines() if "\\textbf" in line]
    assert [line.partition(" & ")[0] for line in best] == ["m-1", "m-1", "m-1"]  # all, AR hits, this one
    text = run_command(*command, "--markdown")[1]
    assert text.startswith("| Model | Slice |")
    assert text.count("**") == 2 * 3


def test_the_papers_check_in_markdown(run_command: RunCommand) -> None:
    text = run_command("paper", "--markdown")[1]
    assert text.startswith("**% of gap due to AR, as printed and as its row gives it**\n\n| Table | Scale |")
    assert "- 16 of 17 rows agree with the share" in text
    assert "\n\n**Share of BaseConv's gap to attention that is closed (table 2)**\n\n" in text


def test_json_makes_no_tables(capsys: pytest.CaptureFixture[str]) -> None:
    def tables() -> list[Table]:
        pytest.fail("not printed")

    Output(as_json=True).show({"n": 1}, tables)
    assert json.loads(capsys.readouterr().out) == {"n": 1}
