"""What one run of the testbed is: a model of few layers, its task, and the protocol of arXiv 2312.04927, appendix E.

The task is multi-query associative recall (MQAR), or another of `argap.synthetics.tasks`.

Legend: N length of an example, D pairs of key and value in it.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from argap.configuration import build
from argap.errors import ArgapError
from argap.models.configuration import ArgapConfig, MixerSpec
from argap.synthetics.mqar import MqarConfig
from argap.synthetics.tasks import TASKS, data_config, label, resolved

LEARNING_RATES = (1e-4, 10**-3.3333333333333335, 10**-2.6666666666666665, 1e-2)
"""The paper's: four from 1e-4 to 1e-2, evenly apart on a logarithmic scale."""
LAYERS = 2
"""The fewest of a member."""
OF_MQAR = ("vocab_size", "alpha", "fill")
"""Fields of a run that other tasks have no use for: their vocabulary is a field of their own."""

SIZES = (
    "width",
    "length",
    "vocab_size",
    "train_examples",
    "validation_examples",
    "test_examples",
    "batch_size",
    "epochs",
    "evaluations",
)
"""Fields of a run that are at least 1."""


@dataclass(frozen=True)
class Member:
    """A model to be trained, at any width."""

    mixers: tuple[Any, ...]
    """One entry a layer, as `argap.models.ArgapConfig` takes them; a single one makes two layers."""
    learned_positions: bool = False
    mlp: bool = False
    """Whether a SwiGLU follows each mixer. The published configurations of figure 2 have none."""


SHORT_CONV: MixerSpec = {"name": "base_conv", "filter": "implicit", "kernel_size": 3}
LONG_CONV: MixerSpec = {"name": "base_conv", "filter": "implicit", "kernel_size": None}
ONE_HEAD: MixerSpec = {"name": "attention", "heads": 1, "positions": "none"}

MEMBERS: dict[str, Member] = {
    "attention": Member((ONE_HEAD,), learned_positions=True),
    "base_conv": Member((SHORT_CONV, LONG_CONV)),
    "hyena": Member(("hyena",)),
    "h3": Member(({"name": "h3", "head_size": 2},)),
    "rwkv4": Member(("rwkv4",)),
    "mamba": Member(("mamba",)),
    "based": Member((SHORT_CONV, {"name": "linear_attention", "heads": 1, "feature_map": "taylor"})),
    "delta_net": Member(({"name": "delta_net", "heads": 1},)),
    "gla": Member(({"name": "gla", "heads": 1},)),
    "retnet": Member(("retnet",)),
    "linear_attention": Member(({"name": "linear_attention", "heads": 1},)),
}
"""By name: one head, positions for attention alone, as the paper's synthetic models have them. H3's heads and
Based's pair of layers are those of the authors' published configurations of figure 2."""


