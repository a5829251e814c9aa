"""The configuration of a native model: a Llama-style backbone with one mixer per layer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from transformers import GenerationConfig, PreTrainedConfig

from argap.errors import ArgapError, FormatError
from argap.files.atomic import read_json
from argap.files.configs import Layers, Length, NotNegative, Positive, Vocabulary, Width, check_value

Spec = dict[str, Any]
"""A mixer as ``config.json`` lists it: its name, and options by name."""
MixerSpec = str | Spec
Norm = Literal["rms", "layer"]
MLP = Literal["swiglu", "gelu", "none"]
MLP_MATRICES: dict[MLP, int] = {"swiglu": 3, "gelu": 2, "none": 0}
"""Matrices of `hidden_size` × `intermediate_size` in a layer's MLP."""

TOKENS = {"bos_token_id": int, "eos_token_id": int | list[int], "pad_token_id": int}
"""transformers' keys for special tokens, and their types; it checks them against the vocabulary when a model is
built."""

OPERATORS = {
    "attn_implementation": Literal["eager", "sdpa"] | None,
    "experts_implementation": Literal["eager", "batched_mm", "grouped_mm"] | None,
}
"""transformers' keys for operators, of which it would fetch any other from the hub when a model is built, and run it;
native models have their own."""


class ArgapConfig(PreTrainedConfig):
    """Configuration of a native model: backbone sizes and one mixer per layer.

    ``mixers``: one entry per layer, a name or ``{"name": ..., option: ...}``. A shorter list is repeated to fill
    ``num_hidden_layers``, so that ``config.json`` always lists every layer.

    ``max_position_embeddings``: the longest sequence, for mixers with a fixed length (long filters); None if every
    mixer takes any length. ``learned_positions``: add a learned vector per position to the token embedding (for
    attention with ``positions: none``, as in the papers' synthetic tasks). ``intermediate_size``: by default
    `default_intermediate_size`.

    Three options exist for other families and their checkpoints: ``norm``, ``rms`` or ``layer`` (with weight and bias),
    for all norms of the backbone (``rms_norm_eps`` is the epsilon of both); ``mlp``, ``gelu`` for an ungated MLP and
    ``none`` for layers that are only a mixer; ``embedding_norm``, an additional norm right after the embedding.

    Mixers are looked up when a model is built, not here, so a configuration can be read without importing them. Raises
    `ArgapError` for a list that does not fit the layers, for learned positions without ``max_position_embeddings``, and
    for an unknown norm or MLP.
    """

    model_type = "argap"

    def __init__(
        self,
        vocab_size: int = 8192,
        hidden_size: int = 256,
        intermediate_size: int | None = None,
        num_hidden_layers: int = 6,
        mixers: Sequence[MixerSpec] = ("attention",),
        max_position_embeddings: int | None = None,
        learned_positions: bool = False,
        norm: Norm = "rms",
        rms_norm_eps: float = 1e-5,
        mlp: MLP = "swiglu",
        embedding_norm: bool = False,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        if not isinstance(mixers, list | tuple) or not mixers:
            raise ArgapError(f"mixers: expected a list of at least one entry, found {mixers!r}")
        for name, value, hint in (
            ("vocab_size", vocab_size, Vocabulary),
            ("hidden_size", hidden_size, Width),
            ("intermediate_size", 1 if intermediate_size is None else intermediate_size, Vocabulary),
            ("num_hidden_layers", num_hidden_layers, Layers),
            ("max_position_embeddings", 1 if max_position_embeddings is None else max_position_embeddings, Length),
            ("rms_norm_eps", rms_norm_eps, Positive),
            ("initializer_range", initializer_range, NotNegative),
            ("learned_positions", learned_positions, bool),
            ("embedding_norm", embedding_norm, bool),
            ("tie_word_embeddings", tie_word_embeddings, bool),
            *((name, kwargs[name], hint) for name, hint in TOKENS.items() if kwargs.get(name) is not None),
        ):
            check_value(name, value, hint)
        if len(mixers) > num_hidden_layers:
            raise ArgapError(
                f"mixers: {len(mixers)} entries for {num_hidden_layers} layers; expected at most one per layer"
            )
        if learned_positions and max_position_embeddings is None:
            raise ArgapError("learned_positions: set max_position_embeddings, the longest sequence")
        for name, value, known in (("norm", norm, get_args(Norm)), ("mlp", mlp, get_args(MLP))):
            if value not in known:
                raise ArgapError(f"{name} {value!r}; expected {' or '.join(known)}")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size or default_intermediate_size(hidden_size)
        self.num_hidden_layers = num_hidden_layers
        self.mixers = [as_spec(mixers[i % len(mixers)]) for i in range(num_hidden_layers)]
        self.max_position_embeddings = max_position_embeddings
        self.learned_positions = learned_positions
        self.norm: Norm = norm
        self.rms_norm_eps = rms_norm_eps
        self.mlp: MLP = mlp
        self.embedding_norm = embedding_norm
        self.initializer_range = initializer_range
        super().__init__(**kwargs)
        self.tie_word_embeddings = tie_word_embeddings  # last, because some versions of the base class set it


def read_native(folder: Path) -> ArgapConfig:
    """Read the configuration in ``config.json``. Raises a one-line `ArgapError` that names the file and the key."""
    path = folder / "config.json"
    try:
        values = read_json(path)
        for key, hint in OPERATORS.items():
            for name in (key, f"_{key}"):
                check_value(name, values.get(name), hint)
        config = ArgapConfig(**{key: value for key, value in values.items() if key != "model_type"})
        GenerationConfig.from_model_config(config)  # as building a model does; it fails on keys such as text_config
        return config
    except ArgapError as error:
        raise ArgapError(f"{path}: {error}") from None
    except Exception as error:  # transformers' errors for its own keys have no common type
        raise FormatError(f"{path}: {' '.join(str(error).split())[:200]}") from None


def default_intermediate_size(hidden_size: int) -> int:
    """Return Llama's 8/3 of the width, rounded up to a multiple of 64."""
    return -(-8 * hidden_size // (3 * 64)) * 64


def as_spec(mixer: MixerSpec) -> Spec:
    """Return a mixer entry in its long form. Raises `ArgapError` for anything else."""
    if isinstance(mixer, str):
        return {"name": mixer}
    if isinstance(mixer, dict) and isinstance(mixer.get("name"), str):
        return dict(mixer)
    raise ArgapError(f"mixer {mixer!r}: expected a name or an object with a name and options")
