"""The whole probe: checkpoints in; a run of every prompt for each, ``probe.json`` and the answers out."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from argap.files.lock import one_writer
from argap.files.parquet import write_parquet
from argap.files.resumable import environment, folder_name
from argap.probe.measures import Answered, read_answers, rows_by_distance, rows_by_load
from argap.probe.prompts import ProbeSet, build_prompts, check_fits
from argap.probe.records import FORMAT, DistanceRow, ProbeResult, ProbeRow, ProbeSpec
from argap.records import SourceRecord, write_record
from argap.scoring.bos import say_bos, text_of
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.find import find_checkpoints
from argap.scoring.sources import check_folders
from argap.tokens.runs import read_logprobs


@one_writer("out")
def probe(checkpoints: Sequence[str], spec: ProbeSpec, out: Path, *, config: ScoreConfig = DEFAULT) -> ProbeResult:
    """Score every prompt of ``spec`` under every checkpoint; write and return ``probe.json``.

    Each model's folder in ``out`` is a run (`argap.tokens.runs`) over the prompts, so the same call resumes it, and
    ``answers.parquet`` beside it has a row for each answer. Before any model is loaded, raises `ArgapError` for a
    vocabulary too small for a task, a length that cannot hold the facts and a prompt longer than a model takes; then
    what `argap.scoring.scorer.score` raises.
    """
    sources = find_checkpoints(checkpoints, config)
    check_folders(source.name for source in sources)
    config.check_models([source.name for source in sources])
    made: dict[str, ProbeSet] = {}
    for source in sources:
        source.check(None)
        fingerprint = source.tokenizer.fingerprint
        if fingerprint not in made:
            made[fingerprint] = build_prompts(spec, source.tokenizer)
        check_fits(source, made[fingerprint])
    rows: list[ProbeRow] = []
    distances: list[DistanceRow] = []
    identities, prompts, before = {}, {}, {}
    for source in sources:
        own, folder = made[source.tokenizer.fingerprint], out / folder_name(source.name)
        say_bos(source, config.bos.of(source.name), source.bos)
        run = source.score(own.data, folder, SourceRecord())
        answered = read_answers(own, *read_logprobs(run))
        _write_answers(folder / "answers.parquet", own, answered)
        rows += rows_by_load(source.name, own, answered)
        distances += rows_by_distance(source.name, own, answered)
        identities[source.name] = run.record.identity
        prompts[source.name] = own.data.fingerprint
        if source.bos is not None:
            before[source.name] = text_of(source.tokenizer, source.bos)
    result = ProbeResult(
        **msgspec.structs.asdict(spec),
        format=FORMAT,
        rows=tuple(rows),
        distances=tuple(distances),
        prompts_sha256=prompts,
        bos=before,
        device={name: identity.device for name, identity in identities.items()},
        dtype={name: identity.dtype for name, identity in identities.items()},
        **environment(),
    )
    write_record(out / "probe.json", result)
    return result


def _write_answers(path: Path, made: ProbeSet, answered: Answered) -> None:
    """Write a row for each answer: its condition, its prompt (a window of the run), its place and its scores."""
    answers = [answer for prompt in made.prompts for answer in prompt.answers]
    conditions = [made.conditions[k] for k in answered.condition.tolist()]
    columns = {
        **{name: [getattr(each, name) for each in conditions] for name in ("task", "form", "load", "length")},
        "window": answered.prompt,
        "start": [answer.start for answer in answers],
        "stop": [answer.stop for answer in answers],
        "distance": answered.distance,
        "nll": answered.loss,
        "right_tokens": answered.right.astype(int),
        "decoy": pa.array(answered.decoy, from_pandas=True),
    }
    write_parquet(path, pa.table(columns))
