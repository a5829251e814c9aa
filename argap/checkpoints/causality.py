"""Refuse models that see the future: their log-prob of a token is no prediction, as they have read it.

transformers loads encoders as causal models too, with a warning at most. Known ones are refused by their configuration,
before any work; a probe of the loaded model finds the others.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from argap.errors import ArgapError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENCODERS = frozenset(
    (
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
        *("nezha", "qdqbert", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
        *("xlm-roberta", "xlm-roberta-xl", "xmod"),
    )
)
"""Model types that attend in both directions unless ``is_decoder`` is true."""
CAUSAL_IF = {"xlm": ("causal", True), "xlnet": ("attn_type", "uni")}
"""Model types that attend in both directions unless a key of their configuration has this value."""
PROBE_TOKENS = 32
CHANGED = {"float32": 1e-4, "float64": 1e-4}
"""As a share of the largest logit, by dtype; smaller differences are rounding."""
CHANGED_ELSE = 2e-2


def check_says_causal(name: str, config: Mapping[str, Any]) -> None:
    """Raise `ArgapError` for a ``config.json`` of a model that is known to see the future.

    An encoder-decoder is refused as well: without a source text, its decoder is not the model that was trained.
    """
    config = config.get("text_config") or config
    model_type = config.get("model_type")
    if config.get("is_encoder_decoder"):
        raise ArgapError(f"{name}: model type {model_type} is an encoder-decoder; expected a causal language model")
    if model_type in ENCODERS and not config.get("is_decoder"):
        _refuse(name, f"model type {model_type} is an encoder (`is_decoder` is false)")
    key, value = CAUSAL_IF.get(str(model_type), ("", None))
    if key and config.get(key) != value:
        _refuse(name, f"model type {model_type} attends in both directions (`{key}` is not {value!r})")
    for key, both_ways in (("use_bidirectional_attention", (True, "all")), ("is_causal", (False,))):
        if config.get(key) in both_ways:  # Gemma's, and transformers' own
            _refuse(name, f"its config.json has `{key}` {config[key]!r}, attention in both directions")


def check_sees_no_future(name: str, model: "PreTrainedModel") -> None:
    """Raise `ArgapError` if the first logits of a probe change with the ids after them.

    Models that cannot be probed (a minimum length, no logits) are trusted.
    """
    import torch

    # One batch, so that both rows meet the same operations.
    size = model.config.get_text_config().vocab_size
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(size, (2, PROBE_TOKENS), generator=drawn)
    half = PROBE_TOKENS // 2
    ids[1, :half] = ids[0, :half]
    try:
        with torch.inference_mode():
            logits = model(input_ids=ids.to(model.device), use_cache=False).logits[:, :half].float()
    except Exception:  # of the model's code; if it matters, it will be raised again
        return
    bound = CHANGED.get(str(model.dtype).removeprefix("torch."), CHANGED_ELSE) * logits.abs().max()
    if bool((logits[0] - logits[1]).abs().max() > bound):
        _refuse(name, f"the logits of {type(model).__name__} change with later tokens")


def _refuse(name: str, found: str) -> NoReturn:
    raise ArgapError(f"{name}: {found}, so it sees the token that it should predict; expected a causal language model")
