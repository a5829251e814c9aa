"""A window's log-probs do not depend on its batch, whatever the family does with the batch."""

from typing import Any

import numpy as np
import pytest
import torch

from argap.evaluation.windows import EvaluationSet
from argap.scoring.batches import Batches, depends_on_length
from tests.unit.models.hub.families import by_hand, tiny, windows

LENGTHS = (50, 11, 15, 35, 15)
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 6.0, 12.0]}


def longrope(**options: Any) -> Any:
    model = tiny("phi3", original_max_position_embeddings=32, rope_parameters=LONGROPE | {"rope_theta": 1e4}, **options)
    with torch.no_grad():  # so that attention is sharp
        for parameter in model.base_model.layers.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


def sees_its_batch(model: Any) -> Any:
    """As experts of limited capacity do."""
    model.base_model.norm.register_forward_hook(lambda norm, given, output: output + 0.3 * output.mean(0, keepdim=True))
    return model


def scored(model: Any, data: EvaluationSet, batch: int, *, bos: int | None = None) -> tuple[Batches, np.ndarray]:
    batches = Batches(model, data, "cpu", batch, "m", bos=bos)
    return batches, batches.score(range(data.windows)).arrays()[0]


@pytest.mark.parametrize("bos", [None, 1])
def test_longrope_takes_windows_of_equal_length(capsys, bos: int | None) -> None:
    data, model = windows(*LENGTHS), longrope()
    batches, found = scored(model, data, 4, bos=bos)
    assert batches.sharing == "equal"
    assert (
        "m: its log-probs of a window depend on the others in a batch; scoring windows of equal"
        in capsys.readouterr().err
    )
    np.testing.assert_allclose(found, by_hand(model, data, *([] if bos is None else [bos])), atol=1e-4)
    assert [len(batch.windows) for batch in batches.score(range(5)).batches] == [1, 1, 2, 1]
    batches.sharing = "any"
    padded = batches.score(range(5)).arrays()[0]
    assert np.nanmax(np.abs(padded - found)) > 0.1  # what it is about


def test_in_half_precision_the_configuration_decides_where_the_probe_cannot(monkeypatch) -> None:
    monkeypatch.setattr("argap.scoring.batches.DIFFERENT_HALF", 100.0)
    assert scored(longrope().bfloat16(), windows(*LENGTHS), 4)[0].sharing == "equal"
    assert scored(longrope().bfloat16(), windows(30, 12, 9), 4)[0].sharing == "any"  # all have the short factors
    assert scored(tiny("phi3").bfloat16(), windows(*LENGTHS), 4)[0].sharing == "any"


def test_float32_tells_rounding_from_dependence_on_the_batch(monkeypatch) -> None:
    monkeypatch.setattr("argap.scoring.batches.DIFFERENT_HALF", -1.0)  # all that half precision finds is a difference
    model = tiny("llama").bfloat16()
    assert scored(model, windows(*LENGTHS), 4)[0].sharing == "any"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert scored(sees_its_batch(model), windows(*LENGTHS), 4)[0].sharing == "none"


@pytest.mark.parametrize("lengths", [LENGTHS, (20, 20, 20)])
def test_a_model_that_sees_its_batch_takes_one_window(capsys, lengths: tuple[int, ...]) -> None:
    data, model = windows(*lengths), sees_its_batch(tiny("llama"))
    batches, found = scored(model, data, 4)
    assert batches.sharing == "none"
    assert "scoring one window at a time" in capsys.readouterr().err
    np.testing.assert_allclose(found, by_hand(model, data), atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mamba2", "gemma3_text"])
def test_other_families_share_a_batch_with_padding(family: str) -> None:
    data, model = windows(*LENGTHS), tiny(family)
    batches, found = scored(model, data, 5)
    assert batches.sharing == "any"
    assert sorted(len(batch.windows) for batch in batches.score(range(5)).batches) == [5]
    np.testing.assert_allclose(found, by_hand(model, data), atol=1e-4)


def test_without_a_head_no_window_is_padded(monkeypatch) -> None:
    monkeypatch.setattr("argap.scoring.batches.find_head", lambda model, probe: None)
    data, model = windows(*LENGTHS), longrope()
    batches, found = scored(model, data, 4)
    assert batches.sharing == "none"
    np.testing.assert_allclose(found, by_hand(model, data), atol=1e-4)


@pytest.mark.parametrize(
    ("config", "depends"),
    [
        ({"rope_parameters": LONGROPE | {"original_max_position_embeddings": 32}}, True),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 32}, True),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 33}, False),
        ({"text_config": {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}}, True),
        ({"rope_parameters": {"rope_type": "yarn"}, "type": None}, False),
    ],
)
def test_the_configuration_tells_by_length(config: dict[str, Any], depends: bool) -> None:
    assert depends_on_length(config, 33) is depends
