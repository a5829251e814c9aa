"""Define the records of ``argap models``, and read the list at its default size without building a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from argap.files.atomic import read_json
from argap.files.configs import Layers, Vocabulary, Width, check_ranges

LISTED = Path(__file__).parents[1] / "models" / "listed.json"
"""Every named architecture at the default size, written by ``tools/pages.py listed``."""


@dataclass(frozen=True)
class Backbone:
    """Width, depth and vocabulary of a named architecture; by default the demo's."""

    hidden_size: Width = 256
    num_hidden_layers: Layers = 6
    vocab_size: Vocabulary = 8192

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Printed:
    """Figures that arXiv 2312.04927 prints for a model."""

    params_m: int
    """Parameters in millions."""
    tflops: float | None
    """Training on one window of T = 2,048 tokens; None where the table repeats the value of another size.

    The tables do not define the count. 6·T·N for N parameters matches RWKV at 125m and 360m (2.08 and 4.31). Counting
    the embedding as a product and all T² scores, 6·T·(N + V·D) + 12·L·D·T², would give attention 1.55, 2.46 and 6.29.
    """


@dataclass(frozen=True)
class ModelDescription:
    """One row of ``argap models list --json``.

    The fields from `flops` to `source` are None for a model type without a native implementation.
    """

    name: str
    model_type: str
    params: int
    flops: int | None = None
    """Of one forward pass over the window."""
    train_tflops: float | None = None
    """10¹² operations of one training step on the window."""
    state_size: int | None = None
    """Elements of the recurrent state of one sequence at the end of the window."""
    window: int | None = None
    mixers: list[dict[str, Any]] | None = None
    """Name and options of each layer's mixer."""
    source: str | None = None
    about: str | None = None
    """What sets an architecture apart where its name alone would not."""
    size: str | None = None
    """The paper's size. This field and those below are None at any other size."""
    printed: Printed | None = None
    note: str | None = None


def read_listed() -> list[ModelDescription]:
    """Return every named architecture with the default `Backbone` and a window of 1,024 tokens."""
    return msgspec.convert(read_json(LISTED)["models"], list[ModelDescription])
