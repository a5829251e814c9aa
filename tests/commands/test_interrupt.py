"""Ctrl-C: one line and exit code 130, finished shards stay, and the viewer ends."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from argap.runtime import signals
from argap.runtime.signals import ending_on_interrupt, importing_whole, listening
from tests.builders.processes import begin, said

ROOT = Path(__file__).parents[2]

SLOWLY = """
import signal, sys, time
from argap.scoring import batches
from argap.tokens import runs
from argap.cli import main
runs.SHARD_TOKENS = 512
score, started = batches.Batches.score, []
def score_slowly(self, windows, advance):
    started.append(windows)
    if len(started) > 1:
        time.sleep(600)
    return score(self, windows, advance)
batches.Batches.score = score_slowly
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
main()
"""


def test_an_interrupt_of_the_first_imports_is_no_traceback(tmp_path):
    """One of them is replaced by a module that interrupts its own process."""
    (tmp_path / "typer.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    begin = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["argap"]
    module, _, function = script.partition(":")
    for code in (
        f"import {module} as script; script.{function}()",
        "import runpy; runpy.run_module('argap', run_name='__main__')",
    ):
        done = subprocess.run(
            [sys.executable, "-c", begin + code],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


IN_A_DESTRUCTOR = """
import os, signal, sys, time
from argap import cli

def again(frame, event, argument):
    if event == "call":  # in what Python code then answers the first
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

class Interrupted:
    def __del__(self):
        sys.setprofile(again)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)  # it is raised here

def command(**given):
    Interrupted()
    sys.setprofile(None)
    time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)
cli.commands = lambda: command
cli._flags = lambda command, arguments: {}
cli.main()
"""


def test_an_interrupt_in_a_destructor_is_not_lost_nor_a_second_printed():
    done = subprocess.run([sys.executable, "-c", IN_A_DESTRUCTOR], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


TAKEN_FOR_ANOTHER = """
import os, signal, time
from argap import cli
from argap.errors import FormatError

def command(**given):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    raise {}

signal.signal(signal.SIGINT, signal.default_int_handler)
cli.commands = lambda: command
cli._flags = lambda command, arguments: {{}}
cli.main()
"""


@pytest.mark.parametrize("error", ["ValueError('no shape')", "FormatError('x: damaged')"])
def test_an_interrupt_that_a_library_takes_for_a_failure_is_none(error):
    code = TAKEN_FOR_ANOTHER.format(error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupted_score_keeps_its_shards(tmp_path):
    command = ["score", str(ROOT / "argap/demo/checkpoints/base_conv"), "--ref", "attention", "--seq-len", "256"]
    process = begin(SLOWLY, *command, "--limit-tokens", "2048", "--out", "out", folder=tmp_path)
    shard = tmp_path / "out" / "attention" / "tokens" / "part-00000.parquet"
    while not shard.exists() and process.is_alive():
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(120)
    process.kill()
    out, err = said(tmp_path)
    assert process.exitcode == 130, err
    assert out == ""
    assert err.strip().endswith("interrupted; finished shards are kept, the same command resumes there")
    assert "Traceback" not in err
    assert shard.exists()


def test_it_serves_until_interrupted_without_torch(token_result):
    code = (
        "import signal, sys\n"
        "from argap.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        f"sys.argv = ['argap', 'view', {str(token_result)!r}, '--port', '0']\n"
        "try: main()\n"
        "finally: print('torch:', 'torch' in sys.modules, file=sys.stderr)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        origin, _, token = address.partition("/?token=")
        assert origin.startswith("http://127.0.0.1:")
        assert len(token) == 32
        port = origin.rpartition(":")[2]
        request = urllib.request.Request(f"{origin}/api/overview", headers={"Cookie": f"argap-{port}={token}"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            assert json.load(answer)["gap"]["reference"] == "ref"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{origin}/api/overview", timeout=600)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.endswith("torch: False\n")


STUCK = """
import ctypes, signal, threading, time
from argap import __main__, cli
from argap.runtime import signals

def library():
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    print("begun", flush=True)
    lock(mutex)  # never returns to Python, which could raise the interrupt

def threads():
    threading.Thread(target=time.sleep, args=(600,)).start()  # joined when the process ends
    print("begun", flush=True)
    time.sleep(600)

