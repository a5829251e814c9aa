"""Load a checkpoint of a known family into a native model: configure it, fill it by the weight map, check it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from argap.errors import ArgapError
from argap.files.weight_files import weight_files
from argap.models.configuration import ArgapConfig
from argap.models.hub.family import Family, Options, Tensors, WeightMap
from argap.models.modeling import ArgapForCausalLM

HEAD = "lm_head.weight"


def native_config(name: str, family: Family, config: Mapping[str, Any]) -> ArgapConfig:
    """Return the native configuration for a ``config.json``; ``name`` is the checkpoint's, for errors.

    Raises `ArgapError`, with name and value, for an option without a native form or of the wrong type.
    """
    try:
        return family.configure(Options(name, family.name, config))
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArgapError(f"{name}: config.json is not one of {family.name} ({reason})") from error


def load_native(
    folder: Path, name: str, family: Family, config: Mapping[str, Any], *, dtype: torch.dtype
) -> ArgapForCausalLM:
    """Load the checkpoint in ``folder`` as a native model, on the CPU, with weights in ``dtype``.

    Raises `ArgapError` for an option without a native form, for a weight that is missing or whose shape contradicts the
    options, and for a tensor that no native weight uses.
    """
    native = native_config(name, family, config)
    with torch.device("meta"):
        model = ArgapForCausalLM(native)
    shards = _Shards(tensor_files(folder, config), family)
    sources = family.weights(Options(name, family.name, config, shards.names), native)
    if native.tie_word_embeddings:
        sources[HEAD] = sources["model.embed_tokens.weight"]
        shards.drop(family.head, unless=sources[HEAD].names)
    else:
        sources[HEAD] = Tensors(family.head)
    state = _fill(model, shards, sources, name)
    for key, value in state.items():
        state[key] = value.to(torch.float32 if key.rpartition(".")[2] in family.float32 else dtype)
    model.load_state_dict(state, strict=True, assign=True)
    model.tie_weights()
    return model


def stored_dtype(folder: Path, config: Mapping[str, Any]) -> torch.dtype:
    """Return the floating-point type of the first matrix in the checkpoint's files; float32 if there is none."""
    for path in tensor_files(folder, config):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  (not a mapping)
                if len(file.get_slice(key).get_shape()) == 2 and (value := file.get_tensor(key)).is_floating_point():
                    return value.dtype
    return torch.float32


def tensor_files(folder: Path, config: Mapping[str, Any]) -> list[Path]:
    """Return the files with the checkpoint's tensors."""
    return [path for path in weight_files(folder, config) if path.suffix != ".json"]


def _fill(model: ArgapForCausalLM, shards: "_Shards", sources: WeightMap, name: str) -> dict[str, torch.Tensor]:
    """Return every parameter of ``model`` in the checkpoint's dtypes; raises `ArgapError` if tensors are left over."""
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes.keys() == sources.keys(), sorted(shapes.keys() ^ sources.keys())  # otherwise our weight map is wrong
    needed = {part for source in sources.values() for part in source.names}
    missing, left = sorted(needed - shards.names), sorted(shards.names - needed)
    if missing:
        raise ArgapError(f"{name}: {len(missing)} weights are missing from its safetensors, the first is {missing[0]}")
    if left:
        raise ArgapError(
            f"{name}: {len(left)} weights are not part of the native model, the first is {left[0]}; "
            "run the family's own code with `backend=hf`"
        )
    state = {}
    for key, source in sources.items():
        shape = shapes[key]
        value = source(shards.read) if source.names else torch.zeros(shape)
        if value.shape != shape:
            raise ArgapError(
                f"{name}: {', '.join(source.names)} gives {key} the shape {tuple(value.shape)}, "
                f"its config.json {tuple(shape)}"
            )
        state[key] = value.contiguous()
    return state


class _Shards:
    """The tensors of a checkpoint, by their names in the map, read one at a time."""

    def __init__(self, files: list[Path], family: Family) -> None:
        self._places: dict[str, tuple[Path, str]] = {}
        for path in files:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118  (not a mapping)
                    renamed = family.rename(key)
                    if renamed is not None:
                        self._places[renamed] = path, key
        self.names = self._places.keys()

    def drop(self, name: str, *, unless: tuple[str, ...]) -> None:
        """Ignore a tensor that equals another one."""
        if name not in unless:
            self._places.pop(name, None)

    def read(self, name: str) -> torch.Tensor:
        path, key = self._places[name]
        with safe_open(path, framework="pt") as file:
            return file.get_tensor(key)
