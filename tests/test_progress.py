"""Progress off a terminal."""

import queue
import threading

from argap import progress


def test_work_whose_first_step_lasts_is_reported(monkeypatch) -> None:
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(progress, "say", said.put)
    with progress.progress("training", 1200, "steps") as advance:
        assert said.get(timeout=60) == "training: 0 of 1,200 steps, 0 steps/s"
        advance(600)
        while "600 of 1,200 steps, " not in said.get(timeout=60):
            pass
    for thread in threading.enumerate():
        if thread.name == "progress":
            thread.join(60)
            assert not thread.is_alive()
