"""Run programs in processes forked from a server that has imported torch and argap: an import takes seconds of each."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

IMPORTED = [
    "argap.models.hub.registry", "argap.results.pipeline", "argap.scoring.local", "argap.train.run",
    "argap.suite.run", "argap.suite.collect", "argap.synthetics.sweeps.jobs", "duckdb", "pyarrow.parquet",
]  # fmt: skip
ROOT = str(Path(__file__).resolve().parents[2])
COMMAND = "from argap.cli import main; main()"


def fork_server(method: str = "forkserver") -> ForkServerContext:
    """Return the server's context, in place of that of a start ``method`` whose processes import torch anew."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(IMPORTED)
    return server


def begin(code: str, *arguments: str, folder: Path, environment: Mapping[str, str] | None = None) -> ForkServerProcess:
    """Start a process that runs ``code`` with ``arguments`` in ``folder``; what it says goes to files there."""
    if ROOT not in sys.path:  # pytest imports tests by their paths, a new process by sys.path
        sys.path.append(ROOT)
    server = fork_server()
    home = {"ARGAP_HOME": os.environ["ARGAP_HOME"]}
    process = server.Process(target=_run, args=(code, arguments, folder, home | {**(environment or {})}))
    process.start()
    return process


def said(folder: Path) -> tuple[str, str]:
    """Return what the processes of a folder wrote to stdout and stderr."""
    return (folder / ".stdout").read_text(), (folder / ".stderr").read_text()


def torchrun(code: str, *arguments: str, folder: Path, processes: int = 2) -> list[int | None]:
    """Run a program in several processes that know of each other as those of torchrun do; return their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(processes)}
    ranks = [{"RANK": str(k), "LOCAL_RANK": str(k), "LOCAL_WORLD_SIZE": str(processes)} for k in range(processes)]
    begun = [begin(code, *arguments, folder=folder, environment=known | rank) for rank in ranks]
    for process in begun:
        process.join(600)
    return [process.exitcode for process in begun]


def _run(code: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    os.chdir(folder)
    os.environ |= environment
    for descriptor, name in ((1, ".stdout"), (2, ".stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    sys.argv = ["argap", *arguments]
    exec(code, {"__name__": "program"})
