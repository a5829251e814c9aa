"""Training and scoring the members of a suite; what is finished is passed over.

The work folder: ``tokens/`` (packed, shared by all that have them alike), and for each size ``SIZE/index/`` of its
training text, ``SIZE/NAME/`` (a trained checkpoint and its log), ``SIZE/runs/NAME/`` (its log-probs),
``SIZE/trajectories/NAME/step-N/`` (those of its checkpoints on the way, where it keeps all of them) and
``SIZE/mqar/NAME.json`` (its recall of pairs, where the suite asks for it).
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from argap.atomic import write_json
from argap.bigram_index.build import build_from_source
from argap.bigram_index.source import Source
from argap.bigram_index.store import BigramIndex, open_index
from argap.checkpoint import find_checkpoint
from argap.corpus import open_corpus
from argap.device import DTYPES, resolve_dtype
from argap.errors import ArgapError, FormatError
from argap.evaluation import EvaluationSet, build_evaluation_set
from argap.parallel import Parallel, join
from argap.progress import say
from argap.runs import Run, open_run
from argap.scorer import ScoreOptions, score
from argap.suite.config import Entry, Suite
from argap.synthetics.pretrained_scores import score_pretrained
from argap.tokenizer import Tokenizer, load_tokenizer
from argap.train import read_log, train
from argap.train.checkpoint import checkpoints


@dataclass(frozen=True)
class Places:
    """Where things lie below the work folder."""

    work: Path

    def index(self, size: str) -> Path:
        return self.work / size / "index"

    @property
    def tokens(self) -> Path:
        return self.work / "tokens"

    def checkpoint(self, entry: Entry) -> Path:
        return self.work / entry.size / entry.name

    def run(self, entry: Entry) -> Path:
        return self.work / entry.size / "runs" / entry.name

    def trajectory(self, entry: Entry) -> Path:
        return self.work / entry.size / "trajectories" / entry.name

    def mqar(self, entry: Entry) -> Path:
        return self.work / entry.size / "mqar" / f"{entry.name}.json"


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

    Raises what `argap.train.train`, `argap.scorer.score` and `argap.synthetics.pretrained_scores` raise.
    """
    folder = places.checkpoint(entry)
    finished = finished_run(entry, places) is not None
    parallel.wait()  # all have looked before anything changes
    if finished:
        if parallel.is_main:
            say(f"{entry.size} {entry.name}: trained and scored already")
    else:
        train(entry.config, folder, tokens=places.tokens, parallel=parallel)
        _score(suite, entry, places, data, folder, places.run(entry), parallel)
    if entry.config.keep_checkpoints == 0:
        for checkpoint in checkpoints(folder / "checkpoints"):
            run = places.trajectory(entry) / checkpoint.name
            scored = _finished(run) is not None
            parallel.wait()
            if not scored:
                _score(suite, entry, places, data, checkpoint, run, parallel)
    weights = folder / "model.safetensors"
    if parallel.is_main:
        if suite.mqar is not None and weights.is_file() and not places.mqar(entry).is_file():
            dtype = DTYPES[resolve_dtype("auto", str(parallel.device))]
            found = score_pretrained([str(folder)], suite.mqar, dtype=dtype, device=parallel.device)
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


def finished_run(entry: Entry, places: Places) -> Run | None:
    """The run of a member that is trained and scored; None where it is not."""
    return _finished(places.run(entry))


def _finished(folder: Path) -> Run | None:
    try:
        return open_run(folder)
    except (ArgapError, FormatError):
        return None


def trajectory(entry: Entry, places: Places) -> dict[int, Run]:
    """The runs of a member's checkpoints on the way by their steps, in order, the finished model last; empty where
    there are none but the last."""
    runs = {int(folder.name.removeprefix("step-")): folder for folder in places.trajectory(entry).glob("step-*")}
    found = {step: run for step in sorted(runs) if (run := _finished(runs[step])) is not None}
    last = finished_run(entry, places)
    return found | {entry.config.total_steps: last} if found and last else {}


def steps_done(entry: Entry, places: Places) -> int:
    """Optimizer steps that a member's log shows."""
    log = places.checkpoint(entry) / "log.jsonl"
    lines = read_log(log) if log.is_file() else []
    return max((line["step"] for line in lines), default=0)


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
