"""Read suite configurations: one data order and one schedule for members that differ only in their mixers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argap.errors import ArgapError, within
from argap.files.configs import build
from argap.files.plain_yaml import read_yaml
from argap.files.resumable import case_aside, plain_name
from argap.records import EvaluationSpec
from argap.synthetics.pretrained.records import PretrainedTest
from argap.train.config import TrainConfig

SEEDS = "seeds"
RESERVED = {"sizes": ("tokens",), "members": ("index", "mqar", "rates", "runs", "trajectories")}
"""Names that the work folder uses itself (`argap.suite.layout`)."""
SEQ_LEN = 1024
"""Default tokens per window of the evaluation text."""


@dataclass(frozen=True)
class Entry:
    """One model to train: a member at a size, from one seed."""

    size: str
    member: str
    seed: int
    config: TrainConfig

    @property
    def name(self) -> str:
        """Return the member's name, with a suffix for seeds other than 0."""
        return self.member if self.seed == 0 else f"{self.member}-seed{self.seed}"


@dataclass(frozen=True)
class Suite:
    """The contents of a suite's YAML file."""

    name: str
    """The file's name without suffix: names the default folders."""
    reference: str
    """The member that the others are compared with."""
    train: Mapping[str, Any]
    """Fields of `argap.train.TrainConfig` that all members share: tokenizer, data, seq_len, ..."""
    sizes: Mapping[Any, Any]
    """The fields that each size sets, by its name: hidden_size, num_layers, tokens, lr, ..."""
    members: Mapping[Any, Any]
    """The fields that each member sets, by its name. ``architecture`` defaults to the name; ``seeds: [0, 1]`` trains
    the member from several seeds."""
    evaluation: EvaluationSpec
    """The text that every member is scored on, in windows of 1,024 tokens unless ``seq_len`` is given."""
    base: str | None = None
    """The base model of the "share of the gap closed" table."""
    mqar: PretrainedTest | None = None
    """MQAR test for every trained model; None: not measured."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Members' names in the paper's tables, by member; the paper's figures are then shown next to ours."""

    @property
    def windows(self) -> EvaluationSpec:
        """Return the evaluation with its defaults filled in."""
        return self.evaluation.over(EvaluationSpec(seq_len=SEQ_LEN, packing="packed"))

    def __post_init__(self) -> None:
        if not self.evaluation.data:
            raise ArgapError("evaluation: data: missing")
        if self.evaluation.keep:
            raise ArgapError("evaluation: keep: a suite's result has no tokens; score its checkpoints to slice them")
        self._check_references()
        self._check_sections()
        self._check_seeds()
        for size in self.sizes:
            self.entries(size)  # report invalid fields before any work starts

    def _check_references(self) -> None:
        for field_name in ("reference", "base"):
            name = getattr(self, field_name)
            if name is not None and name not in self.members:
                raise ArgapError(f"{field_name}: {name!r} is not a member; members are {', '.join(self.members)}")

    def _check_sections(self) -> None:
        if not self.sizes:
            raise ArgapError("sizes: expected at least one")
        for section, named in (("members", self.members), ("sizes", self.sizes)):
            for name, own in named.items():
                if plain_name(f"{section}:", name) in RESERVED[section]:
                    raise ArgapError(f"{section}: {name}: this name is reserved in the work folder; choose another")
                if own is not None and not isinstance(own, Mapping):
                    raise ArgapError(f"{section}: {name}: expected KEY: VALUE lines or nothing, found {own!r}")

    def _check_seeds(self) -> None:
        for name, own in self.members.items():
            own = own or {}
            seeds = own.get(SEEDS, [0])
            if not isinstance(seeds, list) or not seeds or len(set(map(str, seeds))) < len(seeds):
                raise ArgapError(f"members: {name}: seeds: expected a list of different numbers, found {seeds!r}")
            if name in (self.reference, self.base) and 0 not in seeds:
                raise ArgapError(f"members: {name}: seeds: expected 0 among them, because others are compared with it")

    def check_architectures(self) -> None:
        """Raise `ArgapError` for a member without mixers whose name is not an architecture."""
        from argap.records.models import read_listed

        known = [each.name for each in read_listed()]
        for name, own in self.members.items():
            own = own or {}
            if "architecture" not in own and "mixers" not in own and name not in known:
                raise ArgapError(
                    f"members: {name}: unknown architecture; give `architecture` (known are "
                    f"{', '.join(known)}) or `mixers`"
                )

    def entries(self, size: str) -> list[Entry]:
        """Return the models of one size, in training order: first every member at seed 0, then the other seeds.

        Raises `ArgapError` for an unknown size and for fields that are not a valid `TrainConfig`.
        """
        if size not in self.sizes:
            raise ArgapError(f"size {size!r}: not in the suite; its sizes are {', '.join(self.sizes)}")
        entries = []
        for member, own in self.members.items():
            own = dict(own or {})
            for seed in own.pop(SEEDS, [0]):
                named = {} if "mixers" in own else {"architecture": member}
                fields = {**self.train, **(self.sizes[size] or {}), **named, **own, "seed": seed}
                with within(f"{member} at {size}"):
                    config = build(TrainConfig, fields)
                entries.append(Entry(size, member, config.seed, config))
        named: dict[str, str] = {}
        for entry in entries:
            if other := named.get(entry.name.lower()):
                twice = f"{entry.name}{case_aside(entry.name, other)}"
                raise ArgapError(f"members: two models are called {twice}; a further seed's name ends in -seedN")
            named[entry.name.lower()] = entry.name
        return sorted(entries, key=lambda entry: entry.seed)


def load_suite(path: Path, *, to_run: bool = True) -> Suite:
    """Read a suite.

    ``to_run=False`` skips the check of architectures, which tables do not need.

    Raises `ArgapError`, one line that starts with the file's name.
    """
    values = read_yaml(path)
    with within(path):
        if "name" in values:
            raise ArgapError("name: a suite is named by its file; remove the key")
        suite = build(Suite, {"name": path.stem, **values})
        if to_run:
            suite.check_architectures()
        return suite
