"""Every op's file is listed, and ``argap kernels`` prints its launch table."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from argap.kernels import registry
from argap.kernels.launch import LaunchTable, runs_kernels, triton
from argap.kernels.registry import OPS, describe
from tests.conftest import RunCommand

KERNELS = Path(registry.__file__).parent


def test_every_launch_table_is_listed() -> None:
    paths = (path.relative_to(KERNELS).with_suffix("").parts for path in KERNELS.rglob("*.py"))
    modules = [import_module(".".join(("argap.kernels", *parts))) for parts in paths]
    tables = {x.kernel for module in modules for x in vars(module).values() if isinstance(x, LaunchTable)}
    assert tables == {row.kernel for name in OPS for row in describe(name).configurations}


@pytest.mark.parametrize("name", OPS)
def test_each_table_has_a_row_for_every_device(name: str) -> None:
    op = describe(name)
    assert op.about
    shapes: dict[str, dict[str, set[str]]] = {}
    for row in op.configurations:
        shapes.setdefault(row.kernel, {}).setdefault(row.device, set()).add(row.shape)
    for by_device in shapes.values():
        # A device class of its own has the shapes that the others have: nothing else is looked at. What has no row
        # for any device is taken where it has one, and otherwise the op goes another way.
        assert all(found == by_device.get("any", found) for found in by_device.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells of a machine without a GPU")
def test_the_command_tells_what_runs_here(run_command: RunCommand) -> None:
    code, out, _ = run_command("kernels", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["device"] == "the CPU"
    assert [op["name"] for op in found["ops"]] == list(OPS)
    assert {op["runs"] for op in found["ops"]} == {"reference"}
    gla = next(op for op in found["ops"] if op["name"] == "gla")
    assert any((row["kernel"], row["device"], row["shape"]) == ("gla", "any", "64") for row in gla["configurations"])
    assert not any(row["used_here"] for row in gla["configurations"])
    text = run_command("kernels")[1]
    assert "linear_attention" in text
    assert "Stages" in text
    assert "used on this device" not in text
    tex = run_command("kernels", "--latex")[1]
    assert tex.count("\\begin{tabular}") == 2
    assert "a running sum of k\\textsuperscript{T}v" in tex
    assert run_command("kernels", "--markdown")[1].startswith("**On the CPU**\n\n| Op | Runs |")


def test_a_compiled_model_runs_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu: Any = SimpleNamespace(is_cuda=True, requires_grad=False)
    assert runs_kernels(on_gpu) == (triton is not None)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not runs_kernels(on_gpu)
