"""Keep the weights of a suite's members outside git: one archive per model, and a committed list of their hashes.

The archives lie flat in one folder, as the assets of a release do: ``SUITE-SIZE-NAME.tar``, each a checkpoint folder
with its training record and log. ``SIZE/weights.json`` of the result names them with their SHA-256. Equal checkpoints
give equal archives.
"""

import io
import tarfile
from pathlib import Path

from msgspec.structs import replace

from argap.errors import ArgapError, FormatError
from argap.files.atomic import replacing, replacing_folder
from argap.files.checksums import sha256_of
from argap.files.regular import is_there
from argap.records import Record, read_record, write_record
from argap.suite.config import Suite
from argap.suite.layout import Layout
from argap.train.records import read_train

FILES = (
    "config.json", "generation_config.json", "log.jsonl", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json", "train.json",
)  # fmt: skip
"""Files of a model's folder that an archive holds, if they exist."""


class Asset(Record, frozen=True):
    """One archive."""

    model: str
    file: str
    bytes: int
    sha256: str
    weights: str
    """SHA-256 of its ``model.safetensors``."""
    git: str | None
    """Commit of argap that trained the model; None if its ``train.json`` has none."""


class Weights(Record, frozen=True):
    """``SIZE/weights.json``."""

    assets: tuple[Asset, ...]
    published: str | None
    """Where the archives can be downloaded; None while they are not published."""


def export_weights(suite: Suite, name: str, size: str, layout: Layout, folder: Path, out: Path) -> Weights:
    """Write an archive to ``folder`` for each model of ``size`` with weights in the work folder; list it in ``out``.

    ``name``: of the suite. Models listed in ``out`` earlier stay listed if their weights are not in the work folder.
    A list that changes is not published any more. Raises `ArgapError` if there are no weights.
    """
    before = _read(out)
    listed = {asset.model: asset for asset in before.assets}
    entries = {entry.name: entry for entry in suite.entries(size)}
    found = {model: layout.checkpoint(entry) for model, entry in entries.items()}
    found = {model: place for model, place in found.items() if is_there(place / "model.safetensors")}
    if not found:
        raise ArgapError(f"{size}: no weights in {layout.work}; `argap suite run` keeps them")
    for model, place in found.items():
        path = folder / f"{name}-{size}-{model}.tar"
        with replacing(path) as temporary:
            temporary.write_bytes(_archive(place))
        weights, git = sha256_of(place / "model.safetensors"), read_train(place).git
        listed[model] = Asset(model, path.name, path.stat().st_size, sha256_of(path), weights, git)
    assets = tuple(listed[model] for model in entries if model in listed)
    made = before if assets == before.assets else Weights(assets, published=None)
    write_record(out / "weights.json", made)
    return made


def note_published(out: Path, address: str) -> None:
    """Note in ``out`` where its archives can be downloaded. Raises `ArgapError` if it lists none."""
    listed = _read(out)
    if not listed.assets:
        raise ArgapError(f"{out / 'weights.json'}: lists no archives; pack them first (`to`)")
    write_record(out / "weights.json", replace(listed, published=address))


def import_weights(suite: Suite, size: str, layout: Layout, folder: Path, out: Path) -> list[str]:
    """Unpack the archives in ``folder`` that ``out`` lists into the work folder; return the models unpacked.

    Models with weights in the work folder are skipped. Raises `FormatError` for an archive with another hash and
    `ArgapError` if ``folder`` has none.
    """
    entries = {entry.name: entry for entry in suite.entries(size)}
    listed = _read(out)
    assets = [asset for asset in listed.assets if asset.model in entries and is_there(folder / asset.file)]
    if not assets:
        where = f"download them from {listed.published}" if listed.published else "they are not published"
        raise ArgapError(f"{folder}: has none of the archives that {out / 'weights.json'} lists; {where}")
    unpacked = []
    for asset in assets:
        path, place = folder / asset.file, layout.checkpoint(entries[asset.model])
        if is_there(place / "model.safetensors"):
            continue
        if (length := path.stat().st_size) != asset.bytes:
            raise FormatError(f"{path}: {length:,} bytes, expected {asset.bytes:,}; download it again")
        if (found := sha256_of(path)) != asset.sha256:
            raise FormatError(f"{path}: SHA-256 {found[:12]}, expected {asset.sha256[:12]}; download it again")
        with replacing_folder(place) as temporary, tarfile.open(path) as archive:
            archive.extractall(temporary, filter="data")
        unpacked.append(asset.model)
    return unpacked


def _archive(place: Path) -> bytes:
    """Return a model's files as a tar, without times or owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in FILES:
            if is_there(place / name):
                data = (place / name).read_bytes()
                about = tarfile.TarInfo(name)
                about.size, about.mode = len(data), 0o644
                archive.addfile(about, io.BytesIO(data))
    return buffer.getvalue()


def _read(out: Path) -> Weights:
    path = out / "weights.json"
    return read_record(path, Weights) if is_there(path) else Weights((), None)
