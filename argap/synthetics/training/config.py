"""The configuration of a training run: model, task and schedule, by default those of arXiv 2312.04927, appendix E.

One default differs: layers have no MLP, as in the authors' published configuration; the appendix describes one in each.

The task is multi-query associative recall (MQAR) or another of `argap.synthetics.tasks.registry`.

Legend: N tokens per example, D KV pairs per example.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from argap.errors import ArgapError, within
from argap.files.configs import (
    Batch,
    Count,
    Length,
    NotNegative,
    Positive,
    Seed,
    Vocabulary,
    Width,
    build,
    check_ranges,
)
from argap.models.configuration import ArgapConfig
from argap.synthetics.tasks.examples import check_size
from argap.synthetics.tasks.mqar import MqarConfig
from argap.synthetics.tasks.registry import TASKS, data_config, parse_yaml_task, resolve_task, task_label
from argap.synthetics.training.models import Member, member_from

LEARNING_RATES = (1e-4, 10**-3.3333333333333335, 10**-2.6666666666666665, 1e-2)
"""The paper's four learning rates, evenly spaced on a logarithmic scale."""
LAYERS = 2
"""Minimum number of layers."""
MQAR_ONLY = ("vocab_size", "alpha", "fill", "layout")
"""Fields of a run that only MQAR uses; other tasks have their own vocabulary."""
Examples = Annotated[int, Meta(ge=1, le=10**8)]


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a trained model and its test; the defaults are the paper's protocol.

    Raises `ArgapError` for values out of range. Two choices are ours: the learning rate decays as half a cosine after
    the warm-up, which the paper leaves open, and a separate validation set decides when to stop.
    """

    name: str
    """The member's name in tables and figures."""
    member: Member
    width: Width
    length: Length
    """N."""
    pairs: tuple[int, ...]
    """D. Several values share the examples equally, and accuracy is reported for each. Empty for other tasks."""
    lr: Positive
    seed: Seed = 0
    """Seed of the weights, the examples and their order."""
    vocab_size: Vocabulary = 8192
    alpha: float = 0.1
    fill: int | None = None
    """Token at all positions outside the pairs; if None, noise. The authors' published configuration of figure 2
    has 0."""
    train_examples: Examples = 100_000
    validation_examples: Examples = 1_000
    test_examples: Examples = 3_000
    batch_size: Batch | None = None
    """Examples per step; if None, 64, but 16 if N or the width is at least 256 and 8 from 512."""
    epochs: Count = 64
    """Maximum number of epochs."""
    warmup: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Fraction of all steps in which the learning rate rises."""
    weight_decay: NotNegative = 0.1
    """Applied to all parameters."""
    evaluations: Count = 1
    """Validations per epoch."""
    stop_at: Annotated[float, Meta(gt=0, le=1)] | None = 0.999
    """Validation accuracy at which the run counts as solved and stops; None: train all steps."""
    task: Mapping[str, Any] | None = None
    """The name of one of `argap.synthetics.tasks.registry.TASKS` and the fields that differ from its preset, such as
    ``{"name": "noisy_recall", "noise": 0.4}``; if None, MQAR. The run sets the length and the number of examples."""
    multiples: tuple[Annotated[int, Meta(ge=1, le=1024)], ...] = ()
    """Test the run's weights also at these multiples of the length, at the task's largest sizes. Tasks only. Of weights
    that validation cannot tell apart the last ones are then tested, not the first."""
    layout: Literal["paper", "zoology"] = "paper"
    """Layout of the examples, as in `argap.synthetics.tasks.mqar.MqarConfig`: the paper's algorithm, or its public
    code's."""

    def __post_init__(self) -> None:
        with within(self.name):
            check_ranges(self)
        if self.task is not None:
            if self.pairs or [key for key in MQAR_ONLY if getattr(self, key) != getattr(RunConfig, key)]:
                raise ArgapError(f"{self.name}: pairs, {', '.join(MQAR_ONLY)} apply to MQAR only, not to other tasks")
            object.__setattr__(self, "task", resolve_task(self.task, self.length))
        if not (self.pairs or self.task):
            raise ArgapError(f"{self.name}: no pairs; expected at least one number of KV pairs, or a task")
        for split in ("train", "validation", "test"):
            with within(f"{self.name}: {split}"):
                check_size(self.examples(split), self.length)
        if self.multiples:
            self._check_multiples()
        if self.examples_per_step > self.train_examples:
            raise ArgapError(
                f"{self.name}: {self.train_examples} training examples; expected at least one batch, "
                f"{self.examples_per_step}"
            )

    def _check_multiples(self) -> None:
        """Raise `ArgapError` for multiples without a task, of what cannot be longer, and whose data cannot be built."""
        if self.task is None or self.from_last or self.member.learned_positions:
            raise ArgapError(
                f"{self.name}: multiples {', '.join(map(str, self.multiples))}; expected a task other than mqar and "
                "compression, and no learned positions, which are not trained beyond the length"
            )
        for multiple in self.multiples:
            with within(f"{self.name}: {self.task['name']} at {multiple} x {self.length}"):
                self.data("test", multiple)

    @property
    def examples_per_step(self) -> int:
        """The batch size."""
        if self.batch_size is not None:
            return self.batch_size
        largest = max(self.length, self.width)
        return 8 if largest >= 512 else 16 if largest >= 256 else 64

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches."""
        return self.train_examples // self.examples_per_step

    @property
    def steps(self) -> int:
        """Steps in all epochs."""
        return self.epochs * self.steps_per_epoch

    @property
    def key(self) -> str:
        """A readable name that ends in a hash of the whole configuration."""
        digest = hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()
        name = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in self.name)
        task = "d" + "-".join(map(str, self.pairs)) if self.task is None else self.task["name"].replace("_", "-")
        return f"{name}-n{self.length}-{task}-w{self.width}-lr{self.lr:.1e}-s{self.seed}-{digest[:8]}"

    @property
    def task_label(self) -> str:
        """The task in tables: its name and what differs from its preset."""
        return "mqar" if self.task is None else task_label(self.task, self.length)

    @property
    def title(self) -> str:
        """Model and task in a line of progress."""
        task = "" if self.task is None else f"{self.task_label}, "
        return f"{self.name}, {task}N {self.length}, width {self.width}"

    @property
    def vocabulary(self) -> int:
        """Size of the model's vocabulary."""
        return self.vocab_size if self.task is None else self.data("test").vocab_size

    @property
    def from_last(self) -> bool:
        """Whether answers are decoded from the last position's hidden state alone."""
        return self.task is not None and TASKS[self.task["name"]].from_last

    @property
    def channels(self) -> int:
        """Numbers in an input vector; 0 if inputs are tokens."""
        return 0 if self.task is None else getattr(self.data("test"), "channels", 0)

    def as_json(self) -> dict[str, Any]:
        """Return all fields that the task uses, as JSON values."""
        unused = ("task",) if self.task is None else MQAR_ONLY  # keeps existing run hashes stable
        unused = unused if self.layout != "paper" else (*unused, "layout")
        unused = unused if self.multiples else (*unused, "multiples")
        return json.loads(json.dumps({key: value for key, value in asdict(self).items() if key not in unused}))

    def examples(self, split: str) -> int:
        """Return the number of examples in the training, validation or test set."""
        return {"train": self.train_examples, "validation": self.validation_examples, "test": self.test_examples}[split]

    def mqar(self, examples: int, pairs: int) -> MqarConfig:
        """Return an MQAR data set with ``pairs`` KV pairs per example."""
        own = {key: getattr(self, key) for key in MQAR_ONLY}
        return MqarConfig(examples, self.length, pairs, **own)

    def data(self, split: str, multiple: int | None = None) -> Any:
        """Return the configuration of the training, validation or test set of a task other than MQAR.

        ``multiple``: that of the test at a multiple of the length.
        """
        assert self.task is not None
        length, longer = self.length * (multiple or 1), multiple is not None
        return data_config(self.task, self.examples(split), length, training=split == "train", longer=longer)

    def model_config(self) -> ArgapConfig:
        """Return the member's layers with LayerNorm and a tied head. Raises `ArgapError` like `ArgapConfig`."""
        return ArgapConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=max(LAYERS, len(self.member.mixers)),
            mixers=self.member.mixers,
            max_position_embeddings=self.length * max((1, *self.multiples)),
            learned_positions=self.member.learned_positions,
            norm="layer",
            mlp="swiglu" if self.member.mlp else "none",
        )


