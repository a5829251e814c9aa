"""Convert a checkpoint to a folder of safetensors that every other command reads: ``argap convert``.

Pickles and torch's distributed checkpoints are opened in a separate process that accepts tensors only
(`argap.checkpoints.unpickle`). A layout unknown to transformers (a ``config.json`` without ``model_type``, as
HazyResearch and state-spaces publish) becomes a native checkpoint, and Mamba-2 that of transformers; any other keeps
its ``config.json``. ``conversion.json`` records the source and the hash of its weights.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from argap.checkpoints.distributed import COPIES, METADATA, distributed_in
from argap.checkpoints.find import (
    CONVERSION,
    DOWNLOADED,
    PICKLES,
    check_no_adapter,
    check_whole,
    download,
    find_checkpoint,
    pickles_of,
)
from argap.checkpoints.gguf.header import is_gguf
from argap.errors import ArgapError
from argap.files.atomic import read_json, replacing_folder, write_json
from argap.files.checksums import sha256_of, unchanged
from argap.files.regular import is_local, is_there
from argap.files.resumable import environment
from argap.files.weight_files import indexed_files, weight_files
from argap.records import Record, write_record
from argap.runtime.child import run_child
from argap.runtime.progress import say
from argap.text.tokenizer import copy_tokenizer, load_tokenizer

if TYPE_CHECKING:
    import torch

    from argap.models.hub.family import Family

Rewriting = Callable[
    [str, Mapping[str, Any], "Mapping[str, torch.Tensor]"], "tuple[Mapping[str, Any], dict[str, torch.Tensor]]"
]
"""From a checkpoint's name, configuration and tensors to those that are written."""
SECONDS, BYTES_PER_SECOND = 10, 5_000_000
"""Processor time for reading a pickle."""
MEMORY = 4 * 10**9
"""Bytes that reading a pickle may take beyond four times its size."""
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


class ConversionRecord(Record, frozen=True):
    """``conversion.json`` of a converted checkpoint."""

    source: str
    files: dict[str, str]
    """SHA-256 (hex) of each weight file."""
    native: bool
    """Whether configuration and weights are in argap's own format; otherwise they keep the names of the source."""
    versions: dict[str, str]
    fixed_decay: str | None = None
    """How Based's option ``fixed_decay`` was read if true."""


