"""Slices as tables: for a terminal, Markdown, LaTeX, CSV and the page."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from argap.records import ModelOnSlice, SliceResult, Unit
from argap.reports.formats import Column, Form, Table, best_in, csv_of, print_tables
from argap.reports.numbers import DASH, loss, loss_name, nats, nats_interval, percent, threshold_text
from argap.reports.tables import ends_of, gap_cell, interval_cell, marks_of, notes_of

COLUMNS = ("ΔNLL", "Part of gap (nats)", "95% interval", "% of gap", "95% interval", "AR hits")


def slices_table(
    slices: Sequence[SliceResult],
    *,
    threshold: int | None,
    models: Sequence[str] | None = None,
    unit: Unit = "token",
) -> Table:
    """One row for each model and slice; ``models``: some of them; ``unit``: what ``n`` counts."""
    chosen = [k for k, model in enumerate(slices[0].models) if models is None or model.model in models]
    marks = marks_of(each.models[k].gap_due_to for k in chosen for each in slices)
    pairs = [(each, each.models[k]) for k in chosen for each in slices]
    rows = [(model.model, each.name, *_cells(each, model, marks, unit)) for each, model in pairs]
    hits = "repeated in the window"
    if threshold is not None:
        hits += f" and seen at most {threshold_text(threshold)} times in training"
    reference = next(model.model for model in slices[0].models if model.reference)
    notes = [
        f"ΔNLL in nats{' per byte' if unit == 'byte' else ''} on the slice's {unit}s, to {reference}; part of gap: "
        f"share × ΔNLL; AR hits: the share of the slice's {unit}s that are {hits}. Slices may overlap.",
        *notes_of(marks, f"slice's {unit}s"),
        *(f"{each.name}: {_words(each)}" for each in slices if each.where),
    ]
    counted = (f"{unit.capitalize()}s", "Share", loss_name(unit))
    titles = (Column("Model", "left"), Column("Slice", "left"), *map(Column, (*counted, *COLUMNS)))
    values = [None if model.reference else model.nll for _, model in pairs]
    best = best_in(rows, {4: values}, groups=[each.name for each, _ in pairs])
    return Table(titles, tuple(rows), tuple(notes), best)


def _words(each: SliceResult) -> str:
    title = f"{each.title}. " if each.title else ""
    return f"{title}{each.where}{f' ({each.note})' if each.note else ''}"


def _cells(each: SliceResult, model: ModelOnSlice, marks: dict[str, str], unit: Unit) -> tuple[str, ...]:
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


def slices_csv(slices: Sequence[SliceResult], unit: Unit = "token") -> str:
    """One line for each slice and model; a field without a value is empty. Differences and intervals are in nats."""
    records = [_record(each, model) | {"unit": unit} for each in slices for model in each.models]
    return csv_of(records, list(records[0]))


def _record(each: SliceResult, model: ModelOnSlice) -> dict[str, Any]:
    record = {"slice": each.name, "n": each.n, "share": each.share, "ar_hits": each.ar_hits}
    record |= {name: getattr(model, name) for name in ("model", "reference", "nll", "ppl")}
    for name in ("delta", "contribution"):
        difference = getattr(model, name)
        record |= {f"{name}_nll": getattr(difference, "nll", None), **ends_of(f"{name}_nll", difference)}
    due = model.gap_due_to
    record |= {f"gap_due_to_{name}": getattr(due, name, None) for name in ("value", "raw", "case", "unresolved")}
    return record | ends_of("gap_due_to", due) | {"where": each.where, "title": each.title, "note": each.note}


def print_slices(
    slices: Sequence[SliceResult],
    *,
    threshold: int | None,
    models: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    unit: Unit = "token",
    form: Form = "terminal",
) -> None:
    """Print the table and its notes, further ones last."""
    table = slices_table(slices, threshold=threshold, models=models, unit=unit)
    print_tables([replace(table, notes=(*table.notes, *notes))], form)
