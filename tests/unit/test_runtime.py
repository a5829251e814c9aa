"""Work done ahead in threads, in order and bounded; progress in lines or a bar; children with limits."""

import errno
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from argap.errors import ArgapError
from argap.runtime import device, progress
from argap.runtime.child import run_child
from argap.runtime.guard import expected
from argap.runtime.threads import lazy, map_ahead, read_ahead


def test_items_come_in_order_and_few_are_made_ahead():
    made = []

    def items():
        for k in range(20):
            made.append(k)
            yield k

    reader = read_ahead(items(), 2)
    assert next(reader) == 0
    time.sleep(0.05)
    assert len(made) <= 4
    assert [0, *reader] == list(range(20))
    assert list(read_ahead(iter(()))) == []


def test_what_an_item_raises_comes_after_those_before_it():
    def items():
        yield from (1, 2)
        raise OSError("broken")

    seen = []
    with pytest.raises(OSError, match="broken"):
        seen.extend(read_ahead(items(), 3))
    reader = read_ahead(items())
    assert [next(reader), next(reader)] == [1, 2]


def test_functions_run_at_once_and_their_results_keep_the_order():
    barrier = threading.Barrier(2, timeout=60)

    def slow_first(k: int) -> int:
        if k < 2:
            barrier.wait()  # only two at once get past it
        time.sleep(0.02 * (k == 0))
        return k * k

    assert list(map_ahead(slow_first, range(7), 2)) == [k * k for k in range(7)]


def test_the_first_error_in_order_is_raised_and_few_items_are_taken():
    taken = []

    def items():
        for k in range(100):
            taken.append(k)
            yield k

    def fail(k: int) -> None:
        if k in (1, 2):
            raise ValueError(k)

    with pytest.raises(ValueError, match="1"):
        list(map_ahead(fail, items(), 2))
    assert len(taken) <= 4


def test_threads_make_attributes_of_two_objects_at_once():
    meeting = threading.Barrier(2, timeout=60)
    made = []

    class Waits:
        @lazy
        def value(self) -> int:
            made.append(meeting.wait())
            return 7

    waiting = [Waits(), Waits()]
    assert list(map_ahead(lambda each: each.value, waiting, 2)) == [7, 7]
    assert [each.value for each in waiting] == [7, 7]
    assert sorted(made) == [0, 1]


def test_work_whose_first_step_lasts_is_reported(monkeypatch) -> None:
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(progress, "say", said.put)
    before = set(threading.enumerate())  # an earlier test may have left work in progress
    with progress.progress("training", 1200, "steps") as advance:
        assert said.get(timeout=600) == "training: 0 of 1,200 steps"
        advance(600)
        while "600 of 1,200 steps, " not in said.get(timeout=600):
            pass
    for thread in set(threading.enumerate()) - before:
        if thread.name == "progress":
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("seconds", "share", "left"), [(10, 0.5, "10 s"), (37, 1 / 6, "3:05 min"), (2600, 0.25, "2:10 h"), (9, 1, "0 s")]
)
def test_time_left_by_hand(seconds: float, share: float, left: str) -> None:
    assert progress.time_left(seconds, share) == left


@pytest.mark.parametrize(
    ("total", "share", "said"),
    [
        (None, 0.25, "1,000 tokens, 25 tokens/s, 25% done, 2:00 min left"),
        (4000, 0.25, "1,000 of 4,000 tokens, 25 tokens/s, 25% done, 2:00 min left"),
        (None, None, "1,000 tokens, 25 tokens/s"),
        (None, 1.0, "1,000 tokens, 25 tokens/s"),
        (None, 0.001, "1,000 tokens, 25 tokens/s"),
    ],
)
def test_a_line_shows_the_time_left(total: int | None, share: float | None, said: str) -> None:
    assert progress._line(1000, total, "tokens", 40, share) == said


def test_lines_take_the_share_where_no_total_is_known(monkeypatch) -> None:
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(progress, "say", said.put)
    with progress.progress("counting", None, fraction=lambda: 0.25) as advance:
        advance(600)
        assert "25% done" in said.get(timeout=600)


