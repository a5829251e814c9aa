"""Counting on a Ray cluster: one task per shard, and a tree of tasks that merges their indexes.

Every task writes its index, ``index.json`` last, to a folder that all nodes reach (any fsspec path: ``s3://``, ``gs://``,
a shared disk), under a name derived from what it counts. A finished index is not counted again, so Ray may retry the
tasks of a lost worker and nothing is counted twice.
"""

import hashlib
import json
import tempfile
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from argap.bigram_index.build import build_from_source
from argap.bigram_index.manifest import FILE, refuse_existing
from argap.bigram_index.merge import merge_indexes
from argap.bigram_index.sources.shard import Shard
from argap.bigram_index.sources.token_source import TokenSource
from argap.bigram_index.store import BigramIndex
from argap.corpus import open_corpus
from argap.runtime.ray import connect, result_of
from argap.text.tokenizer import load_tokenizer

FAN_IN = 8
RETRIES = 10


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
    stats: bool = False
    memory: int | None = None
    passes: float = 1.0


def build_on_ray(job: Job, out: Path, *, address: str | None, overwrite: bool = False) -> BigramIndex:
    """Count ``job`` on the cluster at ``address`` (None: this machine alone) and write the index ``out``.

    The index is byte for byte that of a local build. Raises `ArgapError` as `argap.runtime.ray.connect` does, and
    whatever a shard's build raises.
    """
    refuse_existing(out, overwrite=overwrite)
    ray = connect(address)
    count = ray.remote(max_retries=RETRIES)(count_shard)
    merge = ray.remote(max_retries=RETRIES)(merge_shards)
    level = [count.remote(job, number) for number in range(job.shards)]
    while len(level) > 1:
        level = [merge.remote(job, *level[at : at + FAN_IN]) for at in range(0, len(level), FAN_IN)]
    name = result_of(ray, level[0])
    with tempfile.TemporaryDirectory() as scratch:
        # Merging a single index unites the shards' sources, refuses an empty corpus, and writes whole or not at all.
        return merge_indexes([_fetch(job, name, Path(scratch))], out, overwrite=overwrite)


def count_shard(job: Job, number: int) -> str:
    """Count one shard; return the name of its index below ``job.work``."""
    tokenizer = load_tokenizer(job.tokenizer)
    name = _name("shard", asdict(job) | {"work": "", "memory": 0}, tokenizer.fingerprint, number)
    if not _is_there(job, name):
        corpora = [open_corpus(s, text_column=job.text_column, token_dtype=job.token_dtype) for s in job.data]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "index"
            source = TokenSource(corpora, tokenizer, Shard(number, job.shards))
            build_from_source(source, folder, stats=job.stats, memory=job.memory, passes=job.passes)
            _publish(folder, job, name)
    return name


def merge_shards(job: Job, *names: str) -> str:
    """Merge indexes below ``job.work``; return the name of their sum."""
    name = _name("merge", *names)
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
