"""``--device`` and ``--dtype`` mean the same in all commands; a numbered GPU becomes the current device."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError
from argap.runtime.device import resolve_device, resolve_dtype, use_device
from argap.runtime.torchrun import join

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


@pytest.mark.parametrize(
    "command",
    [
        ["synthetics", "train", "attention"],
        ["synthetics", "sweep", "suites/mqar/figure2.yaml"],
        ["synthetics", "score", "nobody"],
        ["models", "bench", "attention", "--out", "nowhere"],
    ],
    ids=" ".join,
)
def test_commands_refuse_alike(
    command: list[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(request.config.rootpath)
    with pytest.raises(ArgapError, match=f"`device` tpu: {KNOWN}"):
        CliRunner().invoke(app, [*command, "--device", "tpu"], catch_exceptions=False)
