"""Show what models do in windows longer than those of their training."""

from argap.records import Part
from argap.reports.tables.formats import Table, best_in
from argap.reports.tables.numbers import nats, signed
from argap.suite.result import SizeResult


def length_table(result: SizeResult) -> Table | None:
    """Return NLL by position and by distance: within the training length, within twice that, and beyond.

    None if windows are no longer than those of training.
    """
    trained = result.member(result.reference).train.config["seq_len"]
    if result.seq_len <= trained:
        return None
    groups, models = _groups(result, trained), result.gap.models
    nll = {
        (title, model): sum(part.n * (part[model].nll or 0.0) for part in parts) / sum(part.n for part in parts)
        for title, parts in groups.items()
        for model in models
    }

    def cell(title: str, model: str) -> str:
        over = nll[title, model] - nll[title, result.reference]
        return nats(nll[title, model]) + ("" if model == result.reference else f" ({signed(over)})")

    rows = [(model, *(cell(title, model) for title in groups)) for model in models]
    compared = {column: [nll[title, model] for model in models] for column, title in enumerate(groups, 1)}
    counts = ", ".join(f"{sum(part.n for part in parts):,}" for parts in groups.values())
    note = (
        f"NLL in nats (over {result.reference}'s) by position in windows of {result.seq_len:,} tokens, and on repeated "
        f"bigrams by how far back they last occurred; models were trained on windows of {trained:,}. {counts} tokens."
    )
    return Table(("Model", *groups), rows, (note,), best_in(rows, compared))


def _groups(result: SizeResult, trained: int) -> dict[str, list[Part]]:
    """Return the parts of each column, whose bins end at multiples of the training length."""
    groups: dict[str, list[Part]] = {}
    for partition, first in (("position", 0), ("distance", 1)):
        lows = {bin_.label: bin_.low for bin_ in getattr(result.gap.bins, partition)}
        ends = [trained + first, 2 * trained + first]
        names = [f"below {ends[0]:,}", f"{ends[0]:,} to {ends[1] - 1:,}", f"from {ends[1]:,}"]
        for part in result.gap.parts(partition):
            if (low := lows[part.bin]) > 0 and part.n:  # not above 0: the bigram is not repeated
                name = names[sum(low >= end for end in ends)]
                groups.setdefault(f"Position {name}" if partition == "position" else f"{name} back", []).append(part)
    return groups
