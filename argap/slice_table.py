"""Slices as a table for the terminal."""

from collections.abc import Sequence

from argap.records import ModelOnSlice, SliceResult
from argap.reports.numbers import DASH, nats, percent, percent_range, perplexity, threshold_text
from argap.reports.tables import Column, Table, print_one

CASES = {
    "recall_only": "100%: at least as good as the reference overall but worse on the slice",
    "no_gap": "—: at least as good as the reference overall and on the slice, so there is no gap to explain",
    "reversed": "negative: worse than the reference overall but better on the slice",
}
NO_INTERVAL = {
    "gap not resolved": "no interval: in more than 2.5% of the bootstrap's resamples the model has no gap",
    "a single document": "no interval: all scored tokens are of a single document",
}


def slices_table(slices: Sequence[SliceResult], *, threshold: int | None, models: Sequence[str] | None = None) -> Table:
    """One row for each model and slice; ``models``: some of them."""
    columns = ("Tokens", "Share", "PPL (NLL)", "ΔNLL", "Part of gap (nats)", "95% interval", "% of gap", "95% interval")
    rows, reasons = [], []
    for k, model in enumerate(slices[0].models):
        for each in slices if models is None or model.model in models else ():
            own = each.models[k]
            rows.append(
                (model.model, each.name, *_cells(each, own), DASH if each.ar_hits is None else percent(each.ar_hits))
            )
            if due := own.gap_due_to:
                reasons += [CASES.get(due.case), due.case not in ("no_gap",) and NO_INTERVAL.get(due.reason or "")]
    hits = "repeated in the window"
    if threshold is not None:
        hits += f" and seen at most {threshold_text(threshold)} times in training"
    reference = next(model.model for model in slices[0].models if model.reference)
    notes = [
        f"ΔNLL in nats on the slice's tokens, to {reference}; part of gap: share × ΔNLL; "
        f"AR hits: the share of the slice's tokens that are {hits}. Slices may overlap.",
        *(reason for reason in dict.fromkeys(reasons) if reason),
        *(f"{each.name}: {_words(each)}" for each in slices if each.where),
    ]
    titles = (Column("Model", "left"), Column("Slice", "left"), *map(Column, columns), Column("AR hits"))
    return Table(titles, tuple(rows), tuple(notes))


def _words(each: SliceResult) -> str:
    title = f"{each.title}. " if each.title else ""
    return f"{title}{each.where}{f' ({each.note})' if each.note else ''}"


def _cells(each: SliceResult, model: ModelOnSlice) -> tuple[str, ...]:
    nll = DASH if model.nll is None else f"{DASH if model.ppl is None else perplexity(model.ppl)} ({model.nll:.2f})"
    found = (f"{each.n:,}", percent(each.share), nll)
    if model.delta is None or model.contribution is None or model.gap_due_to is None:
        return (*found, *[DASH] * 5)
    due, part = model.gap_due_to, model.contribution
    return (
        *found,
        nats(model.delta.nll) if each.n else DASH,
        nats(part.nll),
        DASH if part.ci95 is None else f"{nats(part.ci95[0])} to {nats(part.ci95[1])}",
        DASH if due.value is None else percent(due.value),
        DASH if due.value is None or due.ci95 is None else percent_range(*due.ci95),
    )


def print_slices(
    slices: Sequence[SliceResult],
    *,
    threshold: int | None,
    models: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Print the table and its notes, further ones last; a table wider than the terminal is printed whole."""
    print_one(slices_table(slices, threshold=threshold, models=models), notes)
