"""Families whose functions transformers takes from flash-linear-attention run on a CPU, whether or not it is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

from argap.checkpoints.rebinding import use_torch_on_cpu

FAMILIES = ["qwen3_next", "olmo_hybrid", "kimi_linear"]


@pytest.fixture
def package(tmp_path, monkeypatch) -> None:
    """A package for GPUs, which fails on a CPU as flash-linear-attention does."""
    (tmp_path / "for_gpus.py").write_text(
        "def scaled(x, factor=1):\n    raise RuntimeError('0 active drivers ([])')\n\ndef other(x):\n    return x + 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_the_device_of_the_tensors_decides(package, monkeypatch) -> None:
    def decorated(x: torch.Tensor, factor: int = 1) -> torch.Tensor:
        return x * factor

    monkeypatch.setitem(globals(), "scaled", use_kernel_func_from_hub_with_fallback("scaled", "for_gpus")(decorated))

    class Layer(nn.Module):
        __module__ = "transformers.models.layer"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled(x, factor=3)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    layer, other, x = Layer(), Layer(), torch.ones(2)
    with pytest.raises(RuntimeError, match="active drivers"):
        layer(x)
    use_torch_on_cpu(layer)
    use_torch_on_cpu(layer)  # once is enough
    assert torch.equal(layer(x), 3 * x)
    with pytest.raises(RuntimeError, match="active drivers"):
        layer(x.to("meta"))  # any other device
    with pytest.raises(RuntimeError, match="active drivers"):
        other(x)  # of the same class


SCRIPT = """
import sys, torch
from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.live import live_model
from argap.checkpoints.load import load_model
from tests.unit.models.hub.families import tiny
from transformers import AutoModelForCausalLM
for family in sys.argv[2:]:
    folder = sys.argv[1] + "/" + family
    tiny(family).save_pretrained(folder)
    if family == "kimi_linear":
        model = live_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()).model
    else:
        model = load_model(find_checkpoint(folder), dtype=torch.float32, device="cpu")
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        logits, shorter = (model(input_ids=each, use_cache=False).logits for each in (ids, ids[:, :-1]))
    torch.testing.assert_close(shorter, logits[:, :-1], rtol=1e-3, atol=1e-4)
    print(family)
"""


def test_linear_attention_families_run_where_the_package_can_be_imported(tmp_path) -> None:
    """In a process without Triton's interpreter, under which flash-linear-attention cannot be imported."""
    pytest.importorskip("fla")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    environment.pop("TRITON_INTERPRET", None)
    families = [*FAMILIES, "mamba2"]  # which flash-linear-attention takes over when it is imported
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *families]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == families, done.stderr[-2000:]
