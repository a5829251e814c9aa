"""Counting on a Ray cluster: one job per shard, then rounds of jobs that merge their indexes.

Every job writes its index, ``index.json`` last, to a folder that all nodes reach (any fsspec path: ``s3://``, ``gs://``,
a shared disk), under a name derived from what it counts. A finished index is not counted again, so that the
jobs of a lost worker are restarted and nothing is counted twice.
"""

import hashlib
import json
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from argap.bigram_index.build import build_from_source
from argap.bigram_index.manifest import FILE, refuse_existing
from argap.bigram_index.merge import merge_indexes
from argap.bigram_index.sources.shard import Shard
from argap.bigram_index.sources.token_source import TokenSource
from argap.bigram_index.store import BigramIndex
from argap.corpus import open_corpus
from argap.runtime.cluster import ray_engine
from argap.runtime.jobs import Stop
from argap.text.tokenizer import load_tokenizer

FAN_IN = 8


@dataclass(frozen=True)
class Job:
    """What is counted, the same for every shard. Paths are as the nodes see them."""

    data: tuple[str, ...]
    tokenizer: str
    work: str
    """fsspec path of the folder for the shards' indexes."""
    shards: int
    text_column: str = "text"
    token_dtype: str | None = None
    memory: int | None = None
    passes: float = 1.0


def build_on_ray(job: Job, out: Path, *, address: str | None, overwrite: bool = False) -> BigramIndex:
    """Count ``job`` on the cluster at ``address`` (None: this machine alone) and write the index ``out``.

    The index is byte for byte that of a local build. Raises `ArgapError` as `argap.runtime.cluster.run_on_ray` does,
    and whatever a shard's build raises.
    """
    refuse_existing(out, overwrite=overwrite)
    engine = ray_engine(address, "cpu")
    fingerprint = load_tokenizer(job.tokenizer).fingerprint
    names = [shard_name(job, fingerprint, number) for number in range(job.shards)]
    tasks = [_Task(job, name, partial(count_shard, job, number)) for number, name in enumerate(names)]
    while True:
        deque(engine(tasks, lambda: False), maxlen=0)
        if len(tasks) == 1:
            break
        parts = [[each.name for each in tasks[at : at + FAN_IN]] for at in range(0, len(tasks), FAN_IN)]
        tasks = [_Task(job, merged_name(names), partial(merge_shards, job, *names)) for names in parts]
    with tempfile.TemporaryDirectory() as scratch:
        # Merging a single index unites the shards' sources, refuses an empty corpus, and writes whole or not at all.
        return merge_indexes([_fetch(job, tasks[0].name, Path(scratch))], out, overwrite=overwrite)


@dataclass(frozen=True)
class _Task:
    """A job of `argap.runtime.jobs` that writes the index ``name`` below ``job.work``."""

    job: Job
    name: str
    write: Callable[[], str]

    @property
    def folder(self) -> str:
        return self.job.work

    def run(self, device: object, stop: Stop) -> None:
        self.write()

    def is_done(self) -> bool:
        return _is_there(self.job, self.name)


def shard_name(job: Job, fingerprint: str, number: int) -> str:
    """Return the name of a shard's index. ``fingerprint``: the tokenizer's."""
    return _name("shard", asdict(job) | {"work": "", "memory": 0}, fingerprint, number)


def merged_name(names: Sequence[str]) -> str:
    """Return the name of the sum of the indexes ``names``."""
    return _name("merge", *names)


def count_shard(job: Job, number: int) -> str:
    """Count one shard; return the name of its index below ``job.work``."""
    tokenizer = load_tokenizer(job.tokenizer)
    name = shard_name(job, tokenizer.fingerprint, number)
    if not _is_there(job, name):
        corpora = [open_corpus(s, text_column=job.text_column, token_dtype=job.token_dtype) for s in job.data]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "index"
            source = TokenSource(corpora, tokenizer, Shard(number, job.shards))
            build_from_source(source, folder, memory=job.memory, passes=job.passes)
            _publish(folder, job, name)
    return name


def merge_shards(job: Job, *names: str) -> str:
    """Merge indexes below ``job.work``; return the name of their sum."""
    name = merged_name(names)
    if not _is_there(job, name):
        with tempfile.TemporaryDirectory() as scratch:
            folders = [_fetch(job, each, Path(scratch)) for each in names]
            merge_indexes(folders, Path(scratch) / "merged", memory=job.memory, may_be_empty=True)
            _publish(Path(scratch) / "merged", job, name)
    return name


def _name(prefix: str, *contents: object) -> str:
    text = json.dumps(contents, sort_keys=True)
    return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _is_there(job: Job, name: str) -> bool:
    import fsspec

    fs, work = fsspec.core.url_to_fs(job.work)
    return fs.exists(f"{work}/{name}/{FILE}")


def _publish(folder: Path, job: Job, name: str) -> None:
    """Upload an index, ``index.json`` last and renamed into place, so that its presence means a complete index."""
    import fsspec

    fs, work = fsspec.core.url_to_fs(job.work)
    target = f"{work}/{name}"
    fs.makedirs(target, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != FILE:
            _put(fs, path, f"{target}/{path.name}")
    _put(fs, folder / FILE, f"{target}/{FILE}")


def _put(fs, path: Path, target: str) -> None:
    temporary = f"{target}.{uuid.uuid4().hex}.tmp"
    fs.put_file(str(path), temporary)
    fs.mv(temporary, target)


def _fetch(job: Job, name: str, scratch: Path) -> Path:
    import fsspec

    fs, work = fsspec.core.url_to_fs(job.work)
    folder = scratch / name
    folder.mkdir()
    for path in fs.ls(f"{work}/{name}", detail=False):
        if not path.endswith(".tmp"):
            fs.get_file(path, str(folder / path.rsplit("/", 1)[-1]))
    return folder
