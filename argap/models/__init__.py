"""Native models: a Llama-style backbone whose layers are a list of mixers.

Importing this package registers the model type ``argap`` with transformers' `AutoConfig` and
`AutoModelForCausalLM`.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from argap.models.configuration import ArgapConfig
from argap.models.modeling import ArgapForCausalLM, ArgapModel
from argap.models.registry import register_mixer

AutoConfig.register(ArgapConfig.model_type, ArgapConfig, exist_ok=True)
AutoModelForCausalLM.register(ArgapConfig, ArgapForCausalLM, exist_ok=True)

__all__ = ["ArgapConfig", "ArgapForCausalLM", "ArgapModel", "register_mixer"]
