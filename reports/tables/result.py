"""Show a result as tables: the paper's Table 1 with ΔNLL, where the difference lies, and slices.

A slice's cell reads ``11.01 (2.40)``: perplexity (NLL), or bits per byte (NLL). Differences are signed, in nats:
positive if a model is behind the reference, negative if it is ahead. An em dash means that there is no number. A
raised letter after a percentage points to its note. A percentage in parentheses is unresolved and must not be claimed.
"""

from collections.abc import Iterable, Sequence

from argap.metric.bins import ladder_bounds
from argap.metric.share import NO_SHARE, contains_zero
from argap.records import (
    COPY,
    INDUCTION,
    MISS,
    NEW_KEY,
    RIGHT,
    ClosedShare,
    ContextUse,
    Estimate,
    Gap,
    GapRow,
    Interval,
    Part,
    Unit,
)
from argap.reports.tables.fidelity import fidelity_table
from argap.reports.tables.formats import ENDS, MARKS, Table, best_in, csv_of
from argap.reports.tables.numbers import (
    DASH,
    MANY,
    gap_word,
    loss,
    loss_name,
    mean_nll,
    parameters,
    percent,
    percent_range,
    signed,
    signed_range,
    threshold_text,
)
from argap.results.ladder import ladder

FEW = 20
"""Effective number of documents below which a note says that few decide."""
SLICE_TITLES = ("ΔNLL", "Contribution", ENDS, "Share", ENDS, "AR hits")
LEVEL_NOTE = "level with the reference: the interval of ΔNLL contains 0, so there is nothing to take a share of"
AGAINST = "behind here though ahead overall: by the paper's rule 100%"
ABOVE = "above 100%: all other tokens go the other way; the paper's rule caps it at 100%"


def gap_table(gap: Gap) -> Table:
    """Return one row per model: parameters, loss on all tokens, AR hits and others, and ΔNLL with its interval."""
    slices = (gap.on_all, gap.on_hits, gap.on_other)
    hits = "AR hits" if gap.index else "Repeated"
    titles = ("Model", "Params", "Overall", hits, f"Other {gap.unit}s", "ΔNLL", ENDS)
    rows = tuple(
        (
            row.model,
            parameters(row.parameters),
            *(loss(part[row.model], gap.unit) for part in slices),
            *nats_cells(gap.on_all[row.model]),
        )
        for row in gap.rows
    )
    notes = (_scope(gap), *interval_notes(gap))
    losses = {
        column: [None if model == gap.reference else part[model].nll for model in gap.models]
        for column, part in enumerate(slices, 2)
    }
    return Table(titles, rows, notes, best_in(rows, losses), spare=(1,))


def where_table(gap: Gap) -> Table | None:
    """Return the contributions of AR hits and other tokens to each model's ΔNLL, and the share of the hits.

    None if only the reference was scored.
    """
    if not gap.compared:
        return None
    models, hits = [row.model for row in gap.compared], gap.on_hits
    marks = marks_of(hits[model] for model in models)
    title = "AR hits" if gap.index else "Repeated"
    titles = ("Model", title, ENDS, f"% of {gap_word(gap)}", ENDS, f"Other {gap.unit}s", ENDS)
    rows = tuple(
        (
            model,
            *nats_cells(hits[model]),
            share_cell(hits[model], marks),
            interval_cell(hits[model]),
            *nats_cells(gap.on_other[model]),
        )
        for model in models
    )
    per = "token" if gap.unit == "token" else "byte"
    scope = f"Contributions to ΔNLL in nats per {per}: a set's share of the {gap.unit}s times ΔNLL on it."
    return Table(titles, rows, (scope, *notes_of(marks)))


