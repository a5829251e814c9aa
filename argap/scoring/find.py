"""Find the sources that users name: checkpoints, servers, finished runs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.references import find_reference
from argap.errors import ArgapError
from argap.files.hub import fetched, is_hub
from argap.files.regular import is_local
from argap.records import SourceRecord
from argap.scoring.config import DEFAULT, Engine, ScoreConfig
from argap.scoring.per_model import split_name
from argap.scoring.server.client import is_address, parse_address
from argap.scoring.server.source import Server, ServerSource
from argap.scoring.sources import FinishedSource, Source, distinct, once
from argap.tokens.runs import BESIDE, named, open_run
from argap.tokens.segment_runs import check_tokens

if TYPE_CHECKING:
    from argap.scoring.local import CheckpointSource


def find_source(source: str, config: ScoreConfig = DEFAULT) -> "CheckpointSource":
    """Return the checkpoint of a folder, a hub id or the name of a reference, or of ``NAME=`` and one of these.

    An existing path wins over a name.
    """
    given, source = split_name(source)
    if is_address(source):
        raise ArgapError("a server is scored by `argap score` alone; expected a checkpoint")
    path, local = Path(source), is_local(source)
    known = find_reference(source)
    if known is not None and not local:
        name, checkpoint, recorded = source, find_checkpoint(known.checkpoint), known
    else:
        name = path.resolve().name if local else path.name
        checkpoint, recorded = find_checkpoint(source), SourceRecord()
    from argap.scoring.local import CheckpointSource  # torch, once a checkpoint is found

    return CheckpointSource(given or name, checkpoint, config, recorded, named=given is not None)


def find_checkpoints(sources: Iterable[str], config: ScoreConfig = DEFAULT) -> "list[CheckpointSource]":
    """Return the checkpoints of ``sources``, repeated ones once (`distinct`)."""
    return once(distinct([find_source(source, config) for source in sources], config))


def find_sources(
    sources: Sequence[str | Source], reference: str | Source, config: ScoreConfig
) -> tuple[Source, list[Source]]:
    """Return the reference and the other models (`distinct`), each once.

    Checkpoints are run by the engine of ``config``, if it names one. Any may be a server, and the reference the folder
    of a finished run, or ``NAME=RUN``. The names of servers' models are taken from ``config`` in the order of
    ``sources`` and then ``reference``. Raises `ArgapError` for more or fewer names than servers, for a run of segments,
    and what `find_source` raises.
    """
    given = [split_name(source)[1] for source in (*sources, reference) if isinstance(source, str)]
    servers = [source for source in given if is_address(source)]
    if len(servers) != len(config.model_name):
        raise ArgapError(
            f"{len(servers)} servers and {len(config.model_name)} names of their models; give `model_name` once for "
            "each server, as the server knows it"
        )
    names = iter(config.model_name)

    def find(source: str | Source) -> Source:
        if not isinstance(source, str):
            return source
        own, address = split_name(source)
        if not is_address(address):
            found = find_source(source, config)
            if config.backend not in get_args(Engine):
                return found
            from argap.scoring.server.engines import EngineSource

            return EngineSource(found.name, found.checkpoint, config, found.recorded, named=found.named)
        model = next(names)
        name = own or model.rpartition("/")[2] or model
        return ServerSource(name, Server(parse_address(address), model), config, named=own is not None)

    models: list[Source] = [find(source) for source in sources]
    name, path = split_name(reference) if isinstance(reference, str) else (None, "")
    path = str(fetched(path, BESIDE)) if is_hub(path) else path
    if path and (Path(path) / "run.json").is_file():
        run = named(open_run(path), name)
        check_tokens([run])
        first: Source = FinishedSource(run)
    else:
        first = find(reference)
    first, *models = once(distinct([first, *models], config))
    return first, models