signals.GRACE = GRACE
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.commands = lambda: lambda **given: WHERE()
cli._flags = lambda command, arguments: {}
__main__.main()
"""


@pytest.mark.parametrize("where", ["library", "threads"])
@pytest.mark.parametrize(("grace", "times"), [(0.2, 1), (500, 2)], ids=["after a while", "at the second"])
def test_an_interrupt_ends_what_does_not_return(grace: float, times: int, where: str):
    code = STUCK.replace("GRACE = GRACE", f"GRACE = {grace}").replace("WHERE", where)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.7)
        assert process.communicate(timeout=90) == ("", "")
        assert process.returncode == 130


def test_an_interrupt_that_is_answered_ends_nothing_later(monkeypatch: pytest.MonkeyPatch):
    """The thread that hears of interrupts may run only after the answer: here it must."""
    timers: list[float] = []
    monkeypatch.setattr(signals.threading, "Timer", lambda seconds, *what: timers.append(seconds))
    interval = sys.getswitchinterval()
    with ending_on_interrupt():
        sys.setswitchinterval(60)
        try:
            with listening() as stop:
                signal.raise_signal(signal.SIGINT)
        finally:
            sys.setswitchinterval(interval)
    assert stop.requested
    for thread in threading.enumerate():
        if thread.name == "interrupts":
            thread.join()
    assert timers == []


STUCK_VIEW = """
import signal, sys, time
from argap.cli import main
from argap.runtime import signals
from argap.view import app
signals.GRACE = 0.2
app.COMPUTED["search"] = lambda ask, stop: time.sleep(600)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
main()
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_viewer_ends_in_the_middle_of_an_answer(token_result, sent):
    command = [sys.executable, "-c", STUCK_VIEW, "view", str(token_result), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        origin, _, token = process.stdout.readline().strip().partition("/?token=")
        port = int(origin.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"Host: 127.0.0.1:{port}\r\nCookie: argap-{port}={token}\r\n"
            client.sendall(f"GET /api/search?text=a HTTP/1.1\r\n{head}\r\n".encode())
            time.sleep(1)
            process.send_signal(sent)
            _, said = process.communicate(timeout=90)
    assert process.returncode == 130
    assert said == "Ctrl-C ends it.\n"


def test_nothing_slow_is_imported_before_an_interrupt_is_answered() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import argap.__main__; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"typing", "enum", "signal", "re"} & set(ran.stdout.split())


DURING_AN_EXTENSION = """
import enum, signal, sys
from argap.cli import main
make, pressed = enum.EnumType.__new__, []
def interrupted(*given, **options):
    if "duckdb" in sys.modules and not pressed:  # its extension makes enums while it is loaded
        pressed.append(signal.raise_signal(signal.SIGINT))
    return make(*given, **options)
enum.EnumType.__new__ = interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "argap"
try:
    main()
finally:
    print(len(pressed))
"""


def test_an_interrupt_while_an_extension_is_loaded_ends_silently() -> None:
    command = [sys.executable, "-c", DURING_AN_EXTENSION, "slice", str(ROOT / "nothing"), "--where", "repeated"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr, ran.stdout) == (130, "", "1\n")


def test_an_interrupt_waits_for_the_end_of_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_package.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nWHOLE.append(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    whole: list[int] = []
    monkeypatch.setattr("builtins.WHOLE", whole, raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with importing_whole(), pytest.raises(KeyboardInterrupt):
            importlib.import_module("other_package")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert whole == [1]


HALF_DONE = """
import enum, signal, sys, types
from argap import cli
library = types.ModuleType("library")
sys.modules["library"] = library
exec("def suspended():\\n try:\\n  yield\\n finally:\\n  gone()\\ndef gone(): pass", vars(library))
def commands():
    left = library.suspended()
    next(left)
    enum.kept = [left, library]  # an older module, whose names Python removes after those of the library
    signal.raise_signal(signal.SIGINT)
cli.commands = commands
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main()
"""


def test_what_an_interrupt_leaves_half_done_is_closed_silently() -> None:
    ran = subprocess.run([sys.executable, "-c", HALF_DONE], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (130, "")