def member_from(name: str, value: Any = None) -> Member:
    """The member that a sweep file describes: by default that of `MEMBERS`, else any registered mixer or
    ``module:Class`` in both layers; ``value`` is a mapping of what differs.

    Raises `ArgapError` for unknown keys and for what is no mapping; an unknown mixer is found when the model is built.
    """
    if not isinstance(value, Mapping | None):
        known = ", ".join(f.name for f in fields(Member))
        raise ArgapError(f"{name}: expected nothing or KEY: VALUE lines ({known}), found {value!r}")
    try:
        return build(Member, {**asdict(MEMBERS.get(name, Member((name,)))), **(value or {})})
    except ArgapError as error:
        raise ArgapError(f"{name}: {error}") from None


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a trained model and its test; its defaults are the paper's protocol.

    Raises `ArgapError` for values out of range. What the paper leaves open is set here: the learning rate
    falls as half a cosine after the warm-up, and a validation set of its own decides when to stop.
    """

    name: str
    """The member's name in tables and figures."""
    member: Member
    width: int
    length: int
    """N."""
    pairs: tuple[int, ...]
    """D; several share the examples alike, and accuracy is told for each. Empty where the task is not MQAR."""
    lr: float
    seed: int = 0
    """Of weights, examples and their order."""
    vocab_size: int = 8192
    alpha: float = 0.1
    fill: int | None = None
    """The token of all positions but the pairs'; None: noise, any tokens that are no key and no value of the
    example. The authors' published configuration of figure 2 has 0."""
    train_examples: int = 100_000
    validation_examples: int = 1_000
    test_examples: int = 3_000
    batch_size: int | None = None
    """Examples in a step; None: 64, 16 where N or the width is 256 or more, 8 from 512."""
    epochs: int = 64
    """At most."""
    warmup: float = 0.1
    """Share of all steps in which the learning rate rises."""
    weight_decay: float = 0.1
    """On all parameters."""
    evaluations: int = 1
    """Times an epoch that the validation set is scored."""
    stop_at: float = 0.999
    """Validation accuracy that ends the run."""
    task: Mapping[str, Any] | None = None
    """The name of one of `argap.synthetics.tasks.TASKS` and what differs from its preset, as ``{"name":
    "noisy_recall", "noise": 0.4}``; None: MQAR. Length and numbers of examples are the run's."""

    def __post_init__(self) -> None:
        least = dict.fromkeys(SIZES, 1) | {"seed": 0}
        for key, value in ((key, getattr(self, key)) for key in least):
            if value is not None and value < least[key]:
                raise ArgapError(f"{self.name}: {key} {value}; expected a whole number from {least[key]}")
        if self.task is not None:
            if self.pairs or [key for key in OF_MQAR if getattr(self, key) != getattr(RunConfig, key)]:
                raise ArgapError(f"{self.name}: pairs, {', '.join(OF_MQAR)} are MQAR's; other tasks take none of them")
            object.__setattr__(self, "task", resolved(self.task, self.length))
        if not (self.pairs or self.task):
            raise ArgapError(f"{self.name}: no pairs; expected at least one number of them, or a task")
        rates = 0 < self.lr < math.inf and 0 <= self.weight_decay < math.inf
        if not rates or not 0 <= self.warmup < 1 or not 0 < self.stop_at <= 1:
            raise ArgapError(
                f"{self.name}: lr {self.lr}, warmup {self.warmup}, weight_decay {self.weight_decay}, stop_at "
                f"{self.stop_at}; expected lr above 0, warmup from 0 to below 1, decay from 0, stop_at up to 1"
            )
        if self.examples_a_step > self.train_examples:
            raise ArgapError(
                f"{self.name}: {self.train_examples} training examples; expected a batch, {self.examples_a_step}"
            )

    @property
    def examples_a_step(self) -> int:
        """The batch size."""
        if self.batch_size is not None:
            return self.batch_size
        largest = max(self.length, self.width)
        return 8 if largest >= 512 else 16 if largest >= 256 else 64

    @property
    def steps_an_epoch(self) -> int:
        """Whole batches."""
        return self.train_examples // self.examples_a_step

    @property
    def steps(self) -> int:
        """Of all epochs."""
        return self.epochs * self.steps_an_epoch

    @property
    def key(self) -> str:
        """A readable name, with a hash of all that decides the run."""
        digest = hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()
        name = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in self.name)
        what = "d" + "-".join(map(str, self.pairs)) if self.task is None else self.task["name"].replace("_", "-")
        return f"{name}-n{self.length}-{what}-w{self.width}-lr{self.lr:.1e}-s{self.seed}-{digest[:8]}"

    @property
    def task_label(self) -> str:
        """The task in tables: its name, with what is not as its preset has it."""
        return "mqar" if self.task is None else label(self.task, self.length)

    @property
    def title(self) -> str:
        """Model and task in a line of progress."""
        task = "" if self.task is None else f"{self.task_label}, "
        return f"{self.name}, {task}N {self.length}, width {self.width}"

    @property
    def vocabulary(self) -> int:
        """Tokens that the model knows."""
        return self.vocab_size if self.task is None else self.data("test").vocab_size

    @property
    def from_last(self) -> bool:
        """Whether answers are decoded from the last position's vector alone."""
        return self.task is not None and TASKS[self.task["name"]].from_last

    def as_json(self) -> dict[str, Any]:
        """All fields that the task has, as JSON has them."""
        unused = ("task",) if self.task is None else OF_MQAR  # so that runs are known by what they were known by
        return json.loads(json.dumps({key: value for key, value in asdict(self).items() if key not in unused}))

    def examples(self, split: str) -> int:
        """How many the training, validation or test set has."""
        return {"train": self.train_examples, "validation": self.validation_examples, "test": self.test_examples}[split]

    def mqar(self, examples: int, pairs: int) -> MqarConfig:
        """The data set of so many examples with so many pairs each."""
        return MqarConfig(examples, self.length, pairs, vocab_size=self.vocab_size, alpha=self.alpha, fill=self.fill)

    def data(self, split: str) -> Any:
        """The training, validation or test set of a task that is not MQAR, as its configuration."""
        assert self.task is not None
        return data_config(self.task, self.examples(split), self.length, training=split == "train")

    def model_config(self) -> ArgapConfig:
        """The member's layers with LayerNorm and a tied head. Raises `ArgapError` as `ArgapConfig` does."""
        return ArgapConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=max(LAYERS, len(self.member.mixers)),
            mixers=self.member.mixers,
            max_position_embeddings=self.length,
            learned_positions=self.member.learned_positions,
            norm="layer",
            mlp="swiglu" if self.member.mlp else "none",
        )


def learning_rate(step: int, config: RunConfig) -> float:
    """Of ``step``, from 0: a linear rise to ``config.lr``, then half a cosine to 0."""
    rise = math.ceil(config.warmup * config.steps)
    if step < rise:
        return config.lr * (step + 1) / rise
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, config.steps - rise)))