def learning_rate(step: int, config: RunConfig) -> float:
    """Return the learning rate of ``step`` (from 0): linear warm-up to ``config.lr``, then half a cosine down to 0."""
    rise = math.ceil(config.warmup * config.steps)
    if step < rise:
        return config.lr * (step + 1) / rise
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / (config.steps - rise)))


def run_configs(
    model: str,
    *,
    task: str = "mqar",
    length: int | None = None,
    pairs: Sequence[int] = (),
    lrs: Sequence[float] = LEARNING_RATES,
    mlp: bool = False,
    **further: Any,
) -> list[RunConfig]:
    """Build one run per learning rate of a model on a task; ``further`` are other fields of `RunConfig`.

    ``model`` is one of `argap.synthetics.training.models.MEMBERS`, a mixer or ``module:Class``. ``task`` is ``mqar``,
    the name of a task, or a YAML mapping as in `parse_yaml_task`. By default N is 64, or the task's own, and D is N /
    16. Raises `ArgapError` for unknown fields and values out of range.
    """
    own: dict[str, Any] = {"name": model, "member": asdict(member_from(model, {"mlp": True} if mlp else None))}
    if task == "mqar":
        length = length or 64
        own |= {"length": length, "pairs": tuple(pairs) or default_pairs(length)}
    else:
        chosen = parse_yaml_task(task)
        own |= {"task": chosen, "length": length or TASKS[chosen["name"]].length, "pairs": tuple(pairs)}
    return [build(RunConfig, {**own, **further, "lr": lr}) for lr in lrs]


def default_pairs(length: int) -> tuple[int]:
    """Return D = N / 16, as in figure 2 of the paper."""
    return (max(1, length // 16),)
