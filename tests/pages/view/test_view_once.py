"""Two pages that ask the same share one computation."""

import threading
import time

import pytest

from argap.view.once import KEPT, Once


def test_two_that_ask_at_once_share_one_computation():
    once, computed = Once(), []

    def slow() -> int:
        computed.append(1)
        time.sleep(0.05)
        return 7

    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(once.get("key", slow))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, len(computed)) == ([7] * 4, 1)


def test_what_fails_is_tried_again():
    once = Once()
    with pytest.raises(ZeroDivisionError):
        once.get("key", lambda: 1 // 0)
    assert once.get("key", lambda: 3) == 3


def test_the_oldest_answer_goes_first():
    once = Once()
    for key in range(KEPT + 1):
        once.get(key, lambda: "old")
    assert once.get(KEPT, lambda: "new") == "old"
    assert once.get(0, lambda: "new") == "new"
