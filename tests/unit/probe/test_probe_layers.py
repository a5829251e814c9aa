"""Which layers copy: exact on a copier made by hand, whose layers are known, and on native attention."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError
from argap.kernels.recurrent.recurrence import for_each_head
from argap.models.mixers.attention import Attention
from argap.probe.layers import attention_of_heads, find_layers, measure_layers
from argap.probe.prompts import ProbeSet, build_prompts
from argap.probe.records import ProbeSpec
from tests.conftest import word_tokenizer

DEMO = Path(__file__).parents[3] / "argap" / "demo" / "checkpoints"
WORDS = [f"w{k}" for k in range(12)]
VOCABULARY = len(WORDS) + 1


class Before(nn.Module):
    """Write the previous token, one-hot, to the second third of the residual stream."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length, width = x.shape[1], VOCABULARY
        weights = torch.eye(length).roll(1, dims=0)
        weights[0] = torch.eye(length)[0]
        moved = torch.zeros_like(x)
        moved[:, 1:, width : 2 * width] = x[:, :-1, :width]
        return moved, weights.expand(len(x), 2, -1, -1)


class Copier(nn.Module):
    """Attend to the position whose previous token is the current one, and write its token to the last third.

    Head 1 puts 3/4 of its attention there and the rest on itself, head 0 everything on itself.
    """

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length, width = x.shape[1], VOCABULARY
        found = (x[..., :width] @ x[..., width : 2 * width].transpose(1, 2)).tril()
        weights = torch.stack([torch.eye(length).expand(len(x), -1, -1), 0.75 * found + torch.eye(length) / 4], dim=1)
        copied = torch.zeros_like(x)
        copied[..., 2 * width :] = found @ x[..., :width]
        return copied, weights


class Inert(nn.Module):
    """A mixer that adds nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


class Layer(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.self_attn = mixer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: Any = self.self_attn(x)
        return x + (mixed[0] if isinstance(mixed, tuple) else mixed)


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(mixer) for mixer in (Before(), Inert(), Copier()))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> BaseModelOutput:
        x = torch.zeros(*input_ids.shape, 3 * VOCABULARY)
        x[..., :VOCABULARY] = nn.functional.one_hot(input_ids, VOCABULARY).float()
        for layer in self.layers:
            x = layer(x)
        return BaseModelOutput(last_hidden_state=x)


class HandMade(PreTrainedModel):
    """Three layers by hand: previous token, nothing, copy. The head reads the copied token with a logit of 4."""

    config_class = PretrainedConfig
    base_model_prefix = "model"

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.model = Trunk()
        self.head = nn.Linear(3 * VOCABULARY, VOCABULARY, bias=False)
        self.head.weight.data = torch.cat([torch.zeros(VOCABULARY, 2 * VOCABULARY), 4 * torch.eye(VOCABULARY)], dim=1)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_attn_implementation(self, *_: Any, **__: Any) -> None:
        """Its attention always returns weights."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.head(self.model(input_ids).last_hidden_state))


def three_layers() -> PretrainedConfig:
    config: Any = PretrainedConfig()
    config.vocab_size, config.num_hidden_layers = VOCABULARY, 3
    return config


def repeated(tokenizer: Any, period: int, prompts: int = 3) -> ProbeSet:
    spec = ProbeSpec(tasks=("induction",), loads={"induction": (period,)}, prompts=prompts, shots=0)
    return build_prompts(spec, tokenizer)


def test_the_layers_of_a_copier_made_by_hand() -> None:
    model = HandMade(three_layers()).eval()
    made = repeated(word_tokenizer([*WORDS, "?"], unknown="?"), 6)
    nll, rows = measure_layers(model, "copier", made, device="cpu")
    assert [(row.layer, row.mixer, row.heads, row.previous) for row in rows] == [
        (0, "Before", (0, 0), (1, 1)),
        (1, "Inert", None, None),
        (2, "Copier", (0, 0.75), (0, 0)),
    ]
    # A logit of 4 against twelve of 0, and without either layer of the copy 13 logits of 0.
    copied, uniform = float(torch.tensor([4.0, *[0] * 12]).logsumexp(0)) - 4, float(torch.tensor(13.0).log())
    assert nll == pytest.approx(copied, rel=1e-6)
    assert [row.effect for row in rows] == pytest.approx([uniform - copied, 0, uniform - copied], rel=1e-6, abs=1e-9)
    assert rows[0].effect_ci95 == pytest.approx((uniform - copied, uniform - copied), rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 5},
        {"window": 5, "window_kind": "blocked"},
        {"kv_heads": 1, "rotary_size": 2},
        {"positions": "none"},
    ],
)
def test_native_weights_average_the_values_as_the_mixer_does(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    mixer = Attention(16, 32, heads=2, **options).double()
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    weights, (*_, values) = mixer.weights(x), mixer._heads(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 12, dtype=torch.float64))
    mixed = (weights @ for_each_head(values, mixer.heads)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer.out(mixed), mixer(x))


def test_transformers_attention_gives_its_own_weights(tokenizer: Any) -> None:
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model, made = LlamaForCausalLM(config).eval(), repeated(tokenizer, 5, prompts=2)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    found = attention_of_heads(model, find_layers(model, "llama"), made)
    ids = torch.stack([torch.from_numpy(prompt.ids).long() for prompt in made.prompts])
    with torch.no_grad():
        attentions = model(input_ids=ids, output_attentions=True).attentions
    for both, weights in zip(found, attentions, strict=True):
        for own, back in zip(both, (4, 1), strict=True):  # tokens before the one whose attention is taken
            expected = torch.stack([weights[:, :, k - 1, k - 1 - back] for k in range(6, 10)]).mean(dim=(0, 1))
            assert own == pytest.approx(expected.tolist(), rel=1e-5)


def test_layers_without_a_known_mixer_are_refused() -> None:
    model = HandMade(three_layers())
    model.model.layers[1] = nn.ModuleDict({"mlp": nn.Identity()})
    with pytest.raises(ArgapError, match="odd: layer 1 has no mixer that argap knows; found mlp"):
        find_layers(model, "odd")
    model.config.num_hidden_layers = 4
    with pytest.raises(ArgapError, match="odd: HandMade has no list of 4 layers"):
        find_layers(model, "odd")


def test_the_command_finds_the_demo_models_copying_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = [
        "probe",
        str(DEMO / "attention"),
        "--layers",
        "--load",
        "induction=12",
        "--prompts",
        "4",
        "--out",
        str(tmp_path),
    ]
    shown = CliRunner().invoke(app, [*call, "--markdown"])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == (tmp_path / "layers.md").read_text()
    monkeypatch.setattr("argap.scoring.local.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    rows = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)["rows"]
    best = max(rows, key=lambda row: max(row["heads"]))
    assert best["layer"] == 4
    assert max(best["heads"]) > 0.3
    assert sorted(rows, key=lambda row: row["effect"])[-1]["layer"] in (3, 4)
    assert (tmp_path / "layers.svg").is_file()
