"""The whole path: checkpoints and tasks in, samples, ``recall.json`` and a ``results.json`` a model out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argap.atomic import read_json, write_json
from argap.bigram_index.store import BigramIndex, check_tokenizer, open_index
from argap.checkpoint import load_model, max_positions, runs_native
from argap.device import DTYPES, resolve_device, resolve_dtype, use_device
from argap.errors import ArgapError
from argap.recall.adapter import ArgapLM
from argap.recall.analysis import Sample, flips, link_to_gap, score_row
from argap.recall.copying import NAME as COPY
from argap.recall.copying import CopyBaseline
from argap.recall.decoding import Decoder
from argap.recall.examples import Examples
from argap.recall.harness import results_of, run_as_is
from argap.recall.prompts import Prompt, build_prompt, check_fits
from argap.recall.protocol import NEW_TOKENS, STOP, Protocol
from argap.recall.samples import collect
from argap.recall.why import explain, gold_ids
from argap.runs import environment, folder_name
from argap.scorer import ScoreOptions
from argap.targets import Target, find_target, told_apart
from argap.tokenizer import Tokenizer

FORMAT = 1


@dataclass(frozen=True)
class Labelling:
    """With which counts the gold's tokens are told AR hits."""

    index: BigramIndex | None = None
    threshold: int = 1250


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
    gap: Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Ask every model every example of ``tasks``, and write and return ``recall.json``.

    ``models`` and ``reference`` are checkpoints, names, or ``copy``, the baseline without a model, which
    takes the tokenizer of the first checkpoint. ``gap``: a folder of ``argap score``, to correlate with.
    Raises `ArgapError` for prompts longer than a model takes, `MismatchError` for an index of another
    tokenizer and for a folder that holds another run.
    """
    names: list[str] = list(dict.fromkeys([*models, *([reference] if reference else [])]))
    asked = [name for name in names if name != COPY]
    targets = dict(zip(asked, told_apart([find_target(name, reference=False) for name in asked]), strict=True))
    if not targets:
        raise ArgapError("copy: the baseline takes its tokenizer from a checkpoint; name one too, or as --ref")
    counts = Labelling(None if index is None else open_index(index), threshold)
    first = next(iter(targets.values())).tokenizer
    samples: dict[tuple[str, str], list[Sample]] = {}
    rows = []
    for name in names:
        target = targets.get(name)
        model = COPY if target is None else target.name
        answers = _answers(target, first, tasks, out, protocol, options, counts, overwrite=overwrite)
        for examples, found in zip(tasks, answers, strict=True):
            samples[model, examples.label] = found
            rows.append({"model": model, "task": examples.label, **score_row(found)})
        write_json(out / folder_name(model) / "results.json", results_of(answers, tasks))
    compared = COPY if reference == COPY else targets[reference].name if reference else None
    found = {
        "format": FORMAT,
        "rows": rows,
        "reference": compared,
        "protocol": protocol.describe(),
        "tasks": [examples.describe() for examples in tasks],
        "flips": [
            {"model": model, "task": task, **flips(own, samples[compared, task])}
            for (model, task), own in samples.items()
            if compared is not None and model != compared
        ],
        "link": [] if gap is None or compared is None else link_to_gap(rows, read_json(gap / "gap.json"), compared),
        "run": str(out),
        **environment(),
    }
    write_json(out / "recall.json", found)
    return found


def run_upstream(
    models: Sequence[str],
    tasks: dict[str, tuple[str, str]],
    out: Path,
    *,
    options: ScoreOptions = ScoreOptions(),  # noqa: B008  (frozen)
    limit: int | None = None,
) -> dict[str, Any]:
    """lm-eval's own tasks on every model: its results by model, each also written to ``MODEL/results.json``."""
    found = {}
    for target in told_apart([find_target(name, reference=False) for name in dict.fromkeys(models)]):
        found[target.name] = run_as_is(ArgapLM(load_decoder(target, options), target.name), tasks, limit=limit)
        write_json(out / folder_name(target.name) / "results.json", found[target.name])
    return found


