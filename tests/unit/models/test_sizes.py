"""The papers' sizes: their backbones by hand, and parameters beside the printed ones."""

import csv
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from argap.cli.models import app
from argap.models import presets
from argap.models.cost import cost
from argap.models.presets import ARCHITECTURES
from argap.models.sizes import PRINTED, SIZES, VOCABULARY, WINDOW, build_at, note_on

DATA = Path(os.environ.get("ARGAP_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
NAMES = {
    "Attention": "attention",
    "Long Conv": "long_conv",
    "H3": "h3",
    "Hyena": "hyena",
    "RWKV": "rwkv4",
    "RetNet (128)": "retnet_window",
    "Hyena + Slide Attn. (64)": "hyena_window_64",
    "Hyena + Slide Attn. (256)": "hyena_window_256",
    "BaseConv": "base_conv",
    "BaseConv + Random selection": "hybrid_random",
    "BaseConv + Programmatic selection": "hybrid_programmatic",
    "BaseConv + Learned selection": "hybrid_learned",
    "BaseConv + Full attention": "hybrid_full",
}


def test_attention_at_125m_by_hand() -> None:
    config = build_at("attention", "125m")
    found = cost(config, WINDOW)
    # Embedding 50,257·768; a layer: norms 2·768, attention 4·768², MLP 3·768·2,048; the last norm.
    assert found.parameters == 50_257 * 768 + 12 * (2 * 768 + 4 * 768**2 + 3 * 768 * 2_048) + 768
    # Forward: 2·T for every weight of a map, the head's too, 4·768 for each visible pair of 12 layers.
    weights = 50_257 * 768 + 12 * (4 * 768**2 + 3 * 768 * 2_048)
    assert found.flops == 2 * 2_048 * weights + 12 * 4 * 768 * (2_048 * 2_049 // 2)
    assert found.train_tflops == pytest.approx(3 * found.flops / 1e12)


@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_within_3_percent_of_the_printed(size: str) -> None:
    plain = cost(build_at("attention", size), WINDOW).parameters
    for name in ARCHITECTURES if size == "70m" else (*PRINTED[size], "mamba"):
        config = build_at(name, size)
        assert (config.vocab_size, config.hidden_size) == (VOCABULARY, SIZES[size].hidden_size)
        found = cost(config, WINDOW).parameters
        printed = PRINTED[size].get(name)
        assert found == pytest.approx(printed.params_m * 1e6 if printed else plain, rel=0.03 if printed else 0.06)
        note = note_on(name, size, config, found)
        assert ("below those printed" in note or "above those printed" in note) == (printed is not None)


def test_what_is_printed_is_what_the_paper_prints() -> None:
    rows = []
    for file in ("zoology_pile.csv", "zoology_hybrids.csv"):
        path = DATA / "paper" / file
        if not path.is_file():
            pytest.skip(f"{path} is not there")
        rows += csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    expected: dict[str, dict[str, tuple[int, float | None]]] = {size: {} for size in SIZES}
    for row in rows:
        if row["scale"].lower() in SIZES:  # table 5 repeats the TFLOPs of 70M
            tflops = None if row["scale"] == "1.4B" else float(row["tflops"])
            expected[row["scale"].lower()][NAMES[row["model"]]] = int(row["params_m"]), tflops
    assert {s: {n: (p.params_m, p.tflops) for n, p in of.items()} for s, of in PRINTED.items()} == expected


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_models_list_at_a_size_prints_the_papers_figures_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["name"]: row for row in json.loads(run("list", "--size", "70m", "--json"))}
    assert list(rows) == list(ARCHITECTURES)
    assert rows["hyena"]["printed"] == {"params_m": 72, "tflops": 1.34}
    assert rows["hyena"]["window"] == WINDOW
    assert rows["mamba"]["printed"] is None
    assert "prints no such model" in rows["mamba"]["note"]
    assert rows["hybrid_learned"]["source"].endswith("arXiv 2312.04927, table 2")
    few = {name: ARCHITECTURES[name] for name in ("attention", "hyena")}
    monkeypatch.setattr(presets, "ARCHITECTURES", few)
    table = run("list", "--size", "70m")
    said = "At 70m: width 640, 8 layers, vocabulary 50,257, a window of 2,048 tokens"
    assert said in " ".join(table.split())  # the title may wrap
    line = next(line for line in table.splitlines() if " hyena " in line).split()
    assert line[3] == "72M"
    assert line[5] == "1.34"


def test_models_show_at_a_size() -> None:
    text = run("show", "rwkv4", "--size", "125m")
    assert "(printed: 169M)" in text
    assert "2.08 TFLOPs, forward and backward (printed: 2.08)" in text
    assert "below those printed" in text or "above those printed" in text
    assert "(printed: 1400M)" in run("show", "attention", "--size", "1.4b", "--seq-len", "512")