def test_a_bar_takes_the_share_where_no_total_is_known(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shares = iter([0.25, 0.5])
    with progress.progress("counting", None, fraction=lambda: next(shares)) as advance:
        advance(600)
        advance(400)
    assert "50%" in capsys.readouterr().err


def test_a_slow_dtype_is_said_where_the_processor_lacks_it(capsys, monkeypatch) -> None:
    monkeypatch.setattr(device, "computes_fast", lambda dtype: dtype == torch.float32)
    device.say_if_slow("m", torch.float32, "cpu")
    device.say_if_slow("m", torch.bfloat16, "cuda:0")
    assert capsys.readouterr().err == ""
    device.say_if_slow("m", torch.bfloat16, "cpu")
    assert capsys.readouterr().err == (
        "m: this processor has no instructions for bfloat16, in which products take many times as long as in float32\n"
    )


@pytest.mark.parametrize(
    ("machine", "amx", "fast"), [("x86_64", True, True), ("x86_64", False, False), ("aarch64", False, True)]
)
def test_avx_512_alone_is_not_taken_for_bfloat16(monkeypatch, machine: str, amx: bool, fast: bool) -> None:
    """torch says that it supports bfloat16 on each processor with AVX-512."""
    monkeypatch.setattr(device.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert device.computes_fast(torch.bfloat16) is fast
    assert device.computes_fast(torch.float32)


CHILD = """
import os, sys, time
from pathlib import Path
from argap.runtime.child import confine, end_with_parent
end_with_parent(int(sys.argv[1]))
confine(*map(int, sys.argv[2:5]))
Path("pid").write_text(str(os.getpid()))
ACTION
"""


def comes(holds: Callable[[], bool]) -> bool:
    """Whether something holds within a minute."""
    end = time.monotonic() + 60
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def child_of(place: Path, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that a child runs, in the working directory."""
    (place / "confined.py").write_text(CHILD.replace("ACTION", action))
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(Path(__file__).parents[2])]))


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("while True: pass", "^file: reading it takes more than 0 s of processor time$"),
        ("bytearray(10**9)", "^file: reading it takes more than 0.5 GB of memory$"),
        ("Path('pid').write_bytes(bytes(5000))", "^OSError: .*File too large"),
        ("sys.exit('file: refused')", "^file: refused$"),
        ("os.kill(os.getpid(), 11)", "^file: the process that read it ended with signal 11$"),
        ("os._exit(7)", "^file: the process that read it ended with code 7$"),
    ],
)
def test_a_child_has_limits_and_its_end_is_one_line(tmp_path, monkeypatch, action: str, said: str) -> None:
    child_of(tmp_path, action, monkeypatch)
    with pytest.raises(ArgapError, match=said):
        run_child("confined", "file", cpu=0, memory=5 * 10**8, written=1000)


def test_a_child_ends_with_its_parent(tmp_path, monkeypatch) -> None:
    child_of(tmp_path, "time.sleep(600)", monkeypatch)
    run = "from argap.runtime.child import run_child; run_child('confined', 'x', cpu=9, memory=10**9, written=1000)"
    pid = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", run]) as parent:
        assert comes(lambda: pid.exists() and pid.read_text() != "")
        parent.kill()
    child = Path("/proc", pid.read_text(), "stat")
    assert comes(lambda: not child.exists() or child.read_text().rpartition(") ")[2][0] == "Z")


def test_a_child_whose_parent_has_ended_before_it_began_ends(tmp_path, monkeypatch) -> None:
    child_of(tmp_path, "", monkeypatch)
    ended = subprocess.run([sys.executable, "-m", "confined", "1", "9", "1000000000", "1000"], check=False)
    assert ended.returncode == 1
    assert not (tmp_path / "pid").exists()


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EINVAL])
def test_what_the_system_refuses_is_one_line(number: int) -> None:
    """A cache's folder that is a file; a file of ``/proc`` that can only be written."""
    assert expected(OSError(number, os.strerror(number), "there"), {}) == f"there: {os.strerror(number)}"