def recall_table(gap: Gap) -> Table | None:
    """Return each model on all tokens, the AR hits up the ladder of τ, misses, new keys, and what induction predicts.

    Beyond `MANY` models there is one row per model, with contributions only. None if only the reference was scored.
    """
    if not gap.compared:
        return None
    parts = _recall_parts(gap)
    notes = [_copy_note(gap)]
    if len(gap.compared) > MANY:
        titles = ("Model", *parts)
        rows = tuple((row.model, *(nats_cells(part[row.model])[0] for part in parts.values())) for row in gap.compared)
        return Table(titles, rows, (f"Contributions to ΔNLL in nats per {gap.unit}. {notes[0]}",))
    marks = marks_of(part[row.model] for row in gap.compared for part in parts.values())
    rows = tuple(
        (
            row.model,
            name,
            percent(part.share_of_tokens),
            *nats_cells(part[row.model]),
            share_cell(part[row.model], marks),
            interval_cell(part[row.model]),
        )
        for row in gap.compared
        for name, part in parts.items()
    )
    spare = (2, 0) if len(gap.compared) == 1 else (2,)  # a single model is named above
    titles = ("Model", f"{gap.unit.capitalize()}s", f"% of {gap.unit}s", "Contribution", ENDS)
    return Table((*titles, f"% of {gap_word(gap)}", ENDS), rows, (*notes, *notes_of(marks)), left=(0, 1), spare=spare)


def _recall_parts(gap: Gap) -> dict[str, Part]:
    """Return the sets of tokens of `recall_table` by name."""
    scaled = ladder_bounds(gap.index)[1:]
    parts = {"all": gap.on_all}
    for tau, part in ladder(gap).items():
        name = "repeated (τ = ∞)" if tau is None else f"AR hits, τ = {threshold_text(tau)}"
        parts[f"{name} (scaled)" if tau in scaled else name] = part
    copies = {part.bin: part for part in (*gap.parts(COPY), *gap.parts(INDUCTION))}
    of_copies = {"misses": MISS, "new keys": NEW_KEY, "predicted by induction": RIGHT}
    return parts | {name: copies[each] for name, each in of_copies.items() if each in copies}


def _copy_note(gap: Gap) -> str:
    """Explain the sets of `recall_table`."""
    if not gap.parts(COPY):
        return (
            "No misses, new keys or induction: this result has no labels of what can be copied; `argap label` adds "
            "them if its tokens are kept."
        )
    return (
        f"Repeated bigrams, misses and new keys make up all {gap.unit}s. Misses: the previous token occurred before in "
        "the window, never followed by this one. New keys: it did not occur. Predicted by induction: this token "
        "followed the longest context that occurred before."
    )


def closed_table(gap: Gap) -> Table | None:
    """Return the share of a base model's gap that each other model closes; None for a comparison without a base."""
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
    """Return one row per model and slice.

    ``models``: show only these. ``unit``: the unit that ``n`` counts. ``notes``: further notes, printed last.
    """
    chosen = [model for model in slices[0].estimates if models is None or model in models]
    pairs = [(part, part[model]) for model in chosen for part in slices]
    marks = marks_of(each for _, each in pairs)
    rows = [(each.model, part.bin, *_slice_cells(part, each, marks, unit)) for part, each in pairs]
    hits = "repeated in the window"
    if threshold is not None:
        hits += f" and seen at most {threshold_text(threshold)} times in training"
    reference = next(iter(slices[0].estimates))
    needed = [
        f"ΔNLL in nats{' per byte' if unit == 'byte' else ''} on the slice's {unit}s, to {reference}; contribution: "
        f"% of {unit}s × ΔNLL; share: of the whole ΔNLL; AR hits: the share of the slice's {unit}s that are {hits}. "
        "Slices may overlap.",
        *notes_of(marks),
        *(
            f"{part.bin}: {about.title and about.title + '. '}{about.where}{about.note and f' ({about.note})'}"
            for part in slices
            if (about := part.about).where
        ),
    ]
    titles = ("Model", "Slice", f"{unit.capitalize()}s", f"% of {unit}s", loss_name(unit), *SLICE_TITLES)
    values = [None if each.model == reference else each.nll for _, each in pairs]
    best = best_in(rows, {4: values}, groups=[part.bin for part, _ in pairs])
    return Table(titles, rows, (*needed, *notes), best, left=(0, 1), spare=(2, 10, 4, 5))


def _slice_cells(part: Part, each: Estimate, marks: dict[str, str], unit: Unit) -> tuple[str, ...]:
    hits = part.about.ar_hits
    return (
        f"{each.n:,}",
        percent(each.share_of_tokens),
        loss(each, unit),
        DASH if each.delta is None or not each.n else signed(each.delta),
        *nats_cells(each),
        share_cell(each, marks),
        interval_cell(each),
        DASH if hits is None else percent(hits),
    )


