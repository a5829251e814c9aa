"""The script that times DeltaNet's forms: both compute the same, and it runs without a GPU."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

PATH = Path(__file__).parents[2] / "benchmarks" / "delta_net.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_delta_net", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_both_forms_compute_the_same(script: ModuleType) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 70, 3, 8) for _ in range(3))
    q, k, beta = F.normalize(q, dim=-1), F.normalize(k, dim=-1), torch.rand(2, 70, 3)
    torch.testing.assert_close(script.chunkwise(q, k, v, beta), script.recurrent(q, k, v, beta), rtol=1e-4, atol=1e-4)


def test_forms_are_timed_and_written(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "speed.json"
    out.write_text('{"training": [1]}')
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(script, "ROUNDS", 1)
    monkeypatch.setattr(sys, "argv", ["delta_net.py", "forms", "--json", str(out)])
    script.main()
    result = json.loads(out.read_text())
    assert result["training"] == [1]  # an earlier part stays
    rows = result["forms"]
    assert [(row["length"], row["head_size"]) for row in rows] == [(64, 8), (128, 8), (64, 16), (128, 16)]
    assert {row["batch"] * row["length"] for row in rows} == {256}
    assert [sorted(row["ms"]) for row in rows[:2]] == [["chunkwise", "recurrent"], ["chunkwise"]]
    assert "B 4, T 64, H 4, D 8: chunkwise" in capsys.readouterr().out
