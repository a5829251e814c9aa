"""The models of `argap recall`: checkpoints and the copy baseline. Each resumes where it stopped."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol as TypingProtocol
from typing import Self

from argap.bigram_index.store import check_tokenizer
from argap.checkpoints.find import Checkpoint
from argap.checkpoints.load import runs_native
from argap.files.resumable import environment
from argap.recall.decoding import CopyBaseline, Decoder, load_decoder
from argap.recall.examples import COPY, Examples
from argap.recall.prompts import NEW_TOKENS, STOP, Prompt, Protocol, build_prompt, check_fits
from argap.recall.samples import (
    HitRule,
    RecallIdentity,
    RecallRun,
    Sample,
    collect_samples,
    gold_ids,
    make_sample,
    task_folder,
)
from argap.records import Bos, ids_of
from argap.runtime.device import resolve_device, resolve_dtype
from argap.scoring.bos import say_bos
from argap.scoring.config import ScoreConfig
from argap.scoring.local import CheckpointSource
from argap.scoring.sources import Named


@dataclass(frozen=True)
class Asking:
    """The questions for every model, and the folder for its answers."""

    tasks: Sequence[Examples]
    out: Path
    protocol: Protocol
    config: ScoreConfig
    """How models run."""
    rule: HitRule
    overwrite: bool


class Asked(Named, TypingProtocol):
    """A model under the name of its row: one that answers now, or finished answers."""

    def answers(self, asking: Asking) -> list[list[Sample]]:
        """Write the samples of each task below ``out`` and return them."""
        ...


@dataclass(frozen=True)
class AskedCheckpoint:
    """A checkpoint, loaded once for all tasks."""

    source: CheckpointSource

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    @property
    def named(self) -> bool:
        return self.source.named

    def qualified(self) -> Self:
        return replace(self, source=self.source.qualified())

    def answers(self, asking: Asking) -> list[list[Sample]]:
        bos = self.source.bos
        say_bos(self.source, asking.config.bos.of(self.name), bos)
        decoder = load_decoder(self.source, asking.config)
        return _answer(self.name, self.source.checkpoint, decoder, asking, bos)


@dataclass(frozen=True)
class AskedCopy:
    """The copy baseline, in the tokens of a checkpoint."""

    tokens_of: CheckpointSource
    name: str = COPY
    fingerprint: str = COPY
    named: bool = False

    def qualified(self) -> Self:
        return self

    def answers(self, asking: Asking) -> list[list[Sample]]:
        return _answer(self.name, None, CopyBaseline(self.tokens_of.tokenizer), asking)


def _answer(
    name: str, checkpoint: Checkpoint | None, decoder: Decoder | CopyBaseline, asking: Asking, bos: Bos = None
) -> list[list[Sample]]:
    """Return the samples of one model on each task; ``checkpoint`` None: the baseline; ``bos``: before each prompt."""
    tokenizer, rule = decoder.tokenizer, asking.rule
    if rule.index is not None:
        check_tokenizer(rule.index, name, tokenizer.fingerprint)
    samples = []
    for examples in asking.tasks:
        prompts = [build_prompt(example, examples.task, tokenizer, asking.protocol) for example in examples.rows]
        if checkpoint is not None:
            check_fits(prompts, asking.config.longest(name, checkpoint.longest), name, bos=bos)
        folder = task_folder(asking.out, name, examples.label)
        record = _describe(name, checkpoint, examples, asking, bos)
        answer = partial(_answer_rows, decoder, examples, prompts, rule, bos)
        lengths = [len(prompt.ids) for prompt in prompts]
        samples.append(collect_samples(folder, record, lengths, answer, overwrite=asking.overwrite))
    return samples


def _answer_rows(
    decoder: Decoder | CopyBaseline,
    examples: Examples,
    prompts: list[Prompt],
    rule: HitRule,
    bos: Bos,
    rows: list[int],
) -> list[Sample]:
    """Generate answers and force the golds for some examples."""
    tokenizer = decoder.tokenizer
    ids = [[*ids_of(bos), *prompts[row].ids] for row in rows]
    golds = [gold_ids(examples.rows[row], tokenizer) for row in rows]
    generations = decoder.generate(ids, until=[STOP], new_tokens=NEW_TOKENS)
    forced = decoder.force(ids, [gold[:NEW_TOKENS] for gold in golds])
    return [
        make_sample(row, examples.rows[row], prompts[row], generation, gold, of_gold, tokenizer, rule)
        for row, generation, gold, of_gold in zip(rows, generations, golds, forced, strict=True)
    ]


def _as_text(checkpoint: Checkpoint) -> dict[str, str | None]:
    """Return the fields of a checkpoint with its paths as text."""
    return {name: None if value is None else str(value) for name, value in vars(checkpoint).items()}


def _describe(name: str, checkpoint: Checkpoint | None, examples: Examples, asking: Asking, bos: Bos) -> RecallRun:
    device = resolve_device(asking.config.device)
    return RecallRun(
        model=name,
        task=examples.label,
        checkpoint=None if checkpoint is None else _as_text(checkpoint),
        protocol=asking.protocol,
        data=examples.describe(),
        identity=RecallIdentity(
            checkpoint=None if checkpoint is None else checkpoint.fingerprint,
            data=examples.fingerprint,
            protocol=asking.protocol,
            dtype=resolve_dtype(asking.config.dtype.of(name) or "auto", device),
            device=device.partition(":")[0],
            backend=None if checkpoint is None else runs_native(checkpoint, asking.config.backend),
            index=None if asking.rule.index is None else str(asking.rule.index.folder.resolve()),
            threshold=asking.rule.threshold,
            bos=bos,
        ),
        **environment(),
    )
