"""Training configuration. Flags override the YAML file, which overrides the defaults."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from argap.errors import ArgapError, within
from argap.files.configs import (
    Batch,
    Count,
    Layers,
    Length,
    NotNegative,
    Positive,
    Seed,
    Tokens,
    Whole,
    Width,
    build,
    check_ranges,
)
from argap.files.plain_yaml import parse_yaml, read_yaml

Switch = Literal["auto", "true", "false"]
WARMUP = 100


@dataclass(frozen=True)
class DataSource:
    """A corpus and how often to read it: ``repeat: 3`` concatenates three copies."""

    path: str
    """As in `argap.corpus.open_corpus`: a file, a folder, ``hub:...`` or ``stdlib:train``."""
    repeat: Count = 1
    text_column: str = "text"

    @classmethod
    def from_text(cls, path: str) -> "DataSource":
        """Return a corpus named by its path alone, read once."""
        return cls(path)


@dataclass(frozen=True)
class TrainConfig:
    """Everything that determines the trained weights. (The device is not part of it.)

    Two runs with equal configurations and equal data see the same windows in the same order; two
    architectures with equal ``data``, ``tokenizer``, ``seq_len``, ``batch_size`` and ``seed`` do too.
    """

    tokenizer: str
    """A folder with a ``tokenizer.json``, or a hub id. The model's vocabulary is its vocabulary."""
    data: tuple[DataSource, ...]
    architecture: str | None = None
    """A preset of `argap.models`; exactly one of ``architecture`` and ``mixers`` is given."""
    mixers: tuple[Any, ...] | None = None
    """The mixer of each layer, as in `argap.models.ArgapConfig`."""
    hidden_size: Width = 256
    num_layers: Layers | None = None
    """By default 6 for an architecture, else the length of ``mixers``."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `argap.models.ArgapConfig`."""
    vocab_multiple: Width = 64
    """Round the embedding's vocabulary up to a multiple of this, for faster matrix products."""
    seq_len: Length = 1024
    batch_size: Batch = 64
    """Windows in one optimizer step, over all devices."""
    micro_batch_size: Batch | None = None
    """Windows in one forward pass of one device; None: all of the device's share at once."""
    steps: Count | None = None
    """Optimizer steps; exactly one of ``steps`` and ``tokens`` is given."""
    tokens: Tokens | None = None
    """Training tokens, rounded up to whole steps."""
    stop_after: Count | None = None
    """Steps after which the run ends, with the schedule of all; None: after all."""
    lr: Positive = 1e-3
    min_lr_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """The cosine ends at ``lr * min_lr_ratio``."""
    warmup_steps: Whole | None = None
    """Steps of linear warm-up. None: 100, or a tenth of the steps if there are fewer than 100."""
    weight_decay: NotNegative = 0.1
    """On weight matrices only: not on embeddings, biases, norms or other vectors."""
    betas: tuple[float, float] = (0.9, 0.95)
    grad_clip: Positive | None = 1.0
    """Maximum norm of the whole gradient; None: no clipping."""
    seed: Seed = 0
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Autocast dtype of the forward and backward pass over float32 weights; auto: bfloat16 on CUDA, else float32."""
    save_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """dtype of the finished model's weights. Checkpoints are always float32."""
    backend: Literal["auto", "fla", "native"] = "auto"
    """``fla``: operators of flash-linear-attention where they compute a mixer's function
    (`argap.models.fla.operators`); auto: ``fla`` wherever it can run. A resumed run keeps its backend."""
    compile: Switch = "auto"
    """Whether to use torch.compile; auto: on CUDA."""
    deterministic: bool = False
    """Use only operations of PyTorch that give the same bits each time, which are slower on CUDA."""
    log_every: Count = 10
    checkpoint_every: Whole = 500
    """Steps between checkpoints; 0: checkpoint only on interruption."""
    keep_checkpoints: Whole = 2
    """Number of latest checkpoints to keep; 0: all (for learning curves)."""
    eval_data: tuple[DataSource, ...] = ()
    eval_every: Whole = 0
    """Steps between evaluations on ``eval_data``; 0: at the end only."""

    def __post_init__(self) -> None:
        if (self.architecture is None) == (self.mixers is None):
            raise ArgapError("expected exactly one of architecture and mixers")
        if (self.steps is None) == (self.tokens is None):
            raise ArgapError("expected exactly one of steps and tokens")
        if not self.data:
            raise ArgapError("data: expected at least one source")
        check_ranges(self)
        for source in (*self.data, *self.eval_data):
            check_ranges(source)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ArgapError(f"betas: expected two numbers from 0 to below 1, found {list(self.betas)}")
        if self.warmup_steps is None:
            default = WARMUP if self.total_steps >= WARMUP else self.total_steps // 10
            object.__setattr__(self, "warmup_steps", default)
        elif self.warmup_steps > self.total_steps:
            raise ArgapError(f"warmup_steps: {self.warmup_steps} exceeds the run's {self.total_steps} steps")
        if self.last_step > self.total_steps:
            raise ArgapError(f"stop_after: {self.stop_after} exceeds the run's {self.total_steps} steps")

    @property
    def last_step(self) -> int:
        """Number of optimizer steps that the run takes."""
        return self.stop_after or self.total_steps

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps in the schedule."""
        if self.steps is not None:
            return self.steps
        assert self.tokens is not None  # __post_init__ checks this
        return -(-self.tokens // (self.batch_size * self.seq_len))

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON values; equal if and only if the configurations are."""
        return json.loads(json.dumps(asdict(self)))


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> TrainConfig:
    """Load the configuration of a YAML file (or none), with ``overrides`` applied.

    Raises a one-line `ArgapError` that starts with the file's name for invalid YAML, unknown keys, values of the wrong
    type, and missing or contradictory fields.
    """
    values = {} if path is None else read_yaml(path)
    values.update(overrides)
    for one, other in (("steps", "tokens"), ("architecture", "mixers")):
        for given, dropped in ((one, other), (other, one)):
            if overrides.get(given) is not None and dropped not in overrides:
                values.pop(dropped, None)  # a flag for one alternative replaces the other in the file
    with within(path) if path else nullcontext():
        return build(TrainConfig, values)


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """Parse ``["lr=3e-4", "betas=[0.9, 0.99]"]`` into a mapping; values are YAML."""
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ArgapError(f"--set {setting}: expected KEY=VALUE")
        try:
            values[key.strip()] = parse_yaml(text)
        except ArgapError as error:
            raise ArgapError(f"--set {setting}: the value is not valid YAML ({error})") from None
    return values
