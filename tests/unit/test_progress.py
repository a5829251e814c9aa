"""Progress: lines off a terminal with rate, share done and time left, and a bar on one."""

import queue
import threading

import pytest

from argap.runtime import progress


def test_work_whose_first_step_lasts_is_reported(monkeypatch) -> None:
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(progress, "say", said.put)
    before = set(threading.enumerate())  # an earlier test may have left work in progress
    with progress.progress("training", 1200, "steps") as advance:
        assert said.get(timeout=600) == "training: 0 of 1,200 steps, 0 steps/s"
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
