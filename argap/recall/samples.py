"""The folder of one model on one task: samples in Parquet, shard by shard, so that a rerun goes on.

Shards are runs of examples in the order of their prompts' lengths, so that batches of equal length find
each other; the files of a task are read back in the order of its rows.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from argap.atomic import replacing
from argap.progress import progress
from argap.recall.analysis import Sample
from argap.runs import begin_run, finish_run, whole_shard

SHARD = 32
SCHEMA = pa.schema(
    [
        ("row", pa.int32()),
        ("id", pa.string()),
        ("document", pa.string()),
        ("key", pa.string()),
        ("gold", pa.string()),
        ("prompt", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("truncated_tokens", pa.int32()),
        ("query_position", pa.int32()),
        ("gold_in_text", pa.bool_()),
        ("gold_survived", pa.bool_()),
        ("gold_positions", pa.list_(pa.int32())),
        ("distance", pa.int32()),
        ("gold_tokens", pa.list_(pa.int32())),
        ("gold_logprobs", pa.list_(pa.float32())),
        ("gold_rank", pa.int32()),
        ("gold_repeated", pa.list_(pa.bool_())),
        ("gold_ar_hit", pa.list_(pa.bool_())),
        ("generation", pa.string()),
        ("generated_tokens", pa.int32()),
        ("stop", pa.string()),
        ("contains", pa.bool_()),
        ("whole_word", pa.bool_()),
    ]
)


def collect(
    folder: Path,
    record: dict[str, Any],
    lengths: Sequence[int],
    answer: Callable[[list[int]], list[Sample]],
    *,
    overwrite: bool = False,
) -> list[Sample]:
    """The samples of all rows, in order; ``answer`` makes those that are not there yet.

    ``lengths``: tokens of each row's prompt. Raises `MismatchError` where the folder holds another run.
    """
    if overwrite:
        shutil.rmtree(folder / "samples", ignore_errors=True)
    run = begin_run(folder, record, overwrite=overwrite)
    order = sorted(range(len(lengths)), key=lambda k: -lengths[k])
    shards = [order[start : start + SHARD] for start in range(0, len(order), SHARD)]
    made = 0
    with progress(f"{record['model']}, {record['task']}", len(order), "examples") as advance:
        for number, rows in enumerate(shards):
            path = _path(folder, number)
            if not whole_shard(path, len(rows)):
                table = pa.Table.from_pylist(answer(rows), schema=SCHEMA)
                with replacing(path) as temporary:
                    pq.write_table(table, temporary, compression="zstd")
                made += len(rows)
            advance(len(rows))
    if not run.finished or made:
        finish_run(run, {"examples": len(order), "made by the last call": made})
    tables = [pq.read_table(_path(folder, number), schema=SCHEMA) for number in range(len(shards))]
    return sorted(pa.concat_tables(tables).to_pylist(), key=lambda sample: sample["row"])


def _path(folder: Path, number: int) -> Path:
    return folder / "samples" / f"part-{number:05d}.parquet"
