"""Answers of an earlier `argap recall`, reused instead of asking their model again."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.resumable import folder_name, shortened
from argap.recall.asked import Asking
from argap.recall.examples import Examples
from argap.recall.prompts import Protocol
from argap.recall.samples import HitRule, RecallRun, Sample, collect_samples, read_samples, task_folder
from argap.records import as_json, read_record
from argap.scoring.bos import Model, bos_id, text_of
from argap.scoring.per_model import NO_BOS, NO_SETTING, PerModel, split_name
from argap.text.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Answered:
    """A model's folder in the ``out`` of an earlier call: its finished runs, whose answers are reused."""

    name: str
    folder: Path
    runs: list[RecallRun]
    """One run per task."""
    samples: list[list[Sample]]
    """The samples of each run, in the order of its examples."""
    named: bool
    """Whether the user chose the name."""

    @property
    def fingerprint(self) -> str:
        """Of the checkpoint; for the copy baseline the folder."""
        return self.runs[0].identity.checkpoint or str(self.folder.resolve())

    def qualified(self) -> Self:
        return self

    def answers(self, asking: Asking) -> list[list[Sample]]:
        """Write the runs to ``out``, as if the model had been asked there, and return the samples of each.

        Raises `MismatchError` where ``out`` holds other runs of this name.
        """
        copied = []
        for run, samples in zip(self.runs, self.samples, strict=True):
            folder = task_folder(asking.out, self.name, run.task)
            elsewhere = folder.resolve() != (self.folder / folder.name).resolve()  # its own files are never discarded
            lengths = [sample.prompt_tokens for sample in samples]
            answer = partial(lambda own, rows: [own[row] for row in rows], samples)
            copied.append(collect_samples(folder, run, lengths, answer, overwrite=asking.overwrite and elsewhere))
        return copied


def find_answered(
    source: str, tasks: Sequence[Examples], protocol: Protocol, rule: HitRule, bos: PerModel = NO_SETTING
) -> Answered | None:
    """Find the answers to ``tasks`` in a model's folder ``source`` or ``NAME=FOLDER``; None for anything else.

    ``bos``: as asked for the models of this call; where it is not, answers keep theirs. Raises `ArgapError` for the
    folder of a result, and if a task is missing or unfinished; `MismatchError` for answers of several checkpoints, to
    other data, or under another protocol, BOS, index or threshold; `FormatError` for damaged ones. Dtype and device may
    differ.
    """
    name, path = split_name(source)
    folder = Path(path)
    if not any(folder.glob("*/samples/part-*.parquet")):
        if (folder / "recall.json").is_file() and not (folder / "config.json").is_file():
            raise ArgapError(f"{folder}: a result of `argap recall`; expected the folder of one model in it")
        return None
    runs, samples = [], []
    for examples in tasks:
        run, own = _read_run(folder, examples)
        _check_alike(folder / folder_name(examples.label), run, own, examples, protocol, rule)
        _check_bos(folder / folder_name(examples.label), run, bos.of(name or run.model))
        runs.append(msgspec.structs.replace(run, model=name or run.model, task=examples.label))
        samples.append(own)
        if run.identity.checkpoint != runs[0].identity.checkpoint:
            raise MismatchError(
                f"{folder}: answers of one checkpoint on {runs[0].task}, of another on {run.task}; expected those of "
                "one; ask it again, with `overwrite=True`"
            )
    return Answered(runs[0].model, folder, runs, samples, named=name is not None)


def _read_run(folder: Path, examples: Examples) -> tuple[RecallRun, list[Sample]]:
    """Read the finished run on ``examples`` in a model's folder."""
    path = folder / folder_name(examples.label)
    if not (path / "run.json").is_file():
        there = sorted(path.parent.name for path in folder.glob("*/run.json"))
        raise ArgapError(
            f"{folder}: no answers on {examples.label}, only {', '.join(there)}; repeat its `argap recall` command "
            "with this task, or leave it out of `tasks`"
        )
    run = read_record(path / "run.json", RecallRun)
    if run.finished is None:
        raise ArgapError(f"{path}: the run is not finished; repeat its `argap recall` command to complete it")
    samples = read_samples(path)
    if [sample.row for sample in samples] != list(range(run.data.examples)):
        raise FormatError(
            f"{path}: {len(samples)} answers, expected {run.data.examples}; repeat its `argap recall` command"
        )
    return run, samples


def _check_alike(
    path: Path, run: RecallRun, samples: Sequence[Sample], examples: Examples, protocol: Protocol, rule: HitRule
) -> None:
    """Raise `MismatchError` unless a model asked now reads the same prompts, and its golds have the same AR hits.

    An index is identified by its counts, because its path differs between machines. Only the counts of the golds'
    bigrams reach a sample. They are looked up again, except the first, whose first token is the prompt's last.
    """
    made = run.identity
    held = {"examples": run.data.examples, "data": made.data, **as_json(made.protocol), "threshold": made.threshold}
    data = {"examples": len(examples.rows), "data": examples.fingerprint}
    for key, asked in (data | as_json(protocol) | {"threshold": rule.threshold}).items():
        if held[key] != asked:
            raise _mismatch(path, key, shortened(held[key]), shortened(asked))
    for sample in samples:
        gold, hits = sample.gold_tokens, sample.gold_ar_hit
        if rule.hits(gold[:-1], gold[1:], sample.gold_repeated[1:]) != (hits and hits[1:]):
            asked = "none" if rule.index is None else f"{rule.index.folder}, which gives other AR hits"
            raise _mismatch(path, "index", made.index or "none", asked)


def _check_bos(path: Path, run: RecallRun, asked: str | None) -> None:
    """Raise `MismatchError` for answers to prompts behind another token than ``asked`` (`argap.scoring.bos`)."""
    held, checkpoint = run.identity.bos, run.checkpoint
    if asked is None or checkpoint is None:
        return
    try:
        tokenizer = load_tokenizer(Path(checkpoint["folder"] or ""))
    except ArgapError:  # answers are kept without their checkpoint
        if (asked == NO_BOS) != (held is None):
            raise _mismatch(path, "bos", "none" if held is None else f"token {held}", asked) from None
        return
    if bos_id(Model(run.model, tokenizer), asked) != held:
        raise _mismatch(path, "bos", "none" if held is None else repr(text_of(tokenizer, held)), repr(asked))


def _mismatch(path: Path, key: str, held: object, asked: object) -> MismatchError:
    return MismatchError(
        f"{path}: holds answers with `{key}` {held}, asked for {asked}; give what the answers have, or name the "
        "checkpoint to ask it again"
    )
