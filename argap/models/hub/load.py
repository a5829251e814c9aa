"""A checkpoint of a known family as a native model: configured, filled by the weight map, and checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from argap.errors import ArgapError, FormatError
from argap.files.record import Record, read_record
from argap.models.configuration import ArgapConfig
from argap.models.hub.family import Family, Options, Tensors, WeightMap
from argap.models.modeling import ArgapForCausalLM

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HEAD = "lm_head.weight"


class WeightIndex(Record, frozen=True):
    """The index of a checkpoint whose weights are in several files."""

    weight_map: dict[str, str]
    """The file of each tensor."""


def native_config(name: str, family: Family, config: Mapping[str, Any]) -> ArgapConfig:
    """The native configuration of a ``config.json``; ``name`` is the checkpoint's, for errors.

    Raises `ArgapError` for an option without a native form, by name and value, and for one of another type.
    """
    try:
        return family.configure(Options(name, family.name, config))
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArgapError(f"{name}: config.json is not one of {family.name} ({reason})") from error


def load_native(
    folder: Path, name: str, family: Family, config: Mapping[str, Any], *, dtype: torch.dtype
) -> ArgapForCausalLM:
    """The native model of the checkpoint in ``folder``, on the CPU, weights in ``dtype``.

    Raises `ArgapError` for an option without a native form, for a weight that is missing or of another
    shape than the options say, and for one that no native weight is made of.
    """
    native = native_config(name, family, config)
    with torch.device("meta"):
        model = ArgapForCausalLM(native)
    shards = _Shards(folder, name, family)
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


def stored_dtype(folder: Path, name: str) -> torch.dtype:
    """The floating-point type of the first matrix in the checkpoint's files; float32 where there is none."""
    for path in _files(folder, name):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  (no mapping)
                if len(file.get_slice(key).get_shape()) == 2 and (value := file.get_tensor(key)).is_floating_point():
                    return value.dtype
    return torch.float32


def indexed_files(index: Path) -> list[Path]:
    """The files that an index of weights names. Raises `FormatError` for one that is not beside it."""
    names = sorted(set(read_record(index, WeightIndex).weight_map.values()))
    if not names:
        raise FormatError(f"{index}: names no file; expected the index of a sharded checkpoint")
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise FormatError(f"{index}: names {name}; no such file beside it")
    return [index.parent / name for name in names]


def _fill(model: ArgapForCausalLM, shards: "_Shards", sources: WeightMap, name: str) -> dict[str, torch.Tensor]:
    """Every parameter of ``model``, in the checkpoint's types, and nothing of the checkpoint left."""
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes.keys() == sources.keys(), sorted(shapes.keys() ^ sources.keys())  # a map of ours that is wrong
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

    def __init__(self, folder: Path, name: str, family: Family) -> None:
        self._places: dict[str, tuple[Path, str]] = {}
        for path in _files(folder, name):
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118  (no mapping)
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


def _files(folder: Path, name: str) -> list[Path]:
    """The weight files that make the model, as transformers picks them."""
    if (folder / INDEX).is_file():
        return indexed_files(folder / INDEX)
    if not (folder / SINGLE).is_file():
        raise ArgapError(f"{name}: neither {SINGLE} nor {INDEX} there")
    return [folder / SINGLE]
