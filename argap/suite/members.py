"""Train and score the members of a suite; skip finished ones after checking that they belong to it."""

import math
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
import torch

from argap.bigram_index.build import build_from_source
from argap.bigram_index.sources.token_source import TokenSource
from argap.bigram_index.store import BigramIndex, open_index
from argap.checkpoints.find import find_checkpoint
from argap.corpus import open_corpus
from argap.errors import within
from argap.evaluation.windows import EvaluationSet, open_evaluation_set
from argap.files.atomic import remove_leftovers
from argap.files.regular import is_there
from argap.records import SourceRecord, write_record
from argap.runtime.device import DTYPES, resolve_dtype
from argap.runtime.progress import say
from argap.runtime.torchrun import Parallel, join
from argap.scoring.local import CheckpointSource
from argap.suite.config import Entry, Suite
from argap.suite.layout import Layout, check_finished, open_finished, scored_as
from argap.synthetics.pretrained.scores import score_pretrained
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.train import train
from argap.train.checkpoint import checkpoints
from argap.train.config import DataSource
from argap.train.model import build_model
from argap.train.records import read_train
from argap.train.run import tidy_finished
from argap.train.tokens import pack_tokens


def check_models(suite: Suite, entries: Sequence[Entry], layout: Layout, sets: Mapping[str, EvaluationSet]) -> None:
    """Check before any training that every unfinished model can be built, without weights, and its text read.

    ``sets``: the `evaluation_set` of each size. Raises `ArgapError` for mixers that cannot be built or are not trusted,
    for a model that cannot take the windows of the evaluation or of ``mqar``, and for text that is missing or refused.
    """
    of_pairs = 0
    if suite.mqar is not None:
        of_pairs = suite.mqar.length
        if suite.mqar.text is not None:
            open_corpus(suite.mqar.text)
    tokenizer = cache(load_tokenizer)  # most members share one
    text = cache(lambda source: open_corpus(source.path, text_column=source.text_column))
    for entry in entries:
        if open_finished(layout.run(entry)) is None:
            with within(f"{entry.name} at {entry.size}"), torch.device("meta"):
                model = build_model(entry.config, tokenizer(entry.config.tokenizer))
                model.model.check_length(max(of_pairs, sets[entry.size].longest))
                if not is_there(layout.checkpoint(entry) / "train.json"):  # else its text was read
                    for source in (*entry.config.data, *entry.config.eval_data):
                        text(source)


def run_members(
    suite: Suite,
    entries: Sequence[Entry],
    layout: Layout,
    sets: Mapping[str, EvaluationSet],
    *,
    device: str,
    keep: bool,
    log_to: Sequence[str],
) -> bool:
    """Train and score members in order, each with all processes of ``torchrun``; return True on the main rank.

    ``sets``: the `evaluation_set` of each size. ``device``: as `argap.runtime.torchrun.join` takes it. ``log_to``:
    trackers of the training. Raises as `run_member`.
    """
    with join(device) as parallel:
        for entry in entries:
            run_member(suite, entry, layout, sets[entry.size], parallel, keep=keep, log_to=log_to)
        return parallel.is_main


