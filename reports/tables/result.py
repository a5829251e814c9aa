"""The result as a table in the form of the paper's Table 1, and its slices, for a terminal, Markdown, LaTeX and CSV.

A slice's cell reads ``11.01 (2.40)``: perplexity (NLL), or bits per byte (NLL). An em dash means that there is no
number; a raised letter after a percentage points to the note that explains it. A percentage in parentheses is
unresolved: it must not be claimed.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from argap.metric.intervals import FEW, contains_zero
from argap.records import ClosedShare, Delta, Gap, GapRow, GapShare, ModelOnSlice, SliceResult, Unit
from argap.reports.tables.formats import MARKS, Table, best_in, csv_of
from argap.reports.tables.numbers import (
    DASH,
    loss,
    loss_name,
    nats,
    nats_interval,
    parameters,
    percent,
    percent_range,
    threshold_text,
)

SLICE_TITLES = ("ΔNLL", "Part of gap (nats)", "95% interval", "% of gap", "95% interval", "AR hits")
CASES = {
    "recall_only": "at least as good as the reference overall but worse on the {hits}: by the paper's rule 100%",
    "no_gap": "at least as good as the reference overall and on the {hits}: there is no gap to explain",
    "reversed": "worse than the reference overall but better on the {hits}: the quotient is negative, shown as it is",
}
CAPPED = "the {hits} lose more than the whole gap, other tokens win some back: the quotient is capped at 100%"
NO_INTERVAL = {
    "gap not resolved": "gap not resolved: in more than 2.5% of the bootstrap's resamples the model has no gap",
    "a single document": "no interval: all scored tokens are of a single document, and documents are resampled",
}


def gap_table(gap: Gap) -> Table:
    """One row a model: parameters, the three slices, and the share of the gap due to AR with its interval."""
    marks = marks_of(row.gap_due_to_ar for row in gap.rows)
    hits, due = ("AR hits", "% of gap due to AR") if gap.index else ("Repeated", "% of gap due to repeats")
    titles = ("Model", "Params", "Overall", hits, f"Other {gap.unit}s", due, "95% interval")
    rows = tuple(
        (
            row.model,
            parameters(row.parameters),
            *(loss(scores, gap.unit) for scores in (row.overall, row.ar_hits, row.other)),
            gap_cell(row.gap_due_to_ar, marks),
            interval_cell(row.gap_due_to_ar),
        )
        for row in gap.rows
    )
    notes = (
        _scope(gap),
        *few_documents(gap),
        *notes_of(marks, gap.hits),
    )
    losses = {
        column: [None if row.reference else getattr(row, name).nll for row in gap.rows]
        for column, name in enumerate(("overall", "ar_hits", "other"), 2)
    }
    return Table(titles, rows, notes, best_in(rows, losses))


def closed_table(gap: Gap) -> Table | None:
    """The share of a base model's gap that each other model closes; None for a comparison without a base."""
    closed = {row.model: row.closed for row in gap.rows if row.closed is not None}
    if not closed:
        return None
    base = next(iter(closed.values())).base
    columns = ("Model", "Gap closed, overall", f"Gap closed, {gap.hits}")
    rows = tuple((model, _closed_cell(share.overall), _closed_cell(share.ar_hits)) for model, share in closed.items())
    notes = [f"Share of the gap of {base} to {gap.reference} that is closed, in perplexity (in NLL)."]
    if contains_zero(next((row.delta.ci95 for row in gap.rows if row.model == base and row.delta), None)):
        notes.append("Unresolved: the interval of that gap contains 0.")
    overall = [share.overall and share.overall.ppl for share in closed.values()]
    on_hits = [share.ar_hits and share.ar_hits.ppl for share in closed.values()]
    return Table(columns, rows, tuple(notes), best_in(rows, {1: overall, 2: on_hits}, highest=True))


