"""Describe a model in one record: parameters, FLOPs and state for a window, layers and their sources."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

from argap.errors import ArgapError
from argap.files.atomic import read_json
from argap.files.configs import Length, check_value
from argap.models.configuration import ArgapConfig, read_native
from argap.models.cost import cost
from argap.models.hub.load import native_config, tensor_files
from argap.models.hub.registry import find_family
from argap.models.presets import ARCHITECTURES, build_config
from argap.models.registry import resolve
from argap.models.sizes import PRINTED, SIZES, VOCABULARY, build_at, note_on
from argap.models.sizes import WINDOW as PAPER_WINDOW
from argap.records.models import Backbone, ModelDescription

WINDOW = 1024


def backbone_at(size: str | None, **given: int | None) -> Backbone:
    """Return the backbone of a named size, or the demo's with the ``given`` fields replaced.

    Raises `ArgapError` for an unknown size, and if both a size and fields are given.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if size is None:
        return Backbone(**chosen)
    if chosen:
        raise ArgapError(f"`size` {size}: sets width, layers and vocabulary; leave out `size` or the others")
    if size not in SIZES:
        raise ArgapError(f"size {size!r}: unknown; known are {', '.join(SIZES)}")
    return Backbone(SIZES[size].hidden_size, SIZES[size].num_hidden_layers, VOCABULARY)


def describe_architecture(
    name: str, backbone: Backbone, *, size: str | None = None, seq_len: int | None = None
) -> ModelDescription:
    """Describe a named architecture, with the paper's figures and a note if ``size`` is one of its sizes.

    ``seq_len``: tokens of the window; by default 1,024, at a named size the paper's 2,048. Raises `ArgapError` for an
    unknown architecture or size.
    """
    if name not in ARCHITECTURES:
        given = "" if size is None else f"`size` {size}: "
        raise ArgapError(f"{given}{name} is not a named architecture; known are {', '.join(ARCHITECTURES)}")
    window = seq_len or (WINDOW if size is None else PAPER_WINDOW)
    if size is None:
        return _describe(name, build_config(name, **vars(backbone), seq_len=window), window)
    config = build_at(name, size, seq_len=window)
    row = _describe(name, config, window, size=size, printed=PRINTED[size].get(name))
    return replace(row, note=note_on(name, size, config, row.params))


def describe_checkpoint(name: str, folder: Path, *, seq_len: int | None = None) -> ModelDescription:
    """Describe the checkpoint in ``folder``, called ``name``.

    For a model type without a native implementation only the number of parameters is known, counted from the
    safetensors. ``seq_len``: by default 1,024, or the checkpoint's maximum if that is shorter. Raises `ArgapError` for
    a mixer from an untrusted module, and for an option that the native implementation lacks.
    """
    values = read_json(folder / "config.json")
    family = find_family(values)
    if values.get("model_type") == ArgapConfig.model_type:
        config = read_native(folder)
    elif family is not None:
        config = native_config(name, family, values)
    else:
        return ModelDescription(name, values.get("model_type", "unknown"), _count_weights(tensor_files(folder, values)))
    window = seq_len or min(WINDOW, config.max_position_embeddings or WINDOW)
    return _describe(name, config, window, model_type=values.get("model_type", config.model_type))


def _describe(
    name: str, config: ArgapConfig, window: int, *, model_type: str = ArgapConfig.model_type, **fields: Any
) -> ModelDescription:
    check_value("`seq_len`", window, Length)
    costs = cost(config, window)
    sources = dict.fromkeys(resolve(mixer["name"]).source for mixer in config.mixers)
    architecture = ARCHITECTURES.get(name)
    if architecture:
        sources[architecture.source] = None
    return ModelDescription(
        name,
        model_type,
        params=costs.parameters,
        flops=costs.flops,
        train_tflops=costs.train_tflops,
        state_size=costs.state_size,
        window=window,
        mixers=config.mixers,
        source="; ".join(filter(None, sources)),
        about=(architecture and architecture.about) or None,
        **fields,
    )


def _count_weights(files: Sequence[Path]) -> int:
    total = 0
    for path in files:
        with safe_open(path, framework="numpy") as file:
            total += sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  (not a dict)
    return total
