"""flash-linear-attention registers model types of its own under transformers' names; transformers gets them back."""

import pytest
import transformers

from argap.models.hub.registry import TAKEN_OVER, find_family, original_class, register_fla


@pytest.mark.filterwarnings("ignore")
def test_other_checkpoints_load_as_before_fla_was_imported() -> None:
    pytest.importorskip("fla")
    gla = find_family({"model_type": "gla"})
    assert gla is not None
    for take_over in (lambda: register_fla("x"), lambda: original_class("x", gla)):
        take_over()
        for model_type, name in TAKEN_OVER.items():
            config = transformers.AutoConfig.for_model(model_type)
            assert type(config) is getattr(transformers, name)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, state_size=2)
    )
    assert type(model).__module__.startswith("transformers.")
