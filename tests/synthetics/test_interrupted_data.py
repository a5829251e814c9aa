"""Ctrl-C and SIGTERM while examples are made, which can take minutes."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError
from argap.synthetics import loop
from argap.synthetics.config import RunConfig
from argap.synthetics.models import MEMBERS

SIZES = {"train_examples": 32, "validation_examples": 8, "test_examples": 8, "batch_size": 16, "epochs": 1}
NEVER = 10.0
"""Seconds that examples take where nothing ends the wait for them."""

Slow = Callable[[Callable[[], None]], list[str]]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Makes examples take `NEVER`, calls what is given when they are begun, and lists the splits that were made."""
    made: list[str] = []
    over = threading.Event()

    def patched(begun: Callable[[], None]) -> list[str]:
        supervision = loop.supervision

        def slowly(config: RunConfig, split: str):
            if split == "train":
                begun()
            over.wait(NEVER)
            made.append(split)
            return supervision(config, split)

        monkeypatch.setattr(loop, "supervision", slowly)
        return made

    yield patched
    over.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_examples_are_made_ends_the_command(number: signal.Signals, slow: Slow, tmp_path) -> None:
    made = slow(lambda: os.kill(os.getpid(), number))
    sizes = [part for key, value in SIZES.items() for part in ("--set", f"{key}={value}")]
    flags = ["--task", "memorization", "--width", "8", "--lr", "1e-3", "--device", "cpu", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["synthetics", "train", "attention", *flags, *sizes])
    assert result.exit_code == 130, result.output
    assert made == []
    assert list(tmp_path.iterdir()) == []


def test_what_making_examples_raises_is_raised() -> None:
    one = {"symbols": 1, "alphabet": (1, 1), "edges": (1, 1), "states": (1, 1)}
    config = RunConfig("attention", MEMBERS["attention"], 8, 16, (), lr=1e-3, task={"name": "automata", **one}, **SIZES)
    with pytest.raises(ArgapError, match="no language of the split heldout"):
        loop.train_group([config], torch.device("cpu"))
