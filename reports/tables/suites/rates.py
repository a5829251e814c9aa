"""Show which learning rate suits each member of a suite (`argap.suite.rates`)."""

from pathlib import Path

from argap.files.atomic import write_text
from argap.reports.tables.formats import Table, markdown
from argap.reports.tables.numbers import DASH, nats, percent, signed
from argap.suite.config import Suite
from argap.suite.rates import TAIL, Rates, read_rates

DIVERGED = "diverged"


def rates_table(rates: Rates, size: str) -> Table:
    """Return one row per member: its loss at each rate, its best rate, and how much lower the loss is there.

    The best loss of each row is bold.
    """
    first, columns = rates.rows[0], rates.rates
    rows, bold = [], set()
    for number, member in enumerate(rates.members):
        losses, best = rates.losses(member), rates.best(member)
        cells = [DASH if lr not in losses else _loss(losses[lr]) for lr in columns]
        if best is not None:
            bold.add((number, 1 + columns.index(best)))
        rows.append((member, *cells, DASH if best is None else f"{best:g}", _gain(losses, best, rates.rate)))
    notes = (
        f"Mean training loss in nats per token over the last {percent(TAIL, 0)} of {first.steps:,} steps "
        f"({first.tokens:,} tokens, {rates.passes:.2f} passes over the text), by learning rate. Warm-up and decay are "
        "those of the whole training, shortened alike. All members see the same windows; one seed.",
        f"Gain: how much lower the loss is than at {rates.rate:g}, the suite's rate, in nats.",
        f"Trained on {', '.join(sorted({row.device for row in rates.rows}))}.",
    )
    titles = ("Model", *(f"{lr:g}" for lr in columns), "Best rate", "Gain")
    return Table(titles, rows, notes, frozenset(bold), title=f"{size}, learning rates")


def _loss(value: float | None) -> str:
    return DIVERGED if value is None else nats(value)


def _gain(losses: dict[float, float | None], best: float | None, rate: float) -> str:
    usual, lowest = losses.get(rate), losses.get(best) if best is not None else None
    return DASH if usual is None or lowest is None or best == rate else signed(usual - lowest)


def write_rates(suite: Suite, out: Path) -> list[Table]:
    """Write ``rates.md`` to ``out``, with a table for each size that has a ``rates.json``; return the tables."""
    paths = {size: out / size / "rates.json" for size in suite.sizes}
    tables = [rates_table(read_rates(path), size) for size, path in paths.items() if path.is_file()]
    if tables:
        write_text(out / "rates.md", "\n".join(map(markdown, tables)))
    return tables