def slices_table(
    slices: Sequence[SliceResult],
    *,
    threshold: int | None,
    models: Sequence[str] | None = None,
    unit: Unit = "token",
    notes: Sequence[str] = (),
) -> Table:
    """One row for each model and slice; ``models``: some of them; ``unit``: what ``n`` counts; ``notes``: printed below
    those that the table needs."""
    chosen = [k for k, model in enumerate(slices[0].models) if models is None or model.model in models]
    marks = marks_of(each.models[k].gap_due_to for k in chosen for each in slices)
    pairs = [(each, each.models[k]) for k in chosen for each in slices]
    rows = [(model.model, each.name, *_slice_cells(each, model, marks, unit)) for each, model in pairs]
    hits = "repeated in the window"
    if threshold is not None:
        hits += f" and seen at most {threshold_text(threshold)} times in training"
    reference = next(model.model for model in slices[0].models if model.reference)
    needed = [
        f"ΔNLL in nats{' per byte' if unit == 'byte' else ''} on the slice's {unit}s, to {reference}; part of gap: "
        f"share × ΔNLL; AR hits: the share of the slice's {unit}s that are {hits}. Slices may overlap.",
        *notes_of(marks, f"slice's {unit}s"),
        *(
            f"{each.name}: {each.title and each.title + '. '}{each.where}{each.note and f' ({each.note})'}"
            for each in slices
            if each.where
        ),
    ]
    titles = ("Model", "Slice", f"{unit.capitalize()}s", "Share", loss_name(unit), *SLICE_TITLES)
    values = [None if model.reference else model.nll for _, model in pairs]
    best = best_in(rows, {4: values}, groups=[each.name for each, _ in pairs])
    return Table(titles, rows, (*needed, *notes), best, left=(0, 1))


def _slice_cells(each: SliceResult, model: ModelOnSlice, marks: dict[str, str], unit: Unit) -> tuple[str, ...]:
    nll = loss(model, unit)
    gap = [DASH] * 5
    if model.gap_due_to is not None:
        delta, contribution = model.delta, model.contribution
        gap = [
            nats(delta.nll) if delta and each.n else DASH,
            nats(contribution.nll) if contribution else DASH,
            nats_interval(contribution and contribution.ci95),
            gap_cell(model.gap_due_to, marks),
            interval_cell(model.gap_due_to),
        ]
    return (f"{each.n:,}", percent(each.share), nll, *gap, DASH if each.ar_hits is None else percent(each.ar_hits))


def tables_of(gap: Gap) -> list[Table]:
    """All tables of a result, in the order to show them."""
    slices = [slices_table(gap.slices, threshold=gap.threshold, unit=gap.unit)] if gap.slices else []
    return [*main_tables(gap), *slices]


def main_tables(gap: Gap) -> list[Table]:
    """Those that follow τ."""
    return [table for table in (gap_table(gap), closed_table(gap)) if table is not None]


def csv_text(gap: Gap) -> str:
    """One line a model; a field without a value is empty. NLLs, differences and their intervals are in nats per
    ``unit``."""
    worth = {"documents": gap.documents, "effective_documents": gap.effective_documents, "unit": gap.unit}
    return csv_of([_record(row) | worth for row in gap.rows])


def slices_csv(slices: Sequence[SliceResult], unit: Unit) -> str:
    """One line for each slice and model; a field without a value is empty. Differences and intervals are in nats."""
    return csv_of([_slice_record(each, model) | {"unit": unit} for each in slices for model in each.models])


def _slice_record(each: SliceResult, model: ModelOnSlice) -> dict[str, Any]:
    record = {"slice": each.name, "n": each.n, "share": each.share, "ar_hits": each.ar_hits}
    record |= {name: getattr(model, name) for name in ("model", "reference", "nll", "ppl")}
    for name in ("delta", "contribution"):
        difference = getattr(model, name)
        record |= {f"{name}_nll": getattr(difference, "nll", None), **ends_of(f"{name}_nll", difference)}
    due = model.gap_due_to
    record |= {f"gap_due_to_{name}": getattr(due, name, None) for name in ("value", "raw", "case", "unresolved")}
    return record | ends_of("gap_due_to", due) | {"where": each.where, "title": each.title, "note": each.note}


def gap_cell(due: GapShare | None, marks: dict[str, str] | None = None) -> str:
    """``73.1%``, ``(73.1%)`` where it is unresolved; a dash for the reference and for a model without a gap.

    ``marks``: those of `marks_of`, which follow it.
    """
    if due is None:
        return DASH
    text = DASH if due.value is None else percent(due.value)
    text = f"({text})" if due.value is not None and due.unresolved else text
    return text + "".join((marks or {}).get(reason, "") for reason in _reasons(due))


def interval_cell(due: GapShare | None) -> str:
    """``70.2–75.4%``."""
    return DASH if due is None or due.value is None or due.ci95 is None else percent_range(*due.ci95)


