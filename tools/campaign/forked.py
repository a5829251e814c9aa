"""Run a command of argap in a forked process, so that the parent makes the slow imports only once."""

import importlib
import os
import resource
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LONGEST = 40.0
"""Seconds of processor time after which a try is ended; twice as many by the clock."""
SILENCE = 25.0
"""Seconds without a word after which work is not alive; long work shows its progress every 20."""
MEMORY = 8 * 2**30
"""Bytes of address space; a greater demand is refused by the system."""
MODULES = (
    "torch", "transformers", "pandas", "pyarrow.parquet", "duckdb", "matplotlib.figure", "numba", "scipy.stats",
    "typer", "rich.console", "argap.cli", "argap.results.pipeline", "argap.models", "argap.models.hub.registry",
    "argap.slices.of_tokens", "argap.train.run", "argap.suite.run", "argap.suite.collect",
    "argap.synthetics.sweeps.sweep",
    "argap.synthetics.sweeps.jobs", "argap.recall.run", "argap.reports.pages.write", "argap.reports.pages.suite",
    "argap.scoring.importing",
    "argap.bigram_index.build", "argap.slices.discover", "argap.view.app", "uvicorn", "lm_eval",
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    """Exit code; negative: the signal that ended it; None: it took too long."""
    stdout: str
    stderr: str
    seconds: float
    alive: bool
    """Whether it had said something in its last `SILENCE` seconds, as long work does."""


def preload() -> None:
    """Import what the commands import, in this process. Nothing may start a thread here: a fork would lose it."""
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"not imported: {name}", file=sys.stderr)


def start(command: str, folder: Path, longest: float = LONGEST) -> int:
    """Fork a process that runs ``argap COMMAND`` in ``folder``; return its id. Its output goes to two files beside it.

    ``longest``: seconds of processor time after which it is ended.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return process
    code = 99
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.setpgid(0, 0)
        os.chdir(folder)
        os.environ["ARGAP_HOME"] = str(folder / "home")
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            handle = os.open(output(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(handle, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (int(longest), int(longest) + 5))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _main(command)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not _is_in_command(error):
            code = 130
        else:
            traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also where an interrupt comes just now: what called this must not run, and clean up, twice
            os._exit(code)


def output(folder: Path, name: str) -> Path:
    """Return where the process of ``folder`` writes: beside it, since the folder may lie on a full disk."""
    return folder.with_name(f".{folder.name}.{name}")


def _is_in_command(error: BaseException) -> bool:
    """Whether it was raised in the command, rather than in what prepares its process here."""
    return any("argap/cli/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))


def _main(command: str) -> int:
    from argap.cli import main

    sys.argv = ["argap", *shlex.split(command)]
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  (ends with the process)
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    try:
        main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    return 0


def wait(
    process: int, folder: Path, disturb: Callable[[float], None] = lambda seconds: None, longest: float = LONGEST
) -> Ended:
    """Wait for a process of `start`, at most twice ``longest`` seconds.

    ``disturb`` is called again and again with the seconds since the start.
    """
    began = time.monotonic()
    code: int | None = None
    spoke, length = 0.0, 0
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        seconds = time.monotonic() - began
        if ended:
            code = os.waitstatus_to_exitcode(status)
            code = None if code == -signal.SIGXCPU else code
            break
        if seconds > 2 * longest:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            break
        with suppress(OSError):
            if (now := output(folder, "stderr").stat().st_size) != length:
                spoke, length = seconds, now
        disturb(seconds)
        time.sleep(0.005)
    said = []
    for name in ("stdout", "stderr"):
        path = output(folder, name)
        said.append(path.read_text(errors="replace") if path.exists() else "")
        path.unlink(missing_ok=True)
    return Ended(code, said[0], said[1], seconds, spoke > 0 and seconds - spoke < SILENCE)


def run(command: str, folder: Path, longest: float = LONGEST) -> Ended:
    """Run the whole command, undisturbed."""
    return wait(start(command, folder, longest), folder, longest=longest)
