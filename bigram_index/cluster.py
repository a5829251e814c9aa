"""Counting on a Ray cluster: shares as tasks, their indexes merged in a tree of tasks.

Every task writes its index under a name made from what it counts, ``index.json`` last, into a folder that
all nodes reach (any fsspec path: ``s3://``, ``gs://``, a shared disk). What is there is not counted again,
so Ray may retry the tasks of a lost worker as often as it likes and nothing is counted twice.
"""

import hashlib
import json
import tempfile
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from argap.bigram_index.build import build_from_source
from argap.bigram_index.folder import refuse_existing
from argap.bigram_index.manifest import FILE
from argap.bigram_index.merge import merge_indexes
from argap.bigram_index.share import Share
from argap.bigram_index.source import Source
from argap.bigram_index.store import BigramIndex
from argap.corpus import open_corpus
from argap.ray_tasks import connect, result_of
from argap.tokenizer import load_tokenizer

FAN_IN = 8
RETRIES = 10


@dataclass(frozen=True)
class Job:
    """What is counted, the same for every share. Paths are those that the nodes see."""

    data: tuple[str, ...]
    tokenizer: str
    work: str
    """fsspec path of the folder for the shares' indexes."""
    shares: int
    text_column: str = "text"
    token_dtype: str | None = None
    stats: bool = False
    memory: int | None = None


def build_on_ray(job: Job, out: Path, *, address: str | None, overwrite: bool = False) -> BigramIndex:
    """Count ``job`` on the cluster at ``address`` (None: this machine alone) and write the index ``out``.

    The bytes are those of a build without a cluster. Raises `ArgapError` as `argap.ray_tasks.connect`
    does, and whatever a share's build raises.
    """
    refuse_existing(out, overwrite=overwrite)
    ray = connect(address)
    count = ray.remote(max_retries=RETRIES)(count_share)
    merge = ray.remote(max_retries=RETRIES)(merge_shares)
    level = [count.remote(job, number) for number in range(job.shares)]
    while len(level) > 1:
        level = [merge.remote(job, *level[at : at + FAN_IN]) for at in range(0, len(level), FAN_IN)]
    name = result_of(ray, level[0])
    with tempfile.TemporaryDirectory() as scratch:
        # A merge of one: it unites the shares' sources, refuses an empty corpus, and writes whole or not at all.
        return merge_indexes([_fetch(job, name, Path(scratch))], out, overwrite=overwrite)


def count_share(job: Job, number: int) -> str:
    """Count one share; return the name of its index below ``job.work``."""
    tokenizer = load_tokenizer(job.tokenizer)
    name = _name("share", asdict(job) | {"work": "", "memory": 0}, tokenizer.fingerprint, number)
    if not _is_there(job, name):
        corpora = [open_corpus(s, text_column=job.text_column, token_dtype=job.token_dtype) for s in job.data]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "index"
            source = Source(corpora, tokenizer, Share(number, job.shares))
            build_from_source(source, folder, stats=job.stats, memory=job.memory)
            _publish(folder, job, name)
    return name


def merge_shares(job: Job, *names: str) -> str:
    """Merge indexes below ``job.work``; return the name of their sum."""
    name = _name("merge", *names)
    if not _is_there(job, name):
        with tempfile.TemporaryDirectory() as scratch:
            folders = [_fetch(job, each, Path(scratch)) for each in names]
            merge_indexes(folders, Path(scratch) / "merged", memory=job.memory, may_be_empty=True)
            _publish(Path(scratch) / "merged", job, name)
    return name


def _name(kind: str, *contents: object) -> str:
    text = json.dumps(contents, sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _is_there(job: Job, name: str) -> bool:
    import fsspec

    fs, work = fsspec.core.url_to_fs(job.work)
    return fs.exists(f"{work}/{name}/{FILE}")


def _publish(folder: Path, job: Job, name: str) -> None:
    """Upload an index; ``index.json`` last and by a rename, so that what is not whole is not there."""
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