def load_decoder(target: Target, options: ScoreOptions) -> Decoder:
    """The checkpoint of ``target``, ready to answer."""
    assert target.checkpoint is not None
    device = str(use_device(options.device))
    model = load_model(
        target.checkpoint,
        dtype=DTYPES[resolve_dtype(options.dtype, device)],
        device=device,
        trust_remote_code=options.trust_remote_code,
        backend=options.backend,
    )
    batch_size = 8 if options.batch_size == "auto" else options.batch_size
    return Decoder(model, target.tokenizer, batch_size=batch_size)


def _answers(
    target: Target | None,
    tokenizer: Tokenizer,
    tasks: Sequence[Examples],
    out: Path,
    protocol: Protocol,
    options: ScoreOptions,
    counts: Labelling,
    *,
    overwrite: bool,
) -> list[list[Sample]]:
    """The samples of one model (None: the copy baseline) on each task."""
    decoder: Decoder | CopyBaseline = CopyBaseline(tokenizer) if target is None else load_decoder(target, options)
    tokenizer = decoder.tokenizer
    name = COPY if target is None else target.name
    if counts.index is not None:
        check_tokenizer(counts.index, name, tokenizer.fingerprint)
    found = []
    for examples in tasks:
        prompts = [build_prompt(example, examples.task, tokenizer, protocol) for example in examples.rows]
        if isinstance(decoder, Decoder):
            check_fits(prompts, max_positions(decoder.model), name)
        folder = out / folder_name(name) / folder_name(examples.label)
        record = _record(target, name, examples, protocol, options, counts)

        def answer(rows: list[int], examples: Examples = examples, prompts: list[Prompt] = prompts) -> list[Sample]:
            return _ask(decoder, examples, prompts, rows, counts)

        lengths = [len(prompt.ids) for prompt in prompts]
        found.append(collect(folder, record, lengths, answer, overwrite=overwrite))
    return found


def _ask(
    decoder: Decoder | CopyBaseline, examples: Examples, prompts: list[Prompt], rows: list[int], counts: Labelling
) -> list[Sample]:
    """Generation and teacher forcing of some rows."""
    tokenizer = decoder.tokenizer
    ids = [prompts[row].ids for row in rows]
    golds = [gold_ids(examples.rows[row], tokenizer) for row in rows]
    generations = decoder.generate(ids, until=[STOP], new_tokens=NEW_TOKENS)
    forced = decoder.force(ids, [gold[:NEW_TOKENS] for gold in golds]) if isinstance(decoder, Decoder) else None
    return [
        explain(
            row,
            examples.rows[row],
            prompts[row],
            generations[k],
            golds[k],
            None if forced is None else forced[k],
            tokenizer,
            counts.index,
            counts.threshold,
        )
        for k, row in enumerate(rows)
    ]


def _record(
    target: Target | None, name: str, examples: Examples, protocol: Protocol, options: ScoreOptions, counts: Labelling
) -> dict[str, Any]:
    """``run.json``; what makes two runs the same is its identity."""
    checkpoint = None if target is None else target.checkpoint
    device = resolve_device(options.device)
    return {
        "model": name,
        "task": examples.label,
        "checkpoint": None if checkpoint is None else vars(checkpoint) | {"folder": str(checkpoint.folder)},
        "protocol": protocol.describe(),
        "data": examples.describe(),
        "identity": {
            "checkpoint": None if checkpoint is None else checkpoint.fingerprint,
            "data": examples.fingerprint,
            "protocol": protocol.describe(),
            "dtype": resolve_dtype(options.dtype, device),
            "device": device.partition(":")[0],
            "backend": None if checkpoint is None else runs_native(checkpoint, options.backend),
            "index": None if counts.index is None else str(counts.index.folder.resolve()),
            "threshold": counts.threshold,
        },
        **environment(),
    }