def run_member(
    suite: Suite,
    entry: Entry,
    layout: Layout,
    data: EvaluationSet,
    parallel: Parallel,
    *,
    keep: bool,
    log_to: Sequence[str],
) -> None:
    """Train and score one member.

    Also score its intermediate checkpoints if it keeps all (``keep_checkpoints: 0``), and measure recall of pairs if
    the suite asks for it. ``keep=False`` removes the weights afterwards. Raises as `check_finished`,
    `argap.train.train`, `argap.scoring.sources.Source.score` and `argap.synthetics.pretrained.scores`.
    """
    folder = layout.checkpoint(entry)
    finished = open_finished(layout.run(entry)) is not None
    parallel.wait()  # every process has looked before anything changes
    if finished:
        check_finished(entry, layout, data.fingerprint)
        if parallel.is_main:
            say(f"{entry.size} {entry.name}: trained and scored already")
            tidy_finished(folder, entry.config)  # a kill may have come before `train` did
        parallel.wait()
    else:
        train(entry.config, folder, tokens=layout.tokens, parallel=parallel, log_to=log_to)
        _score(suite, entry, layout, data, folder, layout.run(entry), parallel)
    if entry.config.keep_checkpoints == 0:
        for checkpoint in checkpoints(folder / "checkpoints"):
            run = layout.trajectory(entry) / checkpoint.name
            scored = open_finished(run) is not None
            parallel.wait()
            if not scored:
                _score(suite, entry, layout, data, checkpoint, run, parallel)
    weights = folder / "model.safetensors"
    if parallel.is_main:
        if suite.mqar is not None and is_there(weights) and not is_there(layout.mqar(entry)):
            remove_leftovers(layout.mqar(entry).parent)  # no lock: other members may write there
            dtype = DTYPES[resolve_dtype("auto", str(parallel.device))]
            scores = score_pretrained([str(folder)], suite.mqar, dtype=dtype, device=parallel.device)
            write_record(layout.mqar(entry), scores)
        if not keep:
            weights.unlink(missing_ok=True)
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    parallel.wait()


def _score(
    suite: Suite, entry: Entry, layout: Layout, data: EvaluationSet, checkpoint: Path, run: Path, parallel: Parallel
) -> None:
    name = scored_as(entry, layout, run)
    text = SourceRecord(**msgspec.structs.asdict(suite.windows), index=str(layout.index(entry.size)))
    CheckpointSource(name, find_checkpoint(checkpoint)).score(data, run, text, parallel)


def training_index(suite: Suite, size: str, layout: Layout) -> BigramIndex:
    """Open the index of a size's training text; build it if it is missing or counts other exposures.

    Each source is counted as often as one pass of training reads it (``repeat``). ``passes`` is the number of passes
    that the reference makes: its training tokens over those of one pass, with one EOS per document.
    """
    folder = layout.index(size)
    entries = {entry.name: entry for entry in suite.entries(size)}
    config = entries[suite.reference].config
    read = config.total_steps * config.batch_size * config.seq_len
    repeated = [source for source in config.data for _ in range(source.repeat)]
    found = open_index(folder) if is_there(folder / "index.json") else None
    if found is not None:
        trained = layout.checkpoint(entries[suite.reference])
        a_pass = read_train(trained).data.tokens if is_there(trained / "train.json") else None
        if (difference := _difference(found, repeated, read, a_pass)) is None:
            return found
        say(f"{folder}: {difference}; built again")
    corpora = [open_corpus(source.path, text_column=source.text_column) for source in repeated]
    source = TokenSource(corpora, load_tokenizer(config.tokenizer))
    a_pass = pack_tokens(config.data, source.tokenizer, layout.tokens).about.tokens
    return build_from_source(source, folder, passes=read / a_pass, overwrite=found is not None)


def _difference(index: BigramIndex, sources: Sequence[DataSource], read: int, a_pass: int | None) -> str | None:
    """Explain why ``index`` does not hold the exposures of training on ``read`` tokens of ``sources``; else None.

    ``a_pass``: tokens of one pass, with one EOS per document, if known.
    """
    if index.weights:  # merged from indexes with given exposures
        return None
    if index.sources != (expected := sorted(source.path for source in sources)):
        return f"an index of {', '.join(index.sources)}, training reads {', '.join(expected)}"
    counted = index.tokens + index.documents
    if a_pass not in (None, counted):
        return f"{counted:,} tokens with EOS, training reads {a_pass:,} in a pass"
    passes = read / counted
    return (
        None if math.isclose(index.passes, passes) else f"{index.passes:g} passes recorded, training makes {passes:g}"
    )


def evaluation_set(suite: Suite, size: str) -> tuple[EvaluationSet, Tokenizer]:
    """Return the windows that every member of a size is scored on, and the size's tokenizer."""
    tokenizer = load_tokenizer(suite.entries(size)[0].config.tokenizer)
    return open_evaluation_set(suite.windows, tokenizer), tokenizer
