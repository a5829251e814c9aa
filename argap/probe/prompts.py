"""Build every prompt of a probe in a model's tokens, as windows that the scorer runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from argap.errors import ArgapError, within
from argap.evaluation.windows import EvaluationSet
from argap.probe.drafts import Draft, Prompt, finish
from argap.probe.kits import TextKit, TokenKit, Vocabulary
from argap.probe.records import Condition, ProbeSpec
from argap.probe.tasks import TASKS, check_load
from argap.records import ids_of
from argap.scoring.local import CheckpointSource
from argap.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ProbeSet:
    """The prompts of every condition; prompt k is window k of `data`."""

    conditions: list[Condition]
    per_condition: int
    prompts: list[Prompt]
    data: EvaluationSet

    def of(self, condition: int) -> range:
        """Return the windows of a condition."""
        return range(condition * self.per_condition, (condition + 1) * self.per_condition)


def build_prompts(spec: ProbeSpec, tokenizer: Tokenizer) -> ProbeSet:
    """Build the prompts of ``spec``; each depends only on the seed, its condition and its number.

    Raises `ArgapError` for a vocabulary with too few tokens for a condition, a length that cannot hold its facts, and
    text that the tokenizer cannot spell.
    """
    conditions, vocabulary = spec.conditions(), Vocabulary(tokenizer)
    drafts: list[Draft] = []
    for condition in conditions:
        check_load(condition.task, condition.load, spec.shots)
        with within(f"{condition.task}, {TASKS[condition.task].load} {condition.load}"):
            drafts += [_draft(spec, condition, k, vocabulary) for k in range(spec.prompts)]
    prompts = finish(drafts, tokenizer)
    return ProbeSet(conditions, spec.prompts, prompts, as_windows(prompts, tokenizer))


def _draft(spec: ProbeSpec, condition: Condition, number: int, vocabulary: Vocabulary) -> Draft:
    task = TASKS[condition.task]
    name = crc32(f"{condition.task} {condition.form}".encode())
    rng = np.random.default_rng([spec.seed, name, condition.load, condition.length, number])
    kit = TextKit(rng) if condition.form == "text" else TokenKit(rng, vocabulary)
    return task.build(kit, condition.load, condition.length, spec.shots if task.shots else 0)


def as_windows(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> EvaluationSet:
    """Return prompts as an evaluation set: each is a window and a document of its own."""
    ends = np.cumsum([len(prompt.ids) for prompt in prompts]).astype(np.int64)
    return EvaluationSet(
        tokens=np.concatenate([prompt.ids for prompt in prompts]).astype(np.int32),
        offsets=np.concatenate([[0], ends]),
        document_ends=ends,
        domains=["probe"] * len(prompts),
        sources=["probe"] * len(prompts),
        seq_len=max(len(prompt.ids) for prompt in prompts),
        packing="document",
        eos=None,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
    )


def check_fits(source: CheckpointSource, made: ProbeSet) -> None:
    """Raise `ArgapError` if a prompt, behind its BOS, is longer than the model takes; the message names the task."""
    if source.longest is None:
        return
    limit = source.longest - len(ids_of(source.bos))
    for k, condition in enumerate(made.conditions):
        longest = max(len(made.prompts[window].ids) for window in made.of(k))
        if longest > limit:
            raise ArgapError(
                f"{source.name}: takes at most {source.longest} tokens; prompts of {condition.task} ({condition.form}, "
                f"{TASKS[condition.task].load} {condition.load}) have up to {longest}"
                f"{' and a BOS' if limit < source.longest else ''}; use less `load` or `length`, or "
                f"`max_length={longest + source.longest - limit}` if it takes more than it says"
            )
