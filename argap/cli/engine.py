"""The flag ``--engine``: this machine or a Ray cluster."""

from collections.abc import Mapping

from argap.errors import ArgapError


def check_engine(engine: str, *, local: Mapping[str, object], ray: Mapping[str, object]) -> None:
    """Raise `ArgapError` for an unknown engine, and for a flag that only the other engine uses.

    ``local`` and ``ray`` map each engine's own flags to their values; a falsy value means that the flag was not given.
    """
    if engine not in ("local", "ray"):
        raise ArgapError(f"--engine {engine}: expected local or ray")
    for flag, given in (local if engine == "ray" else ray).items():
        if given:
            raise ArgapError(f"{flag}: has no effect with --engine {engine}; leave it out")