def tables_of(gap: Gap) -> list[Table]:
    """Return all tables of a result in display order, first how closely models follow the reference, if shown."""
    slices = slices_table(gap.named, threshold=gap.threshold, unit=gap.unit) if gap.named else None
    further = (recall_table(gap), context_table(gap), slices)
    return [table for table in (fidelity_table(gap), *main_tables(gap), *further) if table is not None]


def main_tables(gap: Gap) -> list[Table]:
    """Return the tables that depend on τ."""
    return [table for table in (gap_table(gap), where_table(gap), closed_table(gap)) if table is not None]


def csv_text(gap: Gap) -> str:
    """Return one CSV line per model; fields without a value are empty.

    NLLs, differences and their intervals are in nats per ``unit``.
    """
    return csv_of([_record(row, gap) | {"documents": gap.documents, "unit": gap.unit} for row in gap.rows])


Fields = dict[str, str | float | None]
"""A line of CSV."""


def slices_csv(slices: Sequence[Part], unit: Unit) -> str:
    """Return one CSV line per slice and model; fields without a value are empty, differences and intervals in nats."""
    return csv_of([_slice_record(part, each) | {"unit": unit} for part in slices for each in part.estimates.values()])


def _slice_record(part: Part, each: Estimate) -> Fields:
    about = part.about
    record = {"slice": part.bin, "n": each.n, "share_of_tokens": each.share_of_tokens, "ar_hits": about.ar_hits}
    record |= {"model": each.model, "reference": each.model == next(iter(part.estimates))}
    record |= {"nll": each.nll, "ppl": each.ppl} | figures_of("", each)
    return record | {"where": about.where, "title": about.title, "note": about.note}


def figures_of(prefix: str, each: Estimate) -> Fields:
    """Return difference, contribution and share, with their intervals, as fields of a CSV line."""
    figures: Fields = {}
    for name in ("delta", "contribution", "share"):
        figures |= {f"{prefix}{name}": getattr(each, name)} | ends_of(f"{prefix}{name}", getattr(each, f"{name}_ci95"))
    return figures | {f"{prefix}paper_rule": each.paper_rule, f"{prefix}reason": each.reason}


def nats_cells(each: Estimate) -> tuple[str, str]:
    """Format a contribution and its interval: ``+0.506``, ``+0.470 to +0.540``."""
    return DASH if each.contribution is None else signed(each.contribution), signed_range(each.contribution_ci95)


def share_cell(each: Estimate, marks: dict[str, str] | None = None) -> str:
    """Format a share as ``73.1%``, or ``(73.1%)`` if it is unresolved; a dash for the reference and for level models.

    ``marks``: note letters by reason, from `marks_of`, appended to the cell.
    """
    text = DASH if each.share is None else percent(each.share)
    text = f"({text})" if each.share is not None and each.reason else text
    return text + "".join((marks or {}).get(reason, "") for reason in _reasons(each))


def interval_cell(each: Estimate) -> str:
    """Format the interval of a share: ``70.2–75.4%``; a dash also for one without length, as of all tokens."""
    ends = each.share_ci95
    return DASH if ends is None or ends[0] == ends[1] else percent_range(*ends)


def marks_of(shares: Iterable[Estimate]) -> dict[str, str]:
    """Assign a letter to each note that these shares need, in order of appearance."""
    reasons = dict.fromkeys(reason for each in shares for reason in _reasons(each))
    return dict(zip(reasons, MARKS, strict=False))


def notes_of(marks: dict[str, str]) -> list[str]:
    """Return the notes for the letters of `marks_of`."""
    return [f"{mark} {reason}." for reason, mark in marks.items()]


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


