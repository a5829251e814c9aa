"""What a suite is: one data order and one schedule, and the members that differ in their mixers alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argap.configuration import build
from argap.errors import ArgapError
from argap.plain_yaml import read_yaml
from argap.records import EvaluationSpec
from argap.resumable import plain_name
from argap.synthetics.pretrained_test import PretrainedTest
from argap.train.config import TrainConfig

SEEDS = "seeds"
RESERVED = {"sizes": ("tokens",), "members": ("index", "runs", "trajectories", "mqar")}
"""Names of the work folder's own folders (`argap.suite.layout`)."""
SEQ_LEN = 1024
"""Tokens a window of the evaluation text, by default."""


@dataclass(frozen=True)
class Entry:
    """One model to train: a member at a size, from one seed."""

    size: str
    member: str
    seed: int
    config: TrainConfig

    @property
    def name(self) -> str:
        """The member's name; further seeds say which."""
        return self.member if self.seed == 0 else f"{self.member}-seed{self.seed}"


@dataclass(frozen=True)
class Suite:
    """A suite as its YAML file has it."""

    reference: str
    """The member that the gap of the others is measured to."""
    train: Mapping[str, Any]
    """Fields of `argap.train.TrainConfig` that all members share: tokenizer, data, seq_len, ..."""
    sizes: Mapping[str, Any]
    """Name of a size to the fields it sets: hidden_size, num_layers, tokens, lr, ..."""
    members: Mapping[str, Any]
    """Name of a member to the fields it sets; by default ``architecture``: its name. ``seeds: [0, 1]`` trains
    it from several seeds."""
    evaluation: EvaluationSpec
    """The text that every member is scored on; windows of 1,024 tokens where no ``seq_len`` is given."""
    base: str | None = None
    """The member of whose gap the others close a share."""
    mqar: PretrainedTest | None = None
    """Recall of pairs that every trained model is scored on; None: not measured."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Name of a member to its name in the paper's tables, whose figures are then shown beside it."""

    @property
    def windows(self) -> EvaluationSpec:
        """The evaluation with its defaults filled in."""
        return self.evaluation.over(EvaluationSpec(seq_len=SEQ_LEN, packing="packed"))

    def __post_init__(self) -> None:
        if not self.evaluation.data:
            raise ArgapError("evaluation: data: missing")
        for field_name in ("reference", "base"):
            name = getattr(self, field_name)
            if name is not None and name not in self.members:
                raise ArgapError(f"{field_name}: {name!r} is not a member; members are {', '.join(self.members)}")
        if not self.sizes:
            raise ArgapError("sizes: expected at least one")
        for kind, named in (("members", self.members), ("sizes", self.sizes)):
            for name, own in named.items():
                if plain_name(f"{kind}:", name) in RESERVED[kind]:
                    raise ArgapError(f"{kind}: {name}: the work folder has a folder of that name; choose another name")
                if own is not None and not isinstance(own, Mapping):
                    raise ArgapError(f"{kind}: {name}: expected KEY: VALUE lines or nothing, found {own!r}")
        for name, own in self.members.items():
            own = own or {}
            seeds = own.get(SEEDS, [0])
            if not isinstance(seeds, list) or not seeds or len(set(map(str, seeds))) < len(seeds):
                raise ArgapError(f"members: {name}: seeds: expected a list of different numbers, found {seeds!r}")
            if name in (self.reference, self.base) and 0 not in seeds:
                raise ArgapError(f"members: {name}: seeds: expected 0 among them, others are compared with it")
        for size in self.sizes:
            self.entries(size)  # a field that is wrong is found before any work

    def check_architectures(self) -> None:
        """Raise `ArgapError` for a member without mixers whose name is not an architecture's. Imports torch."""
        from argap.models.presets import ARCHITECTURES

        for name, own in self.members.items():
            own = own or {}
            if "architecture" not in own and "mixers" not in own and name not in ARCHITECTURES:
                raise ArgapError(
                    f"members: {name}: unknown architecture; give `architecture` (known are "
                    f"{', '.join(ARCHITECTURES)}) or `mixers`"
                )

    def entries(self, size: str) -> list[Entry]:
        """The models of one size, in order, all members from seed 0 before any further seed.

        Raises `ArgapError` for an unknown size and for fields that make no `TrainConfig`.
        """
        if size not in self.sizes:
            raise ArgapError(f"size {size!r}: not in the suite; its sizes are {', '.join(self.sizes)}")
        entries = []
        for member, own in self.members.items():
            own = dict(own or {})
            for seed in own.pop(SEEDS, [0]):
                named = {} if "mixers" in own else {"architecture": member}
                fields = {**self.train, **(self.sizes[size] or {}), **named, **own, "seed": seed}
                try:
                    config = build(TrainConfig, fields)
                except ArgapError as error:
                    raise ArgapError(f"{member} at {size}: {error}") from None
                entries.append(Entry(size, member, config.seed, config))
        names = [entry.name for entry in entries]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ArgapError(f"members: two models are called {twice}; a further seed's name ends in -seedN")
        return sorted(entries, key=lambda entry: entry.seed)


def load_suite(path: Path, *, to_run: bool = True) -> Suite:
    """Read a suite. ``to_run`` False: for its tables alone, without torch and without a check of the architectures.

    Raises `ArgapError`, one line that begins with the file's name.
    """
    values = read_yaml(path)
    try:
        suite = build(Suite, values)
        if to_run:
            suite.check_architectures()
        return suite
    except ArgapError as error:
        raise ArgapError(f"{path}: {error}") from None
