"""Read hostile bytes in a process of their own, which has limits and never outlives this one.

Libraries that parse pickles and tokenizers may abort, loop or take all memory on a file made to do so. The child
(`confine`) has limits of processor time, memory and what it writes, and the kernel kills it when its parent ends in any
way. The parent (`run_child`) turns every end of it into one line.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress

from argap.errors import ArgapError

PR_SET_PDEATHSIG = 1
WAIT = 20.0
"""Seconds of the clock for each second of processor time, on a busy machine or a slow disk."""
LONGEST, MOST = 7 * 24 * 3600, 2**62
"""Most seconds of the clock, and most of any other limit, that the system takes; a sparse file may have any size."""
SAID = 300
"""Most characters of a child's last line to quote."""


def run_child(module: str, what: object, *arguments: object, cpu: float, memory: int, written: int) -> None:
    """Run ``python -m module ARGUMENTS``.

    Its first arguments are this process's id, for its `end_with_parent`, and ``cpu memory written`` for its `confine`.
    ``what``: the file, for messages. ``cpu``: seconds. ``memory`` and ``written``: bytes, of which ``written`` is the
    most of one file. ``-P`` keeps the child from importing modules of the working directory, which may be a downloaded
    checkpoint. Raises `ArgapError` with the child's last line if it exits with 1, else with why it ended.
    """
    limits = (min(each, MOST) for each in (round(cpu), memory, written))
    longest = min(30 + WAIT * cpu, LONGEST)
    command = [sys.executable, "-P", "-m", module, *map(str, (os.getpid(), *limits, *arguments))]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | {"RUST_BACKTRACE": "0", "PYTHONUTF8": "1"},
    )
    try:
        _, said = child.communicate(timeout=longest)
    except subprocess.TimeoutExpired:
        raise ArgapError(f"{what}: reading it takes more than {longest:,.0f} s") from None
    finally:
        child.kill()
        child.wait()
    if child.returncode == 0:
        return
    line = (said.strip().splitlines() or [""])[-1][:SAID]
    if child.returncode in (-signal.SIGABRT, -signal.SIGKILL) or line.startswith("MemoryError"):
        raise ArgapError(f"{what}: reading it takes more than {memory / 1e9:,.1f} GB of memory")
    if child.returncode == 1:
        raise ArgapError(line or f"{what}: could not be read")
    if child.returncode == -signal.SIGXCPU:
        raise ArgapError(f"{what}: reading it takes more than {round(cpu):,} s of processor time")
    ended = f"signal {-child.returncode}" if child.returncode < 0 else f"code {child.returncode}"
    raise ArgapError(f"{what}: the process that read it ended with {ended}{line and f' ({line})'}")


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends; call it first.

    ``parent``: the id of that thread's process. If that has ended already, init or a subreaper took its place.
    """
    with suppress(OSError, AttributeError):  # elsewhere than on Linux
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def confine(cpu: int, memory: int, written: int) -> None:
    """Set this process's limits: processor seconds from now, bytes of memory, and bytes of one file; no core dump."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + cpu + 1
    for name, most in (("CPU", seconds), ("DATA", memory), ("FSIZE", written), ("CORE", 0)):
        limit = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(limit)
        with suppress(ValueError, OSError):
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (bound, hard))