def interval_notes(gap: Gap) -> list[str]:
    """Say what the intervals cover, and if they rest on few documents; nothing for one document, which has none."""
    if gap.documents in (None, 1):
        return []
    of_count: dict[int, list[str]] = {}
    for model, seeds in gap.seeds.items():
        of_count.setdefault(len(seeds), []).append(model)
    several = "; ".join(f"{k} of {', '.join(models)}" for k, models in sorted(of_count.items(), reverse=True) if k > 1)
    note = f"95% intervals are Student-t over {gap.documents:,} documents"
    if several:
        note += f" and seeds. Figures are means over seeds: {several}"
        note += "; the others take the pooled variance over seeds" if 1 in of_count else ""
    notes = [f"{note}."]
    if gap.worth and min(gap.worth.values()) < FEW:
        ordered = sorted(gap.worth, key=gap.worth.__getitem__)
        low, high = (f"{gap.worth[model]:.0f} ({model})" for model in (ordered[0], ordered[-1]))
        ends = low if len(gap.worth) == 1 else f"{low} to {high}"
        notes.append(
            f"Few documents decide: weighted by their parts of the differences, they count as {ends}. Intervals hold "
            "only for texts with a similar mix of documents."
        )
    return notes


def _reasons(each: Estimate) -> list[str]:
    """Return the notes that a share needs."""
    if each.reason == NO_SHARE and each.share is None:
        return [LEVEL_NOTE]
    rule = []
    if each.share is not None and each.paper_rule == 1 and each.share != 1:
        rule = [ABOVE if each.share > 1 else AGAINST]
    return rule + ([f"unresolved: {each.reason}"] if each.reason else [])


def _closed_cell(share: ClosedShare | None) -> str:
    """Format the share that is closed, in perplexity (in NLL): ``97.4% (96.1%)``."""
    if share is None or share.ppl is None or share.nll is None:
        return DASH
    return f"{percent(share.ppl)} ({percent(share.nll)})"


def _record(row: GapRow, gap: Gap) -> Fields:
    """Return a model as the fields of a CSV line."""
    whole, hits = gap.on_all[row.model], gap.on_hits[row.model]
    record = {"model": row.model, "reference": row.model == gap.reference, "direction": row.direction}
    record |= {"parameters": row.parameters, "run": row.run} | scores_of(row.model, gap)
    record |= {"delta": whole.delta, **ends_of("delta", whole.delta_ci95), "worth": whole.worth}
    record |= {"seeds": len(gap.seeds[row.model])} | figures_of("ar_hits_", hits)
    if row.closed is not None:
        record["closed_base"] = row.closed.base
        for name, share in (("overall", row.closed.overall), ("ar_hits", row.closed.ar_hits)):
            record |= {f"closed_{name}_{unit}": getattr(share, unit, None) for unit in ("ppl", "nll")}
    return record


def scores_of(model: str, gap: Gap) -> Fields:
    """Return the tokens, NLL and perplexity of each slice, and the AR hits' share of the tokens."""
    slices = (("overall", gap.on_all), ("ar_hits", gap.on_hits), ("other", gap.on_other))
    scores = {f"{name}_{key}": getattr(part[model], key) for name, part in slices for key in ("n", "nll", "ppl")}
    return scores | {"ar_hits_share_of_tokens": gap.on_hits.share_of_tokens}


def ends_of(name: str, ends: Interval | None) -> dict[str, float | None]:
    """Return both ends of a 95% interval as fields of a CSV line."""
    low, high = ends or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


WHOLE = "whole window"


def context_name(point: ContextUse) -> str:
    """Return the context of a point in words."""
    return WHOLE if point.context is None else f"{point.context:,} tokens"


def context_table(gap: Gap) -> Table | None:
    """Return one row per model and context; None for a result without passes over a short context."""
    if not gap.context:
        return None
    rows = tuple(
        (
            each.model,
            context_name(each),
            mean_nll(each.nll),
            DASH if each.gain is None else signed(each.gain),
            signed_range(each.gain_ci95),
            DASH if each.delta is None else signed(each.delta),
            signed_range(each.delta_ci95),
        )
        for each in gap.context
    )
    longest = max(each.context for each in gap.context if each.context)
    note = (
        f"NLL on the {gap.context[0].n:,} tokens with at least {longest:,} before them. With a context of N tokens "
        "each sees from N/2 to N − 1 of them. Gain: by how much the whole window lowers the NLL; ΔNLL: to "
        f"{gap.reference} with the same context; in nats per token, with 95% intervals over documents."
    )
    titles = ("Model", "Context", "NLL", "Gain", "95% interval", "ΔNLL", "95% interval")
    return Table(titles, rows, (note,), left=(0, 1))
