"""The longest window that a model takes, from its ``config.json``: one rule for every command.

It is the length of training, or that to which ``rope_scaling`` extends it. Models without positions have no limit, nor
have the families whose code only notes the length.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
"""Keys of a ``config.json`` that give the length of training."""
WITHOUT_POSITIONS = frozenset(("jamba", "nemotron_h", "zamba"))
"""Hybrids of transformers whose attention has no positions."""
EXTENDED = ("dynamic", "linear", "yarn")
"""Kinds of ``rope_scaling`` that multiply the length of training by ``factor``; others state the extended length."""


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest window of a model with this ``config.json``; None if there is no limit."""
    from argap.models.hub.registry import FAMILIES, runs_by_fla

    config = config.get("text_config") or config
    model_type = config.get("model_type")
    if model_type in WITHOUT_POSITIONS or config.get("position_embedding_type") == "nope":
        return None
    if model_type in FAMILIES or runs_by_fla(model_type):
        return None
    return stated_positions(config)


def stated_positions(config: Mapping[str, Any]) -> int | None:
    """Return the positions that a ``config.json`` states, whether or not its model ends there; None if none are."""
    config = config.get("text_config") or config
    stated = next((value for key in LENGTHS if _is_length(value := config.get(key))), None)
    return stated and max(stated, _extended(config, stated))


def _extended(config: Mapping[str, Any], stated: int) -> int:
    """Return the length to which rotary positions are scaled; 0 if they are not.

    Settings by type of layer (Gemma 3's) belong to models that state the extended length.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, Mapping) or scaling.get("rope_type", scaling.get("type")) not in EXTENDED:
        return 0
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < 2**20:
        return 0
    return int(factor * (original if isinstance(original, int) and _is_length(original) else stated))


def _is_length(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
