"""A model's answer to each example, and why: the samples of one model on one task, in Parquet.

Samples are written shard by shard, so that a rerun only asks for the missing ones. Shards follow the order of prompt
length, longest first, so that a batch's prompts have nearly one length; samples are read back in row order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from argap.bigram_index.store import BigramIndex
from argap.errors import FormatError
from argap.files.checksums import check_files
from argap.files.parquet import read_records, schema_of, write_parquet
from argap.files.regular import found_in
from argap.files.remedies import remedy_for
from argap.files.resumable import begin, finish, folder_name
from argap.recall.decoding import Forced, Generation, Stop
from argap.recall.examples import Example, TaskData, contains, whole_word
from argap.recall.prompts import Prompt, Protocol
from argap.records import Bos, Record, as_json, read_record
from argap.runtime.progress import progress
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import whole_parts

SHARD = 32
"""Examples per file."""


class Sample(Record, frozen=True):
    """One example as one model answered it; the columns of the Parquet files. Positions index the prompt's tokens."""

    row: int
    """Index of the example in its task."""
    id: str
    document: str
    key: str
    gold: str
    prompt: str
    """The prompt as the model read it."""
    prompt_tokens: int
    truncated_tokens: int
    query_position: int
    gold_in_text: bool
    """Whether the uncut text contained the gold."""
    gold_survived: bool
    """Whether the prompt contains it."""
    gold_positions: list[int]
    distance: int | None
    """Tokens from the nearest gold to the answer; None if the prompt does not contain the gold."""
    gold_tokens: list[int]
    gold_logprobs: list[float] | None
    """Under teacher forcing, in nats; None for the copy baseline."""
    gold_rank: int | None
    """How many tokens were more likely than the gold's first; None for the copy baseline."""
    gold_repeated: list[bool]
    """Whether each gold token ends a bigram that occurred before."""
    gold_ar_hit: list[bool] | None
    """Whether it is an AR hit; None without an index."""
    generation: str
    generated_tokens: int
    stop: Stop
    contains: bool
    whole_word: bool


SCHEMA = schema_of(Sample)


class Completion(Record, frozen=True):
    """How a run of a model on a task was finished."""

    examples: int


class RecallIdentity(Record, frozen=True):
    """The fields in which two equal runs of a model on a task agree."""

    checkpoint: str | None
    """Its fingerprint; None for the copy baseline."""
    data: str
    protocol: Protocol
    dtype: str
    device: str
    backend: bool | None
    """Whether argap's own code runs the model."""
    index: str | None
    threshold: int
    bos: Bos = None
    """What is put before each prompt."""


class RecallRun(Record, frozen=True):
    """A run of a model on a task, as recorded in ``run.json``."""

    model: str
    task: str
    checkpoint: dict[str, str | None] | None
    protocol: Protocol
    data: TaskData
    identity: RecallIdentity
    versions: dict[str, str]
    git: str | None
    finished: Completion | None = None


@dataclass(frozen=True)
class HitRule:
    """The rule for AR hits: repeated bigrams with at most ``threshold`` occurrences in ``index``."""

    index: BigramIndex | None = None
    threshold: int = 1250

    def hits(self, first: Sequence[int], second: Sequence[int], repeated: Sequence[bool]) -> list[bool] | None:
        """Return which bigrams (first, second), ``repeated`` or not, are AR hits; None without an index."""
        if self.index is None:
            return None
        counts = self.index.count(np.array(first, dtype=int), np.array(second, dtype=int)).tolist()
        return [again and count <= self.threshold for again, count in zip(repeated, counts, strict=True)]


