"""Build and save the model of a training configuration."""

import inspect
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.causality import check_causal
from argap.models.presets import build_config
from argap.text.tokenizer import Tokenizer
from argap.train.config import TrainConfig

LAYERS = 6  # default depth of a named architecture
# Options of `ArgapConfig` that `TrainConfig` sets itself.
OWN_FIELDS = ("vocab_size", "hidden_size", "num_hidden_layers", "mixers")


def build_model(config: TrainConfig, tokenizer: Tokenizer) -> ArgapForCausalLM:
    """Build a float32 model, initialised from ``config.seed`` on the CPU so that every device starts equal.

    The vocabulary is the tokenizer's, rounded up to ``config.vocab_multiple``. Raises `ArgapError` for an unknown
    architecture, mixer or option, and for a non-causal mixer.
    """
    known = [name for name in inspect.signature(ArgapConfig).parameters if name not in (*OWN_FIELDS, "kwargs")]
    if unknown := sorted(set(config.model) - set(known)):
        raise ArgapError(f"model: unknown option {unknown[0]!r}; known are {', '.join(known)}")
    size: dict[str, Any] = {
        "hidden_size": config.hidden_size,
        "vocab_size": -(-tokenizer.vocab_size // config.vocab_multiple) * config.vocab_multiple,
        "eos_token_id": tokenizer.eos,
    }
    if config.mixers is None:
        layers = config.num_layers or LAYERS
        described = build_config(
            config.architecture or "",
            num_hidden_layers=layers,
            seq_len=config.seq_len,
            **size,
            **config.model,
        )
    else:
        options = {"max_position_embeddings": config.seq_len, **config.model}
        layers = config.num_layers or len(config.mixers)
        described = ArgapConfig(mixers=config.mixers, num_hidden_layers=layers, **size, **options)
    torch.manual_seed(config.seed)
    model = ArgapForCausalLM(described)
    check_causal(model)
    return model


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` for `AutoModelForCausalLM`, without a progress bar."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    if shown:
        logging.enable_progress_bar()
