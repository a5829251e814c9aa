"""Choose the class of transformers that runs a model type, or say what the model is instead of a language model."""

from collections.abc import Mapping
from typing import Any

from argap.checkpoints.find import NATIVE
from argap.errors import ArgapError
from argap.models.hub.registry import find_family, fla_models, runs_by_fla

OTHERS = {
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING": "an encoder-decoder",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING": "an encoder-decoder for speech",
    "MODEL_FOR_MASKED_LM_MAPPING": "an encoder",
    "MODEL_MAPPING": "not a language model",
}
"""What the classes in transformers' other mappings are; the first mapping that has a model type counts."""


def is_known(config: Mapping[str, Any]) -> bool:
    """Return whether a class of argap, transformers or flash-linear-attention runs the model type of a ``config.json``.

    It is preferred to code in the checkpoint, which is often older than the class and written for another version.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    )

    model_type = config.get("model_type")
    in_library = model_type in CONFIG_MAPPING and (
        model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    )
    return in_library or runs_by_fla(model_type) or model_type == NATIVE or find_family(config) is not None


def auto_class(name: str, config: Mapping[str, Any]) -> Any:
    """Return the ``Auto`` class of transformers that loads checkpoint ``name`` by its ``config.json``.

    A multimodal model is loaded whole and given text alone. Raises `ArgapError` for a model type that is unknown here,
    or has no class that predicts the next token.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, __version__
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = config.get("model_type")
    if runs_by_fla(model_type) or ("auto_map" in config and not is_known(config)):
        return AutoModelForCausalLM
    if model_type is None:
        raise ArgapError(
            f"{name}: its config.json has no model_type, and its keys match no known layout; expected a model of "
            "transformers, HazyResearch/based or state-spaces/mamba"
        )
    if model_type not in CONFIG_MAPPING:
        other = "" if fla_models() else ", or `pip install 'argap[fla]'` if it is one of flash-linear-attention's"
        raise ArgapError(
            f"{name}: transformers {__version__} does not know its model type {model_type!r}; run `pip install -U "
            f"transformers`{other}"
        )
    configuration = CONFIG_MAPPING[model_type]
    for auto in (AutoModelForCausalLM, AutoModelForMultimodalLM):
        if configuration in auto._model_mapping:  # with the classes that the user registered
            return auto
    what = next((what for where, what in OTHERS.items() if configuration in getattr(modeling_auto, where)), None)
    raise ArgapError(
        f"{name}: model type {model_type} is {what or 'not a language model'}; expected a causal language model"
    )
