"""Progress off a terminal: a line now and then with rate, share done and time left."""

import pytest

from argap.progress import progress, time_left


@pytest.mark.parametrize(
    ("seconds", "share", "left"), [(10, 0.5, "10 s"), (37, 1 / 6, "3:05 min"), (2600, 0.25, "2:10 h"), (9, 1, "0 s")]
)
def test_time_left_by_hand(seconds: float, share: float, left: str) -> None:
    assert time_left(seconds, share) == left


@pytest.mark.parametrize(
    ("total", "fraction", "said"),
    [
        (None, 0.25, "counting: 1,000 tokens, 25 tokens/s, 25% done, 2:00 min left\n"),
        (4000, None, "counting: 1,000 of 4,000 tokens, 25 tokens/s, 25% done, 2:00 min left\n"),
        (None, None, "counting: 1,000 tokens, 25 tokens/s\n"),
        (None, 1.0, "counting: 1,000 tokens, 25 tokens/s\n"),
    ],
)
def test_progress_shows_the_time_left(total, fraction, said, capsys, monkeypatch) -> None:
    clock = iter([0.0, 10.0, 40.0])
    monkeypatch.setattr("argap.progress.time.monotonic", lambda: next(clock))
    with progress("counting", total, fraction=lambda: fraction) as advance:
        advance(600)  # too early for a line
        advance(400)
    assert capsys.readouterr().err == said


def test_a_bar_takes_the_share_where_no_total_is_known(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shares = iter([0.25, 0.5])
    with progress("counting", None, fraction=lambda: next(shares)) as advance:
        advance(600)
        advance(400)
    assert "50%" in capsys.readouterr().err
