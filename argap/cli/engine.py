"""The flag ``--engine``: on this machine or on a Ray cluster, and the flags that only one of the two reads."""

from collections.abc import Mapping

from argap.errors import ArgapError


def check_engine(engine: str, *, local: Mapping[str, object], ray: Mapping[str, object]) -> None:
    """Raise `ArgapError` for an engine that is none, and for a flag that is given though it is the other one's.

    ``local`` and ``ray`` are the flags that only this engine reads, with their values; false: not given.
    """
    if engine not in ("local", "ray"):
        raise ArgapError(f"--engine {engine}: expected local or ray")
    for flag, given in (local if engine == "ray" else ray).items():
        if given:
            raise ArgapError(f"{flag}: means nothing with --engine {engine}; leave it out")
