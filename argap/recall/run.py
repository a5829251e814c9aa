"""The whole benchmark: checkpoints and tasks in; samples, ``recall.json`` and lm-eval's ``results.json`` out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from argap.bigram_index.store import check_tokenizer, open_index
from argap.checkpoints.load import runs_native
from argap.errors import ArgapError
from argap.files.atomic import write_json
from argap.files.lock import one_writer
from argap.files.resumable import environment
from argap.recall.answered import AnsweredTarget, find_answered
from argap.recall.decoding import CopyBaseline, Decoder, Forced, load_decoder
from argap.recall.examples import COPY, Examples
from argap.recall.link import ArNll, link_to_gap
from argap.recall.lm_eval_model import ArgapLM
from argap.recall.lm_eval_tasks import StockOptions, run_stock, score_finished, stock_tasks
from argap.recall.prompts import NEW_TOKENS, STOP, Prompt, Protocol, build_prompt, check_fits
from argap.recall.result import FORMAT, RecallResult, flips
from argap.recall.samples import (
    HitRule,
    RecallIdentity,
    RecallRun,
    Sample,
    collect_samples,
    gold_ids,
    make_sample,
    model_folder,
    task_folder,
)
from argap.recall.scores import Score, score
from argap.records import write_record
from argap.runtime.device import resolve_device, resolve_dtype
from argap.scoring.scorer import ScoreOptions
from argap.scoring.sources import CheckpointTarget, distinct, find_target
from argap.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CopyTarget:
    """The copy baseline, which uses the tokenizer of a checkpoint."""

    tokenizer_of: CheckpointTarget
    name: str = COPY
    fingerprint: str = COPY
    checkpoint: None = None
    named: bool = False

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizer_of.tokenizer


AskedTarget = CheckpointTarget | CopyTarget


@one_writer("out")
def run_recall(
    models: Sequence[str],
    tasks: Sequence[Examples],
    out: Path,
    *,
    reference: str | None = None,
    protocol: Protocol = Protocol(),  # noqa: B008  (frozen)
    options: ScoreOptions = ScoreOptions(),  # noqa: B008  (frozen)
    index: str | None = None,
    threshold: int = 1250,
    ar_nlls: Mapping[str, ArNll] | None = None,
    overwrite: bool = False,
) -> RecallResult:
    """Ask every model every example of ``tasks``; write and return ``recall.json``.

    ``models`` and ``reference``: checkpoints, names, finished runs (a model's folder in the ``out`` of an earlier call,
    whose answers are copied), or ``copy``, the baseline without a model, which uses the first checkpoint's tokenizer.
    ``ar_nlls``: by model, from `argap.recall.link.read_ar_nlls`. Raises `ArgapError` for ``ar_nlls`` without the
    reference's and for prompts longer than a model's context; `MismatchError` for an index of another tokenizer, and
    for a folder with another run; and what `argap.recall.answered.find_answered` raises.
    """
    rule = HitRule(None if index is None else open_index(index), threshold)
    answered = partial(find_answered, tasks=tasks, protocol=protocol, rule=rule)
    targets = _find_targets([*models, *([reference] if reference else [])], answered)
    compared = None if reference is None else targets[-1].name
    if ar_nlls is not None and compared not in ar_nlls:
        raise ArgapError(f"`gap`: no AR hits of the reference {compared}; expected one of {', '.join(ar_nlls)}")
    samples: dict[tuple[str, str], list[Sample]] = {}
    scores: list[Score] = []
    for model, target in {target.name: target for target in targets}.items():
        if isinstance(target, AnsweredTarget):
            answers = target.copy_to(out, overwrite=overwrite)
        else:
            answers = _answer_tasks(target, tasks, out, protocol, options, rule, overwrite=overwrite)
        for examples, own in zip(tasks, answers, strict=True):
            samples[model, examples.label] = own
            scores.append(score(model, examples.label, own))
        write_json(model_folder(out, model) / "results.json", score_finished(answers, tasks), seal=False)
    result = RecallResult(
        format=FORMAT,
        rows=scores,
        reference=compared,
        protocol=protocol,
        tasks=[examples.describe() for examples in tasks],
        flips=[
            flips(model, task, own, samples[compared, task])
            for (model, task), own in samples.items()
            if compared is not None and model != compared
        ],
        link=[] if ar_nlls is None or compared is None else link_to_gap(scores, ar_nlls, compared),
        run=str(out),
        **environment(),
    )
    write_record(out / "recall.json", result)
    return result


def run_upstream(
    models: Sequence[str],
    tasks: Sequence[str],
    out: Path,
    *,
    options: ScoreOptions = ScoreOptions(),  # noqa: B008  (frozen)
    stock: StockOptions = StockOptions(),  # noqa: B008
) -> dict[str, dict[str, Any]]:
    """Run lm-eval's tasks on every model; return its results by model, also written to ``MODEL/results.json``.

    ``tasks``: names of lm-eval's tasks, groups and tags; ``zeroshot`` for those of the papers' tables. Raises
    `ArgapError` for any other.
    """
    names = stock_tasks(tasks, stock)  # refused before a model is loaded
    results = {}
    for target in {each.name: each for each in distinct([*map(find_target, models)])}.values():
        results[target.name] = run_stock(ArgapLM(load_decoder(target, options), target.name), names, stock)
        write_json(model_folder(out, target.name) / "results.json", results[target.name], seal=False)
    return results


def _find_targets(
    names: Sequence[str], answered: Callable[[str], AnsweredTarget | None]
) -> list[AskedTarget | AnsweredTarget]:
    """The model of each name, as `argap.scoring.sources.distinct` tells them apart; ``answered`` finds finished runs.

    Raises `ArgapError` for the copy baseline without a checkpoint.
    """
    found: dict[str, AskedTarget | AnsweredTarget] = {}
    found |= {name: answered(name) or find_target(name) for name in names if name != COPY}
    if COPY in names:
        checkpoint = next((target for target in found.values() if isinstance(target, CheckpointTarget)), None)
        if checkpoint is None:
            raise ArgapError(
                "copy: the baseline takes its tokenizer from a checkpoint, and finished runs have none; name a "
                "checkpoint too, or as `reference`"
            )
        found[COPY] = CopyTarget(checkpoint)
    return distinct([found[name] for name in names])


def _answer_tasks(
    target: AskedTarget,
    tasks: Sequence[Examples],
    out: Path,
    protocol: Protocol,
    options: ScoreOptions,
    rule: HitRule,
    *,
    overwrite: bool,
) -> list[list[Sample]]:
    """The samples of one model on each task."""
    baseline = isinstance(target, CopyTarget)
    decoder = CopyBaseline(target.tokenizer) if baseline else load_decoder(target, options)
    tokenizer = decoder.tokenizer
    if rule.index is not None:
        check_tokenizer(rule.index, target.name, tokenizer.fingerprint)
    samples = []
    for examples in tasks:
        prompts = [build_prompt(example, examples.task, tokenizer, protocol) for example in examples.rows]
        if target.checkpoint is not None:
            check_fits(prompts, target.checkpoint.longest, target.name)
        folder = task_folder(out, target.name, examples.label)
        record = _describe(target, examples, protocol, options, rule)
        answer = partial(_answer_rows, decoder, examples, prompts, rule)
        lengths = [len(prompt.ids) for prompt in prompts]
        samples.append(collect_samples(folder, record, lengths, answer, overwrite=overwrite))
    return samples


def _answer_rows(
    decoder: Decoder | CopyBaseline, examples: Examples, prompts: list[Prompt], rule: HitRule, rows: list[int]
) -> list[Sample]:
    """Generation and teacher forcing for some examples."""
    tokenizer = decoder.tokenizer
    ids = [prompts[row].ids for row in rows]
    golds = [gold_ids(examples.rows[row], tokenizer) for row in rows]
    generations = decoder.generate(ids, until=[STOP], new_tokens=NEW_TOKENS)
    forced: list[Forced | None] = [None] * len(rows)
    if isinstance(decoder, Decoder):
        forced = [*decoder.force(ids, [gold[:NEW_TOKENS] for gold in golds])]
    return [
        make_sample(row, examples.rows[row], prompts[row], generation, gold, of_gold, tokenizer, rule)
        for row, generation, gold, of_gold in zip(rows, generations, golds, forced, strict=True)
    ]


def _describe(
    target: AskedTarget, examples: Examples, protocol: Protocol, options: ScoreOptions, rule: HitRule
) -> RecallRun:
    checkpoint = target.checkpoint
    device = resolve_device(options.device)
    return RecallRun(
        model=target.name,
        task=examples.label,
        checkpoint=None if checkpoint is None else vars(checkpoint) | {"folder": str(checkpoint.folder)},
        protocol=protocol,
        data=examples.describe(),
        identity=RecallIdentity(
            checkpoint=None if checkpoint is None else checkpoint.fingerprint,
            data=examples.fingerprint,
            protocol=protocol,
            dtype=resolve_dtype(options.dtype, device),
            device=device.partition(":")[0],
            backend=None if checkpoint is None else runs_native(checkpoint, options.backend),
            index=None if rule.index is None else str(rule.index.folder.resolve()),
            threshold=rule.threshold,
        ),
        **environment(),
    )