def marks_of(shares: Iterable[GapShare | None]) -> dict[str, str]:
    """A letter for each note that these shares of a gap need, in their order."""
    reasons = dict.fromkeys(reason for due in shares if due is not None for reason in _reasons(due))
    return dict(zip(reasons, MARKS, strict=False))


def notes_of(marks: dict[str, str], hits: str) -> list[str]:
    """The notes to `marks_of`. ``hits``: what the tokens of the slice are called."""
    return [f"{mark} {reason.format(hits=hits)}." for reason, mark in marks.items()]


def _scope(gap: Gap) -> str:
    row = gap.rows[0]
    scope = f"Perplexity (NLL in nats) on {row.overall.n:,} scored tokens; "
    if gap.unit == "byte":
        scope = (
            f"Bits per byte (NLL in nats per byte) on {row.overall.n:,} bytes: the tokenizers differ, so text is "
            "compared between the token ends that all of them share; hits are tokens of the reference's; "
        )
    share = percent(row.share_ar_hits)
    if gap.index is None or gap.threshold is None:
        scope += f"no index: every repeated bigram counts, {share} of the {gap.unit}s"
    else:
        proxy = " (proxy: not counted from the training documents)" if gap.index.proxy else ""
        scope += (
            f"AR hits are {share} of {'them' if gap.unit == 'token' else 'the bytes'}: bigrams repeated in the window "
            f"and seen at most {threshold_text(gap.threshold)} times in training{proxy}"
        )
    return f"{scope}. Reference: {gap.reference}."


def few_documents(gap: Gap) -> list[str]:
    """A note where the documents are too few for the intervals; a single one has none, and the table says so."""
    if gap.documents in (None, 1) or gap.effective_documents is None or gap.effective_documents >= FEW:
        return []
    return [
        f"{gap.documents:,} documents, worth {int(gap.effective_documents)} of equal size: with fewer than {FEW} the "
        "intervals are too narrow."
    ]


def _reasons(due: GapShare) -> list[str]:
    """The notes that a percentage needs."""
    reasons = [CASES[due.case]] if due.case in CASES else []
    if due.case == "explained" and due.raw is not None and due.raw > 1:
        reasons.append(CAPPED)
    if due.unresolved and due.unresolved not in NO_INTERVAL:
        reasons.append(f"unresolved: {due.unresolved}")
    elif due.reason and due.case in ("explained", "reversed"):
        reasons.append(NO_INTERVAL[due.reason])
    return reasons


def _closed_cell(share: ClosedShare | None) -> str:
    """``97.4% (96.1%)``: in perplexity (in NLL)."""
    if share is None or share.ppl is None or share.nll is None:
        return DASH
    return f"{percent(share.ppl)} ({percent(share.nll)})"


def _record(row: GapRow) -> dict[str, Any]:
    """A row as the fields of a CSV line."""
    due = row.gap_due_to_ar
    record = {name: getattr(row, name) for name in ("model", "reference", "parameters", "run")} | scores_of(row)
    record |= {f"gap_due_to_ar_{name}": getattr(due, name, None) for name in ("value", "raw", "case", "unresolved")}
    record |= ends_of("gap_due_to_ar", due)
    for name, delta in (("delta", row.delta), ("delta_ar", row.delta_ar)):
        record |= {f"{name}_nll": getattr(delta, "nll", None), **ends_of(f"{name}_nll", delta)}
    if row.closed is not None:
        record["closed_base"] = row.closed.base
        for name, share in (("overall", row.closed.overall), ("ar_hits", row.closed.ar_hits)):
            record |= {f"closed_{name}_{unit}": getattr(share, unit, None) for unit in ("ppl", "nll")}
    return record


def scores_of(row: GapRow) -> dict[str, Any]:
    """The tokens, NLL and perplexity of each slice, and the share of the AR hits."""
    slices = (("overall", row.overall), ("ar_hits", row.ar_hits), ("other", row.other))
    scores = {f"{name}_{key}": getattr(part, key) for name, part in slices for key in ("n", "nll", "ppl")}
    return scores | {"share_ar_hits": row.share_ar_hits}


def ends_of(name: str, value: GapShare | Delta | None) -> dict[str, float | None]:
    """Both ends of a 95% interval."""
    low, high = (None, None) if value is None or value.ci95 is None else value.ci95
    return {f"{name}_low": low, f"{name}_high": high}
