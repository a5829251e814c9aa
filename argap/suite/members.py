"""Training and scoring the members of a suite; what is finished is passed over, once it is seen to be of this suite."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from argap.atomic import write_json
from argap.bigram_index.build import build_from_source
from argap.bigram_index.source import Source
from argap.bigram_index.store import BigramIndex, open_index
from argap.checkpoint import find_checkpoint
from argap.corpus import open_corpus
from argap.device import DTYPES, resolve_dtype
from argap.evaluation import EvaluationSet, build_evaluation_set
from argap.parallel import Parallel, join
from argap.progress import say
from argap.scorer import ScoreOptions, score
from argap.suite.config import Entry, Suite
from argap.suite.places import Places, check_finished, finished_run, open_finished
from argap.synthetics.pretrained_scores import score_pretrained
from argap.tokenizer import Tokenizer, load_tokenizer
from argap.train import train
from argap.train.checkpoint import checkpoints


def run_members(
    suite: Suite,
    entries: Sequence[Entry],
    places: Places,
    sets: Mapping[str, EvaluationSet],
    *,
    device: str = "auto",
    keep: bool = True,
) -> bool:
    """Train and score members one after the other, each with all the processes that ``torchrun`` started, if it did;
    whether this process is the one that goes on with the results.

    ``sets``: the `evaluation_set` of each size. ``device``: as `argap.parallel.join` takes it. Raises what
    `run_member` raises.
    """
    with join(device) as parallel:
        for entry in entries:
            run_member(suite, entry, places, sets[entry.size], parallel, keep=keep)
        return parallel.is_main


def run_member(
    suite: Suite, entry: Entry, places: Places, data: EvaluationSet, parallel: Parallel, *, keep: bool = True
) -> None:
    """Train and score one member, its checkpoints on the way where it keeps all of them (``keep_checkpoints: 0``), and
    its recall of pairs where the suite asks for it, as long as the weights are there. ``keep`` False: they are
    removed then.

    Raises what `check_finished`, `argap.train.train`, `argap.scorer.score` and `argap.synthetics.pretrained_scores`
    raise.
    """
    folder = places.checkpoint(entry)
    finished = finished_run(entry, places) is not None
    parallel.wait()  # all have looked before anything changes
    if finished:
        check_finished(entry, places, data.fingerprint)
        if parallel.is_main:
            say(f"{entry.size} {entry.name}: trained and scored already")
    else:
        train(entry.config, folder, tokens=places.tokens, parallel=parallel)
        _score(suite, entry, places, data, folder, places.run(entry), parallel)
    if entry.config.keep_checkpoints == 0:
        for checkpoint in checkpoints(folder / "checkpoints"):
            run = places.trajectory(entry) / checkpoint.name
            scored = open_finished(run) is not None
            parallel.wait()
            if not scored:
                _score(suite, entry, places, data, checkpoint, run, parallel)
    weights = folder / "model.safetensors"
    if parallel.is_main:
        if suite.mqar is not None and weights.is_file() and not places.mqar(entry).is_file():
            dtype = DTYPES[resolve_dtype("auto", str(parallel.device))]
            found = score_pretrained([str(folder)], suite.mqar, dtype=dtype, device=parallel.device).as_json()
            write_json(places.mqar(entry), found)
        if not keep:
            weights.unlink(missing_ok=True)
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    parallel.wait()


def _score(
    suite: Suite, entry: Entry, places: Places, data: EvaluationSet, checkpoint: Path, run: Path, parallel: Parallel
) -> None:
    score(
        find_checkpoint(checkpoint),
        data,
        run,
        model_name=entry.name if run == places.run(entry) else f"{entry.name} {checkpoint.name}",
        source={
            "data": list(suite.evaluation.data),
            "index": str(places.index(entry.size)),
            "seq_len": suite.evaluation.seq_len,
            "packing": suite.evaluation.packing,
        },
        options=ScoreOptions(),
        parallel=parallel,
    )


def training_index(suite: Suite, size: str, places: Places) -> BigramIndex:
    """The index of a size's training text, each document once however often it is trained on; built where it
    is not there."""
    folder = places.index(size)
    if (folder / "index.json").is_file():
        return open_index(folder)
    config = suite.entries(size)[0].config
    corpora = [open_corpus(source.path, text_column=source.text_column) for source in config.data]
    return build_from_source(Source(corpora, load_tokenizer(config.tokenizer)), folder)


def evaluation_set(suite: Suite, size: str) -> tuple[EvaluationSet, Tokenizer]:
    """The windows that every member of a size is scored on, and the size's tokenizer."""
    tokenizer = load_tokenizer(suite.entries(size)[0].config.tokenizer)
    corpora = [open_corpus(spec) for spec in suite.evaluation.data]
    chosen = suite.evaluation
    return build_evaluation_set(corpora, tokenizer, seq_len=chosen.seq_len, packing=chosen.packing), tokenizer
