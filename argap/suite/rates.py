"""Compare learning rates on a short training of each member, before its rate is fixed.

One rate for all mixers can rank them wrongly: recurrent models learn associative recall and copying at a narrow range
of rates only (arXiv 2508.19029, abstract). Each member is therefore trained at several rates for a fraction of its
steps. All see the same windows in the same order. The schedule is that of the whole training, which is left early:
with warm-up and decay shortened alike attention's rates came out in reverse (``results/table1-50m``).
As long as that is less than one pass over the text, no window was seen before its loss is measured: the training loss
is a held-out loss, and the evaluation text plays no part in the choice.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from argap.errors import ArgapError, DivergedError, FormatError, MismatchError
from argap.files.atomic import write_text
from argap.files.lock import one_writer
from argap.files.regular import found_in, is_there
from argap.records import Record, read_record, write_record
from argap.runtime.progress import say
from argap.suite.config import Entry, Suite
from argap.suite.layout import Layout, check_trained
from argap.train.config import TrainConfig
from argap.train.log import read_steps
from argap.train.records import TrainRecord, read_train

FORMAT = 2
"""1: without ``schedule``."""
FACTORS = (0.5, 1.0, 2.0)
"""Rates tried, relative to the suite's."""
FRACTION = 0.1
"""Share of the steps that a short training takes."""
Schedule = Literal["whole", "shortened"]
TAIL = 0.2
"""Share of a short training, at its end, whose mean loss is compared."""


class RateRow(Record, frozen=True):
    """One short training."""

    member: str
    lr: float
    losses: tuple[float, ...]
    """Mean training loss of each interval of the log, in nats per token; up to the divergence if it diverged."""
    steps: int
    """Steps asked for."""
    tokens: int
    """Tokens read if it did not diverge."""
    diverged: bool
    backend: str | None
    device: str
    versions: dict[str, str]
    git: str | None
    seconds: float | None
    """Wall time of the training loop; None if it diverged."""

    @property
    def loss(self) -> float | None:
        """Return the mean loss over the last intervals, a share `TAIL` of all; None if it diverged."""
        if self.diverged:
            return None
        last = self.losses[-max(1, round(TAIL * len(self.losses))) :]
        return math.fsum(last) / len(last)


class Rates(Record, frozen=True):
    """``SIZE/rates.json``: the short trainings of a size's members."""

    format: int
    rate: float
    """The rate that the suite gives all members."""
    fraction: float
    passes: float
    """Passes over the text in a short training."""
    rows: tuple[RateRow, ...]
    schedule: Schedule = "shortened"
    """Whether warm-up and decay were those of the whole training, or shortened alike, as before format 2."""

    @property
    def rates(self) -> list[float]:
        """Return the rates tried, ascending."""
        return sorted({row.lr for row in self.rows})

    @property
    def members(self) -> list[str]:
        """Return the members, in the order of the suite."""
        return list(dict.fromkeys(row.member for row in self.rows))

    def losses(self, member: str) -> dict[float, float | None]:
        """Return a member's `RateRow.loss` by rate."""
        return {row.lr: row.loss for row in self.rows if row.member == member}

    def best(self, member: str) -> float | None:
        """Return the rate with the lowest loss; None if all diverged."""
        finite = {lr: loss for lr, loss in self.losses(member).items() if loss is not None}
        return min(finite, key=finite.__getitem__, default=None)


def suite_rate(suite: Suite, size: str) -> float:
    """Return the rate of a size, which holds for all members without one of their own."""
    own = {**suite.train, **(suite.sizes[size] or {})}
    return float(own.get("lr", TrainConfig.lr))


def begun(config: TrainConfig, lr: float, fraction: float) -> TrainConfig:
    """Return the configuration of a short training: ``lr``, and only the first ``fraction`` of the steps.

    Raises `ArgapError` if these end within the warm-up.
    """
    steps = max(1, round(config.total_steps * fraction))
    if steps <= (config.warmup_steps or 0):
        raise ArgapError(
            f"`fraction` {fraction:g}: {steps} steps end within the warm-up of {config.warmup_steps}; expected more"
        )
    return replace(config, lr=lr, stop_after=steps, checkpoint_every=0, eval_data=(), eval_every=0)


