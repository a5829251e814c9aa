"""Convert a pickled checkpoint or a GGUF file to a folder of safetensors: ``argap convert``.

The pickle is opened in a separate process that accepts tensors only (`argap.checkpoints.unpickle`). A layout unknown to
transformers (a ``config.json`` without ``model_type``, as HazyResearch and state-spaces publish) becomes a native
checkpoint; any other keeps its ``config.json``. ``conversion.json`` records the source and the hash of its weights.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from argap.checkpoints.find import CONVERSION, DOWNLOADED, PICKLES, download, find_checkpoint, pickles_of
from argap.checkpoints.gguf.header import is_gguf
from argap.errors import ArgapError
from argap.files.atomic import read_json, replacing_folder, write_json
from argap.files.checksums import sha256_of
from argap.files.resumable import environment
from argap.files.weight_files import indexed_files
from argap.records import Record, write_record
from argap.runtime.progress import say
from argap.text.tokenizer import copy_tokenizer, load_tokenizer

if TYPE_CHECKING:
    from argap.models.hub.family import Family

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
    fixed_decay: str | None = None,
    overwrite: bool = False,
) -> ConversionRecord:
    """Write ``source``, a folder or a hub id with pickled weights or a GGUF file, to the folder ``out``.

    ``tokenizer``: a folder, ``tokenizer.json`` or hub id; by default the source's own tokenizer. ``fixed_decay``: how
    to read this option of Based (`argap.models.hub.based.READING`). If anything fails, nothing is left in ``out``.

    Raises `ArgapError` for a pickle of anything but tensors, a configuration that names no model, or an ``out`` that
    is not empty; ``overwrite`` replaces the output of an earlier conversion and nothing else.
    """
    _check_out(out, overwrite=overwrite)
    if is_gguf(source.partition("@")[0]):
        return _convert_gguf(source, out, tokenizer)
    folder = Path(source) if Path(source).exists() else download(source, (*DOWNLOADED, *PICKLES))
    if not (folder / "config.json").is_file():
        raise ArgapError(f"{folder}: no config.json there; expected a checkpoint folder or a hub id")
    files = _pickles(folder)
    family = _published_family(folder, source)
    if (generation := folder / "generation_config.json").is_file():
        read_json(generation)
    chosen = load_tokenizer(tokenizer) if tokenizer else None
    record = ConversionRecord(
        source=source,
        files={path.name: sha256_of(path) for path in files},
        native=family is not None,
        versions=environment()["versions"],
        fixed_decay=fixed_decay,
    )
    with replacing_folder(out) as temporary:
        published = temporary / "published" if family else temporary
        published.mkdir(exist_ok=True)
        _write_safetensors(files, published)
        if family is None:
            shutil.copyfile(folder / "config.json", temporary / "config.json")
        else:
            from argap.models.hub.load import load_native, stored_dtype

            config = {**read_json(folder / "config.json"), "fixed_decay_reading": fixed_decay}
            model = load_native(published, source, family, config, dtype=stored_dtype(published, config))
            model.save_pretrained(temporary)
            shutil.rmtree(published)
        if generation.is_file():
            shutil.copyfile(generation, temporary / generation.name)
        if chosen is None:
            copy_tokenizer(folder, temporary)
        else:
            chosen.save(temporary)
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
    record = ConversionRecord(source=source, files={path.name: sha256_of(path)}, native=False, versions=versions)
    with replacing_folder(out) as temporary:
        write_folder(checkpoint, temporary, chosen)
        write_record(temporary / CONVERSION, record)
    return record


def _published_family(folder: Path, source: str) -> "Family | None":
    """Return the family of a layout unknown to transformers; None if ``config.json`` names a model type.

    Raises `ArgapError` if it does neither.
    """
    from argap.models.hub.registry import find_family

    config = read_json(folder / "config.json")
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
    if (folder / PICKLE_INDEX).is_file():
        return indexed_files(folder / PICKLE_INDEX, suffix=".bin")
    if (folder / PICKLE).is_file():
        return [folder / PICKLE]
    if any(folder.glob("*.safetensors")):
        raise ArgapError(f"{folder}: already has safetensors; `argap score` reads it as it is")
    found = pickles_of(path.name for path in folder.iterdir())
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
        unpickle(path, folder / name)
        with safe_open(folder / name, framework="numpy") as file:
            where |= dict.fromkeys(file.keys(), name)
    if count > 1:
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": where}, seal=False)


def unpickle(path: Path, target: Path) -> None:
    """Write the tensors of a pickle as safetensors, in a separate process (`argap.checkpoints.unpickle`).

    ``-P`` keeps it from importing modules of the working directory, which may be a downloaded checkpoint.
    """
    command = [sys.executable, "-P", "-m", "argap.checkpoints.unpickle", str(path.absolute()), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the reader ended with {done.returncode}"]
        raise ArgapError(lines[-1] if done.returncode == 1 else f"{path}: could not be read ({lines[-1]})")