def convert(
    source: str,
    out: Path,
    *,
    tokenizer: str | None = None,
    config: str | None = None,
    fixed_decay: str | None = None,
    overwrite: bool = False,
) -> ConversionRecord:
    """Write the checkpoint ``source``, a folder, a hub id or a GGUF file, to the folder ``out``.

    ``tokenizer``: a folder, ``tokenizer.json`` or hub id; by default the source's own tokenizer. ``config``: the
    ``config.json`` of the architecture where the source has none, or a folder with one. ``fixed_decay``: how to read
    this option of Based (`argap.models.hub.based.READING`). If anything fails, nothing is left in ``out``.

    Raises `ArgapError` for a pickle of anything but tensors, a configuration that names no model, or an ``out`` that
    is not empty; ``overwrite`` replaces the output of an earlier conversion and nothing else.
    """
    _check_out(out, overwrite=overwrite)
    if is_gguf(source.partition("@")[0]):
        return _convert_gguf(source, out, tokenizer)
    stored = _find(source, config)
    if is_there(generation := stored.folder / "generation_config.json"):
        read_json(generation)
    chosen = load_tokenizer(tokenizer) if tokenizer else None
    with replacing_folder(out) as temporary, unchanged([stored.config, *stored.files]):
        _write_model(source, stored, temporary, fixed_decay)
        if is_there(generation):
            shutil.copyfile(generation, temporary / generation.name)
        if chosen is None:
            copy_tokenizer(stored.folder, temporary)
        else:
            chosen.save(temporary)
        record = ConversionRecord(
            source=source,
            files={path.name: sha256_of(path) for path in stored.files},  # once readable, since any size takes no disk
            native=stored.family is not None,
            versions=environment()["versions"],
            fixed_decay=fixed_decay,
        )
        write_record(temporary / CONVERSION, record)
    if not any((out / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        say(f"{source}: comes without a tokenizer; convert it with `tokenizer=T` to score it")
    return record


def _check_out(out: Path, *, overwrite: bool) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not (out / CONVERSION).is_file():
            raise ArgapError(f"{out}: not empty, and not a converted checkpoint; choose another `out`")
        if not overwrite:
            raise ArgapError(f"{out}: not empty; choose another `out`, or `overwrite=True`")


def _convert_gguf(source: str, out: Path, tokenizer: str | None) -> ConversionRecord:
    from argap.checkpoints.gguf.convert import write_folder

    checkpoint = find_checkpoint(source)
    path = checkpoint.gguf or Path(source)
    chosen = load_tokenizer(tokenizer) if tokenizer else None
    versions = environment()["versions"]
    with replacing_folder(out) as temporary, unchanged([path]):
        files = {path.name: sha256_of(path)}
        write_folder(checkpoint, temporary, chosen)
        record = ConversionRecord(source=source, files=files, native=False, versions=versions)
        write_record(temporary / CONVERSION, record)
    return record


class _Stored(NamedTuple):
    """A checkpoint to be converted."""

    folder: Path
    config: Path
    """The ``config.json``."""
    files: list[Path]
    """The files with the weights."""
    opened: list[Path]
    """What `unpickle` reads: these files, or the folder of a distributed checkpoint."""
    family: "Family | None"
    """Whose native form it becomes; None if it keeps the names of transformers."""
    rewriting: "Rewriting | None"
    """How its tensors are renamed; None if they keep their names."""


def _find(source: str, config: str | None) -> _Stored:
    """Find what there is to convert. Raises `ArgapError` for anything without weights or a known architecture."""
    folder = Path(source) if is_local(source) else download(source, (*DOWNLOADED, *PICKLES))
    if not (folder / "config.json").is_file():
        check_no_adapter(folder, source)
    shards = distributed_in(folder)
    path = _settings(folder, config, distributed=shards is not None)
    settings = read_json(path)
    family = _published_family(settings, source)
    if shards is not None:
        files = [shards / METADATA, *sorted(filter(Path.is_file, shards.glob("*.distcp")))]
        return _Stored(folder, path, files, [shards], family, _rewrite_distributed)
    from argap.checkpoints.mamba2 import in_transformers, is_mamba2

    if is_mamba2(settings):
        safe = any(folder.glob("*.safetensors"))
        files = (
            [each for each in weight_files(folder, settings) if each.suffix != ".json"] if safe else _pickles(folder)
        )
        return _Stored(folder, path, files, files, family, in_transformers)
    files = _pickles(folder)
    return _Stored(folder, path, files, files, family, None)


def _write_model(source: str, stored: _Stored, target: Path, fixed_decay: str | None) -> None:
    """Write configuration and weights of ``stored`` to the folder ``target``."""
    if stored.family is None and stored.rewriting is None:
        _write_safetensors(stored.opened, target)
        shutil.copyfile(stored.config, target / "config.json")
        return
    read = target / "read"
    read.mkdir()
    _write_safetensors(stored.opened, read)
    settings = read_json(stored.config)
    if stored.rewriting is not None:
        shutil.copyfile(stored.config, target / "config.json")
        _rewrite(source, read, target, settings, stored.rewriting)
    elif stored.family is not None:
        from argap.models.hub.load import load_native, stored_dtype

        settings["fixed_decay_reading"] = fixed_decay
        model = load_native(read, source, stored.family, settings, dtype=stored_dtype(read, settings))
        model.save_pretrained(target)
    shutil.rmtree(read)


def _settings(folder: Path, config: str | None, *, distributed: bool) -> Path:
    """Return the ``config.json`` that is given, else the one of the source. Raises `ArgapError` if there is none."""
    path = folder if config is None else Path(config)
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        return path
    if distributed and config is None:
        raise ArgapError(
            f"{folder}: a distributed checkpoint, which says nothing of the architecture; give `config=FILE`, the "
            "config.json of transformers for a model of its sizes"
        )
    raise ArgapError(f"{path.parent}: no {path.name} there; expected a checkpoint folder or a hub id")


def _published_family(config: Mapping[str, Any], source: str) -> "Family | None":
    """Return the family of a layout unknown to transformers that has a native form; None if there is none.

    Raises `ArgapError` for a ``config.json`` that names no model type, and has no known layout.
    """
    from argap.checkpoints.mamba2 import is_mamba2
    from argap.models.hub.registry import find_family

    if is_mamba2(config):
        return None
    family = find_family(config)
    if family is not None and family.name != config.get("model_type"):
        return family
    if not isinstance(config.get("model_type"), str):
        raise ArgapError(
            f"{source}: config.json has no model_type, and its keys match no known family; expected the layout of "
            "HazyResearch/based, state-spaces/mamba, or a model of transformers"
        )
    return None


def _pickles(folder: Path) -> list[Path]:
    """Return the pickles of the model. Raises `ArgapError` if there is none, or more than one to choose from."""
    if is_there(folder / PICKLE_INDEX):
        return indexed_files(folder / PICKLE_INDEX, suffix=".bin")
    if is_there(folder / PICKLE):
        return [folder / PICKLE]
    if any(folder.glob("*.safetensors")):
        raise ArgapError(f"{folder}: already has safetensors; `argap score` reads it as it is")
    found = pickles_of(path.name for path in folder.iterdir() if path.is_file())
    if len(found) != 1:
        what = "no pickled weights" if not found else f"several pickles ({', '.join(found)})"
        raise ArgapError(f"{folder}: {what}; expected {PICKLE}")
    return [folder / found[0]]


def _write_safetensors(files: list[Path], folder: Path) -> None:
    """Convert each pickle to one safetensors file, with an index if there are several."""
    from safetensors import safe_open

    count, where = len(files), dict[str, str]()
    for number, path in enumerate(files, 1):
        name = "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
        if path.suffix == ".safetensors":
            check_whole(path)
            shutil.copyfile(path, folder / name)
        else:
            unpickle(path, folder / name)
        with safe_open(folder / name, framework="numpy") as file:
            where |= dict.fromkeys(file.keys(), name)
    if count > 1:
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": where}, seal=False)


def _rewrite(source: str, stored: Path, target: Path, config: Mapping[str, Any], rewriting: Rewriting) -> None:
    """Write the tensors in ``stored`` and ``config`` as ``rewriting`` returns them for checkpoint ``source``."""
    from safetensors.torch import load_file, save_file

    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(stored.glob("*.safetensors")):
        tensors |= load_file(path)
    written, tensors = rewriting(source, config, tensors)
    save_file({name: x.contiguous() for name, x in tensors.items()}, target / "model.safetensors", {"format": "pt"})
    if written != config:
        write_json(target / "config.json", dict(written), seal=False)


def _rewrite_distributed(
    source: str, config: Mapping[str, Any], tensors: "Mapping[str, torch.Tensor]"
) -> "tuple[Mapping[str, Any], dict[str, torch.Tensor]]":
    from argap.checkpoints.weight_names import as_architecture

    return config, as_architecture(source, tensors, config)


def unpickle(path: Path, target: Path) -> None:
    """Write the tensors of a pickle as safetensors, in a process with limits (`argap.checkpoints.unpickle`)."""
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    stored = sum(each.stat().st_size for each in files)
    run_child(
        "argap.checkpoints.unpickle",
        path,
        path.absolute(),
        target,
        cpu=SECONDS + stored / BYTES_PER_SECOND,
        memory=MEMORY + 4 * stored,
        written=2**20 + COPIES * stored,
    )
