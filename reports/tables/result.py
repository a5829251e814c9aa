"""The result as a table in the form of the paper's Table 1, and its slices, for a terminal, Markdown, LaTeX and CSV.

A slice's cell reads ``11.01 (2.40)``: perplexity (NLL), or bits per byte (NLL). An em dash means that there is no
number; a raised letter after a percentage points to the note that explains it. A percentage in parentheses is
unresolved: it must not be claimed.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from argap.metric.intervals import FEW, contains_zero
from argap.metric.share import case_of, unresolved_of
from argap.records import ClosedShare, Estimate, Gap, GapRow, Interval, Part, Unit
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
    slices, on_hits = (gap.on_all, gap.on_hits, gap.on_other), gap.on_hits.estimates
    marks = marks_of(on_hits.values())
    hits, due = ("AR hits", "% of gap due to AR") if gap.index else ("Repeated", "% of gap due to repeats")
    titles = ("Model", "Params", "Overall", hits, f"Other {gap.unit}s", due, "95% interval")
    rows = tuple(
        (
            row.model,
            parameters(row.parameters),
            *(loss(part[row.model], gap.unit) for part in slices),
            gap_cell(on_hits[row.model], marks),
            interval_cell(on_hits[row.model]),
        )
        for row in gap.rows
    )
    notes = (
        _scope(gap),
        *few_documents(gap),
        *notes_of(marks, gap.hits),
    )
    losses = {
        column: [None if model == gap.reference else part[model].nll for model in gap.models]
        for column, part in enumerate(slices, 2)
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
    if contains_zero(gap.on_all[base].delta_ci95):
        notes.append("Unresolved: the interval of that gap contains 0.")
    overall = [share.overall and share.overall.ppl for share in closed.values()]
    on_hits = [share.ar_hits and share.ar_hits.ppl for share in closed.values()]
    return Table(columns, rows, tuple(notes), best_in(rows, {1: overall, 2: on_hits}, highest=True))


def slices_table(
    slices: Sequence[Part],
    *,
    threshold: int | None,
    models: Sequence[str] | None = None,
    unit: Unit = "token",
    notes: Sequence[str] = (),
) -> Table:
    """One row for each model and slice; ``models``: some of them; ``unit``: what ``n`` counts; ``notes``: printed below
    those that the table needs."""
    chosen = [model for model in slices[0].estimates if models is None or model in models]
    pairs = [(part, part[model]) for model in chosen for part in slices]
    marks = marks_of(each for _, each in pairs)
    rows = [(each.model, part.bin, *_slice_cells(part, each, marks, unit)) for part, each in pairs]
    hits = "repeated in the window"
    if threshold is not None:
        hits += f" and seen at most {threshold_text(threshold)} times in training"
    reference = next(iter(slices[0].estimates))
    needed = [
        f"ΔNLL in nats{' per byte' if unit == 'byte' else ''} on the slice's {unit}s, to {reference}; part of gap: "
        f"share × ΔNLL; AR hits: the share of the slice's {unit}s that are {hits}. Slices may overlap.",
        *notes_of(marks, f"slice's {unit}s"),
        *(
            f"{part.bin}: {about.title and about.title + '. '}{about.where}{about.note and f' ({about.note})'}"
            for part in slices
            if (about := part.about).where
        ),
    ]
    titles = ("Model", "Slice", f"{unit.capitalize()}s", "Share", loss_name(unit), *SLICE_TITLES)
    values = [None if each.model == reference else each.nll for _, each in pairs]
    best = best_in(rows, {4: values}, groups=[part.bin for part, _ in pairs])
    return Table(titles, rows, (*needed, *notes), best, left=(0, 1))


def _slice_cells(part: Part, each: Estimate, marks: dict[str, str], unit: Unit) -> tuple[str, ...]:
    hits = part.about.ar_hits
    return (
        f"{each.n:,}",
        percent(each.share_of_tokens),
        loss(each, unit),
        DASH if each.delta is None or not each.n else nats(each.delta),
        DASH if each.contribution is None else nats(each.contribution),
        nats_interval(each.contribution_ci95),
        gap_cell(each, marks),
        interval_cell(each),
        DASH if hits is None else percent(hits),
    )


def tables_of(gap: Gap) -> list[Table]:
    """All tables of a result, in the order to show them."""
    slices = [slices_table(gap.named, threshold=gap.threshold, unit=gap.unit)] if gap.named else []
    return [*main_tables(gap), *slices]


def main_tables(gap: Gap) -> list[Table]:
    """Those that follow τ."""
    return [table for table in (gap_table(gap), closed_table(gap)) if table is not None]


def csv_text(gap: Gap) -> str:
    """One line a model; a field without a value is empty. NLLs, differences and their intervals are in nats per
    ``unit``."""
    worth = {"documents": gap.documents, "effective_documents": gap.effective_documents, "unit": gap.unit}
    return csv_of([_record(row, gap) | worth for row in gap.rows])


def slices_csv(slices: Sequence[Part], unit: Unit) -> str:
    """One line for each slice and model; a field without a value is empty. Differences and intervals are in nats."""
    return csv_of([_slice_record(part, each) | {"unit": unit} for part in slices for each in part.estimates.values()])


def _slice_record(part: Part, each: Estimate) -> dict[str, Any]:
    about = part.about
    return {
        "slice": part.bin,
        "n": each.n,
        "share": each.share_of_tokens,
        "ar_hits": about.ar_hits,
        "model": each.model,
        "reference": each.model == next(iter(part.estimates)),
        "nll": each.nll,
        "ppl": each.ppl,
        "delta_nll": each.delta,
        **ends_of("delta_nll", each.delta_ci95),
        "contribution_nll": each.contribution,
        **ends_of("contribution_nll", each.contribution_ci95),
        **due_of("gap_due_to", each),
        "where": about.where,
        "title": about.title,
        "note": about.note,
    }


def due_of(name: str, each: Estimate) -> dict[str, Any]:
    """The share of the gap as fields of a CSV line."""
    due = {"value": each.paper_rule, "raw": each.share, "case": case_of(each), "unresolved": unresolved_of(each)}
    return {f"{name}_{key}": value for key, value in due.items()} | ends_of(name, each.share_ci95)


def gap_cell(due: Estimate, marks: dict[str, str] | None = None) -> str:
    """``73.1%``, ``(73.1%)`` where it is unresolved; a dash for the reference and for a model without a gap.

    ``marks``: those of `marks_of`, which follow it.
    """
    text = DASH if due.paper_rule is None else percent(due.paper_rule)
    text = f"({text})" if due.paper_rule is not None and unresolved_of(due) else text
    return text + "".join((marks or {}).get(reason, "") for reason in _reasons(due))


def interval_cell(due: Estimate) -> str:
    """``70.2–75.4%``."""
    return DASH if due.paper_rule is None or due.share_ci95 is None else percent_range(*due.share_ci95)


def marks_of(shares: Iterable[Estimate]) -> dict[str, str]:
    """A letter for each note that these shares of a gap need, in their order."""
    reasons = dict.fromkeys(reason for due in shares for reason in _reasons(due))
    return dict(zip(reasons, MARKS, strict=False))


def notes_of(marks: dict[str, str], hits: str) -> list[str]:
    """The notes to `marks_of`. ``hits``: what the tokens of the slice are called."""
    return [f"{mark} {reason.format(hits=hits)}." for reason, mark in marks.items()]


def _scope(gap: Gap) -> str:
    scope = f"Perplexity (NLL in nats) on {gap.on_all.n:,} scored tokens; "
    if gap.unit == "byte":
        scope = (
            f"Bits per byte (NLL in nats per byte) on {gap.on_all.n:,} bytes: the tokenizers differ, so text is "
            "compared between the token ends that all of them share; hits are tokens of the reference's; "
        )
    share = percent(gap.on_hits.share_of_tokens)
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


def _reasons(due: Estimate) -> list[str]:
    """The notes that a percentage needs."""
    case, doubt = case_of(due), unresolved_of(due)
    reasons = [CASES[case]] if case in CASES else []
    if case == "explained" and due.share is not None and due.share > 1:
        reasons.append(CAPPED)
    if doubt and doubt not in NO_INTERVAL:
        reasons.append(f"unresolved: {doubt}")
    elif due.reason in NO_INTERVAL and case in ("explained", "reversed"):
        reasons.append(NO_INTERVAL[due.reason])
    return reasons


def _closed_cell(share: ClosedShare | None) -> str:
    """``97.4% (96.1%)``: in perplexity (in NLL)."""
    if share is None or share.ppl is None or share.nll is None:
        return DASH
    return f"{percent(share.ppl)} ({percent(share.nll)})"


def _record(row: GapRow, gap: Gap) -> dict[str, Any]:
    """A model as the fields of a CSV line."""
    whole, hits = gap.on_all[row.model], gap.on_hits[row.model]
    record = {
        "model": row.model,
        "reference": row.model == gap.reference,
        "parameters": row.parameters,
        "run": row.run,
        **scores_of(row.model, gap),
        **due_of("gap_due_to_ar", hits),
        "delta_nll": whole.contribution,
        **ends_of("delta_nll", whole.contribution_ci95),
        "delta_ar_nll": hits.contribution,
        **ends_of("delta_ar_nll", hits.contribution_ci95),
    }
    if row.closed is not None:
        record["closed_base"] = row.closed.base
        for name, share in (("overall", row.closed.overall), ("ar_hits", row.closed.ar_hits)):
            record |= {f"closed_{name}_{unit}": getattr(share, unit, None) for unit in ("ppl", "nll")}
    return record


def scores_of(model: str, gap: Gap) -> dict[str, Any]:
    """The tokens, NLL and perplexity of each slice, and the share of the AR hits."""
    slices = (("overall", gap.on_all), ("ar_hits", gap.on_hits), ("other", gap.on_other))
    scores = {f"{name}_{key}": getattr(part[model], key) for name, part in slices for key in ("n", "nll", "ppl")}
    return scores | {"share_ar_hits": gap.on_hits.share_of_tokens}


def ends_of(name: str, ends: Interval | None) -> dict[str, float | None]:
    """Both ends of a 95% interval."""
    low, high = ends or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}