def run_rates(
    suite: Suite,
    layout: Layout,
    out: Path,
    *,
    sizes: Sequence[str] = (),
    members: Sequence[str] = (),
    factors: Sequence[float] = FACTORS,
    fraction: float = FRACTION,
    device: str = "auto",
    collects: bool = True,
) -> dict[str, Rates]:
    """Train the chosen members (() means all) at each rate, and write ``out/SIZE/rates.json``; return it by size.

    Finished trainings are not repeated; rows in ``out`` without a training in the work folder are kept.
    ``collects=False`` only trains, so that several processes or machines can share the work.

    A training that diverges is recorded as such. Raises `ArgapError` for members that are not in the suite, for factors
    and fractions out of range, and as `argap.train.train`; `MismatchError` for a folder with another training.
    """
    if not 0 < fraction <= 1:
        raise ArgapError(f"`fraction` {fraction:g}: expected a number above 0 and at most 1")
    if not factors or min(factors) <= 0:
        raise ArgapError(f"`factor` {', '.join(f'{each:g}' for each in factors)}: expected numbers above 0")
    chosen = {size: _chosen(suite, size, members) for size in sizes or suite.sizes}
    trainings = [
        (begun(entry.config, lr, fraction), layout.rate(entry, lr))
        for size, entries in chosen.items()
        for entry in entries
        for lr in [suite_rate(suite, size) * factor for factor in factors]
    ]
    for size in chosen if collects else ():
        _earlier(out / size / "rates.json", suite_rate(suite, size), fraction)
    for config, folder in trainings:
        _train(config, folder, layout.tokens, device)
    return {size: collect_rates(suite, size, layout, out / size, fraction) for size in chosen} if collects else {}


def _chosen(suite: Suite, size: str, members: Sequence[str]) -> list[Entry]:
    entries = [entry for entry in suite.entries(size) if entry.seed == 0]
    if unknown := sorted(set(members) - {entry.name for entry in entries}):
        known = ", ".join(entry.name for entry in entries)
        raise ArgapError(f"`member` {unknown[0]}: not a member of the suite with seed 0; those are {known}")
    return [entry for entry in entries if not members or entry.name in members]


def _train(config: TrainConfig, folder: Path, tokens: Path, device: str) -> None:
    """Train in ``folder`` unless that is finished or has diverged; keep its record and log, not its weights."""
    from argap.train import train

    if is_there(folder / "train.json") and _ended(folder, config):
        return
    try:
        train(config, folder, device=device, tokens=tokens)
    except DivergedError as error:
        say(f"{folder}: {error}")
        write_text(folder / "diverged", f"{error}\n")
    (folder / "model.safetensors").unlink(missing_ok=True)


def _ended(folder: Path, config: TrainConfig) -> bool:
    """Return whether the training in ``folder`` has ended. Raises `MismatchError` if it is not that of ``config``."""
    record = read_train(folder)
    check_trained(config, record, folder, "remove the folder", asks="asked for")
    return record.finished is not None or is_there(folder / "diverged")


@one_writer("out")
def collect_rates(suite: Suite, size: str, layout: Layout, out: Path, fraction: float) -> Rates:
    """Write ``out/rates.json`` from the trainings in the work folder and the rows already there.

    Raises `ArgapError` if there are none, and `MismatchError` if some belong to another sweep.
    """
    entries = [entry for entry in suite.entries(size) if entry.seed == 0]
    rows = {(row.member, row.lr): row for row in _earlier(out / "rates.json", suite_rate(suite, size), fraction)}
    passes = 0.0
    for entry in entries:
        for folder in found_in(layout.rate(entry, 1.0).parent, "lr-*"):
            record = read_train(folder)
            if _ended(folder, begun(entry.config, record.config["lr"], fraction)):
                row = _row(entry.name, record, folder)
                rows[row.member, row.lr] = row
                passes = row.tokens / record.data.tokens
    order = {entry.name: number for number, entry in enumerate(entries)}
    kept = sorted((row for row in rows.values() if row.member in order), key=lambda row: (order[row.member], row.lr))
    if not kept:
        raise ArgapError(f"{size}: no short training in {layout.work}; `argap suite rates` runs them")
    if not passes:
        passes = read_rates(out / "rates.json").passes
    rates = Rates(FORMAT, suite_rate(suite, size), fraction, passes, tuple(kept), "whole")
    write_record(out / "rates.json", rates, lines="rows")
    return rates


def _earlier(path: Path, rate: float, fraction: float) -> Iterable[RateRow]:
    if not is_there(path):
        return ()
    found = read_rates(path)
    if (found.rate, found.fraction, found.schedule) != (rate, fraction, "whole"):
        raise MismatchError(
            f"{path}: a sweep around {found.rate:g} on {found.fraction:g} of the steps with the {found.schedule} "
            f"schedule, here around {rate:g} on {fraction:g} with the whole; remove the file or choose another `out`"
        )
    return found.rows


def _row(member: str, record: TrainRecord, folder: Path) -> RateRow:
    config = record.config
    steps = config["stop_after"]
    return RateRow(
        member=member,
        lr=config["lr"],
        losses=tuple(round(line.loss, 6) for line in read_steps(folder / "log.jsonl")),
        steps=steps,
        tokens=steps * config["batch_size"] * config["seq_len"],
        diverged=record.finished is None,
        backend=record.backend,
        device=record.device,
        versions=record.versions,
        git=record.git,
        seconds=None if record.finished is None else round(record.finished.wall_time_s, 1),
    )


def read_rates(path: Path) -> Rates:
    """Read a ``rates.json``. Raises `FormatError` if it is missing, damaged or empty."""
    rates = read_record(path, Rates, newest=FORMAT)
    if not rates.rows:
        raise FormatError(f"{path}: rows: expected those of at least one member")
    return rates