def gold_ids(example: Example, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of the gold as they would follow the query: after a space."""
    return tokenizer.encode([f" {example.gold}"])[0].tolist()


def make_sample(
    row: int,
    example: Example,
    prompt: Prompt,
    generation: Generation,
    gold: list[int],
    forced: Forced | None,
    tokenizer: Tokenizer,
    rule: HitRule,
) -> Sample:
    """Build the sample of one example.

    ``gold``: its tokens; ``forced``: their log-probs, None for the copy baseline.
    """
    repeated = repeats_of_gold(prompt.ids, gold)
    return Sample(
        row=row,
        id=example.id,
        document=example.document,
        key=example.key,
        gold=example.gold,
        prompt=tokenizer.decode(prompt.ids),
        prompt_tokens=len(prompt.ids),
        truncated_tokens=prompt.truncated,
        query_position=prompt.query,
        gold_in_text=prompt.gold_in_text,
        gold_survived=bool(prompt.golds),
        gold_positions=[start for start, _ in prompt.golds],
        distance=prompt.distance,
        gold_tokens=gold,
        gold_logprobs=None if forced is None else forced.logprobs,
        gold_rank=None if forced is None else forced.ranks[0],
        gold_repeated=repeated,
        gold_ar_hit=rule.hits([prompt.ids[-1], *gold[:-1]], gold, repeated),
        generation=generation.text,
        generated_tokens=len(generation.ids),
        stop=generation.stop,
        contains=contains(generation.text, example.gold),
        whole_word=whole_word(generation.text, example.gold),
    )


def repeats_of_gold(prompt: list[int], gold: list[int]) -> list[bool]:
    """Return for each gold token whether its bigram occurred earlier in the prompt or the gold."""
    bigrams = list(pairwise([*prompt, *gold]))
    start = len(prompt) - 1  # the bigram that the first gold token ends
    seen, repeated = set(bigrams[:start]), []
    for bigram in bigrams[start:]:
        repeated.append(bigram in seen)
        seen.add(bigram)
    return repeated


def collect_samples(
    folder: Path,
    record: RecallRun,
    lengths: Sequence[int],
    answer: Callable[[list[int]], list[Sample]],
    *,
    overwrite: bool,
) -> list[Sample]:
    """Return the samples of all examples, in order; ``answer`` generates the missing ones.

    ``lengths``: tokens of each prompt. ``record``: of a new run. Raises `MismatchError` if the folder holds another
    run, and `FormatError` for a broken ``run.json``.
    """
    begin(folder, record, record.identity, overwrite=overwrite)
    record = read_record(folder / "run.json", RecallRun)
    order = sorted(range(len(lengths)), key=lambda k: -lengths[k])
    shards = [order[start : start + SHARD] for start in range(0, len(order), SHARD)]
    paths = [folder / "samples" / f"part-{number:05d}.parquet" for number in range(len(shards))]
    whole = whole_parts(folder, dict(zip(paths, map(len, shards), strict=True)))
    answered = False
    with progress(f"{record.model}, {record.task}", len(order), "examples") as advance:
        for path, rows in zip(paths, shards, strict=True):
            if path not in whole:
                write_parquet(path, pa.Table.from_pylist([as_json(s) for s in answer(rows)], schema=SCHEMA))
                answered = True
            advance(len(rows))
    if record.finished is None or answered:
        finish(folder, record, Completion(len(order)))
    return read_samples(folder)


def read_samples(folder: Path) -> list[Sample]:
    """Read the samples of a model on a task, in order. Raises `FormatError` for a broken file."""
    paths = found_in(folder / "samples", "part-*.parquet")
    check_files(folder, paths)
    run = read_record(folder / "run.json", RecallRun).identity
    known = {"gold_logprobs": run.checkpoint, "gold_rank": run.checkpoint, "gold_ar_hit": run.index}
    samples = []
    for path in paths:
        samples += (of_path := read_records(path, Sample))
        for name, source in known.items():
            if any((getattr(sample, name) is None) != (source is None) for sample in of_path):
                found = "null in a row" if source else "not null in a row of a run without it"
                raise FormatError(f"{path}: {name} is {found}{remedy_for(path)}")
    return sorted(samples, key=lambda sample: sample.row)


def model_folder(out: Path, model: str) -> Path:
    """Return the folder with the results of ``model``; its samples are in one folder per task (`task_folder`).

    Raises `ArgapError` for a name that is not one plain folder name, such as ``..``.
    """
    return out / folder_name(model)


def task_folder(out: Path, model: str, task: str) -> Path:
    """Return the folder of the samples of ``model`` on ``task``. Raises `ArgapError`, as `model_folder` does."""
    return model_folder(out, model) / folder_name(task)
