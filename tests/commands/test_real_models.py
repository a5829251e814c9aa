"""Two pretrained models as published: their tokens, log-probs and comparison. docs/real-models.md says where they are.

Run with the folder of both files: ``ARGAP_GGUF=DIR pytest -m slow tests/commands/test_real_models.py``.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.gguf.tokenizer import gguf_tokenizer
from argap.checkpoints.load import load_model
from argap.cli import app
from argap.tokens.runs import open_run, read_logprobs

FOLDER = Path(os.environ.get("ARGAP_GGUF", "."))
SMOLLM, GEMMA = "smollm2.gguf", "gemma3.gguf"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all((FOLDER / name).is_file() for name in (SMOLLM, GEMMA)), reason="no ARGAP_GGUF"),
]
TEXT = "In 1789 the state's 13 districts\n\n  paid 4,096 écus — don't ask."
TOKENS = {
    SMOLLM: [
        *(788, 216, 33, 39, 40, 41, 260, 1215, 506, 216, 33, 35, 10249, 8866, 5940, 216, 36, 28, 32, 41, 38, 26411),
        *(31783, 1841, 1326, 982, 1998, 30),
    ],
    GEMMA: [
        *(902, 236743, 236770, 236832, 236828, 236819, 506, 1883, 236789, 236751, 236743, 236770, 236800, 20969, 108),
        *(138, 23460, 236743, 236812, 236764, 236771, 236819, 236825, 1559, 16771, 2192, 1537, 236789, 236745, 2679),
        236761,
    ],
}
"""llama.cpp's tokens of `TEXT` (llama-cpp-python 0.3.36)."""


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_are_llama_cpps(name: str) -> None:
    assert gguf_tokenizer(FOLDER / name).encode([TEXT])[0].tolist() == TOKENS[name]


@torch.no_grad()
def test_logits_are_those_of_transformers_own_reader() -> None:
    ids = torch.tensor([TOKENS[SMOLLM]])
    theirs = AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=SMOLLM, dtype=torch.float32)
    ours = load_model(find_checkpoint(FOLDER / SMOLLM), dtype=torch.float32, device="cpu")
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-4)


def test_two_tokenizers_are_compared_by_bytes_and_a_bos_matters(tmp_path: Path) -> None:
    def figures(bos: list[str]) -> dict[str, Any]:
        models = [f"gemma={FOLDER / GEMMA}", "--ref", f"smollm={FOLDER / SMOLLM}"]
        text = ["--data", "stdlib:heldout", "--limit-tokens", "1000", "--seq-len", "512"]
        command = ["score", *models, *text, "--device", "cpu", "--out", str(tmp_path / "-".join(["a", *bos])), "--json"]
        result = CliRunner().invoke(app, [*command, *bos])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    own, none = figures([]), figures(["--bos", "none"])
    assert own["unit"] == none["unit"] == "byte"
    before, after = ({row["model"]: row["nll"] for row in each["slices"][0]["models"]} for each in (own, none))
    assert before["smollm"] == after["smollm"]
    assert before["gemma"] + 0.1 < after["gemma"]  # trained with a BOS before every text


def test_a_converted_folder_has_the_files_log_probs(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["convert", str(FOLDER / SMOLLM), str(tmp_path / "folder")])
    assert done.exit_code == 0, done.output
    models = [f"folder={tmp_path / 'folder'}", "--ref", f"file={FOLDER / SMOLLM}", "--backend", "hf"]
    text = ["--data", "stdlib:heldout", "--limit-tokens", "600", "--seq-len", "256"]
    result = CliRunner().invoke(app, ["score", *models, *text, "--device", "cpu", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    ours, theirs = (read_logprobs(open_run(tmp_path / "out" / name))[0] for name in ("folder", "file"))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
