"""Show a suite as tables: the gap in the form of the paper's Table 1, each member's cost, and the published shares.

Further tables show windows longer than those of training, and which learning rate suits each member
(`argap.suite.rates`).
"""

from collections.abc import Mapping
from math import isnan, nan
from pathlib import Path

import numpy as np
import pandas as pd

from argap.files.atomic import write_text
from argap.files.regular import is_there
from argap.metric.paper import HYBRID_TABLE, REFERENCE, GapCheck, check_gaps, implied
from argap.metric.threshold import PAPER_THRESHOLD
from argap.records import Gap, Part
from argap.reports.tables.formats import Table, best_in, csv_of, markdown
from argap.reports.tables.numbers import DASH, mean_nll, nats, percent, percent_range, short, signed, threshold_text
from argap.reports.tables.provenance import between_pairs
from argap.reports.tables.result import (
    Fields,
    closed_table,
    ends_of,
    figures_of,
    gap_table,
    interval_cell,
    marks_of,
    notes_of,
    scores_of,
    share_cell,
    where_table,
)
from argap.slices.cells import PREFIX
from argap.suite.config import Suite
from argap.suite.rates import TAIL, Rates, read_rates
from argap.suite.result import SeedScores, SizeResult
from argap.suite.trajectory import share_along

DOUBT = "†"
"""Marks a published percentage that contradicts its own row."""


def tables_of_size(result: SizeResult, labels: dict[str, str]) -> list[Table]:
    """Return all tables of one size: gap, share closed, seeds, cost, thresholds, rare bigrams, MQAR, and the paper's.

    Tables without data are skipped. ``labels``: names used in the paper's tables, by member.
    """
    gap = result.gap
    tables = [gap_table(gap), where_table(gap), closed_table(gap), *further_tables(result, labels).values()]
    return [table for table in tables if table is not None]


def further_tables(result: SizeResult, labels: dict[str, str]) -> dict[str, Table]:
    """Return the tables of `tables_of_size` that only suites have, by title."""
    tables = {
        "Seeds": seeds_table(result),
        "Cost": cost_table(result),
        "Three thresholds": threshold_table(result),
        "Rare bigrams": rare_table(result),
        "Beyond the training length": length_table(result),
        "Recall of pairs": recall_table(result),
        "Beside the paper": paper_table(result, labels),
    }
    return {title: table for title, table in tables.items() if table is not None}


def seeds_table(result: SizeResult) -> Table | None:
    """Return NLL, gap and share by seed for members trained from several seeds; None if there are no such members."""
    if not result.seeds:
        return None
    by_member: dict[str, list[SeedScores]] = {}
    for seed in result.seeds:
        by_member.setdefault(seed.member, []).append(seed)

    def apart(member: str, part: str) -> float:
        values = [nll for seed in by_member[member] if (nll := seed.nll[part]) is not None]
        return max(values, default=0.0) - min(values, default=0.0)

    def cell(seed: SeedScores, part: str) -> str:
        own, over = seed.nll[part], None if seed.over is None else seed.over[part]
        return DASH if own is None else nats(own) + ("" if over is None else f" ({signed(over)})")

    def share(seed: SeedScores) -> str:
        value = seed.share(result.gap.on_hits.share_of_tokens)
        return DASH if value is None or result.gap.directions.get(seed.member) == "level" else percent(value)

    rows = [(seed.name, *(cell(seed, part) for part in result.parts), share(seed)) for seed in result.seeds]
    nlls = ", ".join(f"{m} {nats(apart(m, 'overall'))} ({nats(apart(m, 'ar_hits'))})" for m in by_member)
    shares = {model: result.share_range(model) for model in result.gap.directions if model in by_member}
    ranges = "; ".join(f"{model} {percent_range(*ends)}" for model, ends in shares.items() if ends)
    notes = [
        f"NLL in nats (over {result.reference}'s of the same seed, or its first). Range over seeds, in nats (on AR "
        f"hits): {nlls}."
    ]
    if ranges:
        notes.append(
            f"Range of the share over all pairs of a seed with one of {result.reference}'s: {ranges}. A range grows "
            "with the number of seeds and is no interval; the table above has the intervals."
        )
    return Table(("Model", "Overall", "AR hits", "Other tokens", f"Share on {result.gap.hits}"), rows, notes)


def cost_table(result: SizeResult) -> Table:
    """Return parameters, FLOPs, state size and training throughput of every model in the gap table."""
    titles = ("Model", "Params", "GFLOPs", "State", "Tokens/s in training", "Training loss at the end")
    rows = []
    for model in result.gap.models:
        member = result.member(model)
        cost = (f"{member.parameters:,}", f"{member.flops / 1e9:.1f}", f"{member.state_size:,}")
        rows.append((model, *cost, f"{member.trained.tokens_per_s:,.0f}", f"{member.trained.loss:.3f}"))
    first = result.members[0]
    note = (
        f"Forward operations and state (elements a sequence) of a window of {result.seq_len:,} tokens; trained on "
        f"{first.trained.tokens:,} tokens on {first.train.device}."
    )
    return Table(titles, rows, (note,))


def recall_table(result: SizeResult) -> Table | None:
    """Return NLL on the values after repeated keys and on the tokens between pairs, by number of pairs.

    None if it was not measured. In files of format 1 the other slice also contains the keys and the first values.
    """
    scores = result.mqar()
    if scores is None:
        return None
    nll = {(row.model, row.pairs, row.slice): row.nll for row in scores.rows}

    def cell(model: str, pairs: int) -> str:
        other = nll.get((model, pairs, "other"))  # None if there are no tokens between the pairs
        return f"{nll[model, pairs, 'ar']:.2f} ({DASH if other is None else f'{other:.2f}'})"

    columns = ("Model", *(f"{pairs} pairs" for pairs in scores.pairs))
    rows = [(model, *(cell(model, pairs) for pairs in scores.pairs)) for model in scores.models]
    values = {
        column: [None if model == result.reference else nll[model, pairs, "ar"] for model in scores.models]
        for column, pairs in enumerate(scores.pairs, 1)
    }
    others = "all other tokens" if scores.format == 1 else "the tokens between the pairs"
    note = (
        f"Recall of random pairs (appendix G): nats on the value of a pair whose key returns (on {others}), "
        f"{scores.examples} examples of {scores.length:,} tokens for each number of pairs, between them "
        f"{between_pairs(scores)}. Models without a row were not measured."
    )
    return Table(columns, rows, (note,), best_in(rows, values))


def threshold_table(result: SizeResult) -> Table:
    """Return the share of the gap at three thresholds.

    They are the paper's threshold, counted in occurrences and in exposures, and the one scaled to the training tokens.
    """
    index, passes = result.gap.index, result.passes
    assert index is not None  # of a suite
    at = {int(point.bin): point for point in result.curve}
    chosen = {tau: at[tau] for tau in result.marks}
    compared = [row.model for row in result.gap.compared]
    marks = marks_of(point[model] for model in compared for point in chosen.values())
    titles = [title for tau in chosen for title in (f"τ = {threshold_text(tau)}", "95% interval")]
    rows = []
    for model in compared:
        dues = [point[model] for point in chosen.values()]
        rows.append((model, *(cell for due in dues for cell in (share_cell(due, marks), interval_cell(due)))))
    shares = [f"{percent(point.share_of_tokens)} at {threshold_text(tau)}" for tau, point in chosen.items()]
    notes = [
        f"% of gap due to AR; AR hits are {', '.join(shares[:-1])} and {shares[-1]} of the tokens. The index holds "
        f"{index.tokens:,} tokens."
    ]
    if passes != 1:
        notes.append(
            f"τ counts occurrences in one pass over the text, of which training made {passes:.2f}: "
            f"{threshold_text(PAPER_THRESHOLD)} exposures are {PAPER_THRESHOLD / passes:.0f} occurrences, and τ = "
            f"{threshold_text(result.exposed)} is the nearest bin of the curve."
        )
    return Table(("Model", *titles), rows, (*notes, *notes_of(marks)))


def rare_table(result: SizeResult) -> Table | None:
    """Return NLL on bigrams seen never or once in training, by whether the window repeats them.

    The difference isolates recall from memorised bigrams (arXiv 2312.04927, appendix G). Empty columns are left out,
    for example bigrams seen once if training read its text several times; None if no column is left.
    """
    number, cells = {bin_.high: k for k, bin_ in enumerate(result.gap.bins.frequency)}, result.means
    n = cells["n"].to_numpy()
    frequency, repeated = cells["frequency"].to_numpy(), cells["repeated"].to_numpy()
    chosen: dict[str, np.ndarray] = {}
    for seen, count in (("Never seen", 0), ("Seen once", 1)):
        if count in number:
            chosen[f"{seen}, repeated"] = (frequency == number[count]) & repeated
            chosen[f"{seen}, not repeated"] = (frequency == number[count]) & ~repeated
    sizes = {name: size for name, rows in chosen.items() if (size := int(n[rows].sum()))}
    if not sizes:
        return None
    models = result.gap.models
    nll = {
        (model, name): -cells[PREFIX + model].to_numpy()[chosen[name]].sum() / size
        for model in models
        for name, size in sizes.items()
    }

    def cell(model: str, name: str) -> str:
        own, over = nll[model, name], nll[model, name] - nll[result.reference, name]
        return f"{own:.2f}" + ("" if model == result.reference else f" ({signed(over, 2)})")

    rows = [(model, *(cell(model, name) for name in sizes)) for model in models]
    compared = [[None if model == result.reference else nll[model, name] for model in models] for name in sizes]
    counts = ", ".join(f"{size:,}" for size in sizes.values())
    note = (
        f"NLL in nats (over {result.reference}'s) by how often training saw the bigram and whether the window repeats "
        f"it; {counts} tokens."
    )
    return Table(("Model", *sizes), rows, (note,), best_in(rows, dict(enumerate(compared, 1))))


def paper_table(result: SizeResult, labels: dict[str, str]) -> Table | None:
    """Return this suite's percentages beside those published for the same mixers; None if no model has a label."""
    scales = ("70M", "125M", "360M", "1.4B")
    checks = {(check.row.model, check.row.scale): check for check in check_gaps()}
    rows, doubts = [], []
    for row in result.gap.compared:
        label = labels.get(row.model)
        if label is None:
            continue
        cells = [_published(label, scale, checks.get((label, scale))) for scale in scales]
        rows.append((row.model, share_cell(result.gap.on_hits[row.model]), *cells))
        doubts += [
            f"{DOUBT} {label} at {scale}: the perplexities of its own row give "
            f"{percent(check.gap_due_to_ar.low)} to {percent(check.gap_due_to_ar.high)}."
            for scale in scales
            if (check := checks.get((label, scale))) and not check.agrees
        ]
    if not rows:
        return None
    note = (
        "% of gap due to AR as arXiv 2312.04927 prints it (tables 4 and 5), or, in parentheses, as the perplexities of "
        "its table 2 imply it; models of other sizes, trained on other text. In parentheses under Here: unresolved."
    )
    return Table(("Model", "Here", *(f"Paper, {scale}" for scale in scales)), rows, (note, *doubts))


def trajectory_table(trajectory: pd.DataFrame, reference: str, gap: Gap) -> Table:
    """Return one row per number of training tokens and three columns per model; the reference has no share.

    ``trajectory`` has the columns `argap.suite.trajectory.COLUMNS`; ``gap`` names the hits and the unit.
    """
    models = [reference, *(name for name in trajectory["model"].unique() if name != reference)]
    columns, cells = ["Training tokens"], {}
    for model in models:
        columns += [f"{model}: {gap.hits}", f"other {gap.unit}s"]
        own = trajectory.loc[trajectory["model"] == model]
        for _, row in own.iterrows():
            cells[model, row["tokens"]] = [mean_nll(row["nll_ar_hits"]), mean_nll(row["nll_other"])]
        if model != reference:
            columns.append(f"gap due to {'AR' if gap.index else 'repeats'}")
            shares = dict(zip(*share_along(trajectory, model, reference), strict=True))
            for tokens in own["tokens"]:
                share = shares.get(tokens, nan)
                cells[model, tokens].append(DASH if isnan(share) else percent(share, 0))
    rows = []
    for tokens in sorted(trajectory["tokens"].unique()):
        row = [short(tokens)]
        for model in models:
            row += cells.get((model, tokens), [DASH] * (2 if model == reference else 3))
        rows.append(tuple(row))
    notes = [f"NLL in nats per {gap.unit}; the gap is to {reference} after the same number of training tokens."]
    return Table(columns, rows, notes, left=())


def suite_csv(results: list[SizeResult]) -> str:
    """Return one CSV line per model and size."""
    fields = ["size", "model", "parameters", "flops", "state_size", "train_tokens", "tokens_per_s"]
    slices = [f"{part}_{key}" for part in ("overall", "ar_hits", "other") for key in ("n", "nll", "ppl")]
    due = ["ar_hits_share_of_tokens", "direction", "delta", "delta_low", "delta_high"]
    due += [f"ar_hits_{name}{end}" for name in ("contribution", "share") for end in ("", "_low", "_high")]
    due += ["ar_hits_paper_rule", "ar_hits_reason", "seeds", "checkpoint", "evaluation", "documents", "worth"]
    records = []
    for result in results:
        records += [_record(result, model) for model in result.gap.models]
    return csv_of(records, [*fields, *slices, *due])


def _record(result: SizeResult, model: str) -> Fields:
    member, hits = result.member(model), result.gap.on_hits[model]
    done = member.trained
    record: Fields = {"size": result.size, "train_tokens": done.tokens, "tokens_per_s": done.tokens_per_s}
    record |= {key: getattr(member, key) for key in ("parameters", "flops", "state_size", "checkpoint", "evaluation")}
    whole, figures = result.gap.on_all[model], figures_of("ar_hits_", hits)
    record |= {"model": model, "direction": result.gap.directions.get(model), "delta": whole.delta}
    record |= {"documents": result.gap.documents, "worth": whole.worth, "seeds": len(result.gap.seeds[model])}
    record |= {name: value for name, value in figures.items() if not name.startswith("ar_hits_delta")}
    return record | ends_of("delta", whole.delta_ci95) | scores_of(model, result.gap)


def _published(label: str, scale: str, check: GapCheck | None) -> str:
    """Return the percentage that the paper prints or implies. ``check``: set if the row has a printed percentage."""
    if check is not None:
        return f"{check.row.printed}%" + ("" if check.agrees else f" {DOUBT}")
    by_model = {row.model: row for row in HYBRID_TABLE if row.scale == scale}
    value = implied(by_model[label], by_model[REFERENCE])[1].value if label in by_model else None
    return DASH if value is None else f"({percent(value)})"


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
    of_all = (
        "those of the whole training, left early"
        if rates.schedule == "whole"
        else "those of the whole training, shortened alike, which may rank the rates otherwise"
    )
    edges = [member for member in rates.members if rates.best(member) in _ends(rates.losses(member))]
    at_ends = (f"Best at an end of the rates tried, so one beyond may be better: {', '.join(edges)}.",) if edges else ()
    notes = (
        f"Mean training loss in nats per token over the last {percent(TAIL, 0)} of {first.steps:,} steps "
        f"({first.tokens:,} tokens, {rates.passes:.2f} passes over the text), by learning rate. Warm-up and decay are "
        f"{of_all}. All members see the same windows; one seed.",
        f"Gain: how much lower the loss is than at {rates.rate:g}, the suite's rate, in nats.",
        *at_ends,
        f"Trained on {', '.join(sorted({row.device for row in rates.rows}))}.",
    )
    titles = ("Model", *(f"{lr:g}" for lr in columns), "Best rate", "Gain")
    return Table(titles, rows, notes, frozenset(bold), title=f"{size}, learning rates")


def _ends(losses: Mapping[float, float | None]) -> tuple[float, ...]:
    """Return the lowest and the highest rate, unless the training at it diverged; none of a single rate."""
    ends = (min(losses), max(losses)) if len(losses) > 1 else ()
    return tuple(rate for rate in ends if losses[rate] is not None)


def _loss(value: float | None) -> str:
    return DIVERGED if value is None else nats(value)


def _gain(losses: dict[float, float | None], best: float | None, rate: float) -> str:
    usual, lowest = losses.get(rate), losses.get(best) if best is not None else None
    return DASH if usual is None or lowest is None or best == rate else signed(usual - lowest)


def write_rates(suite: Suite, out: Path) -> list[Table]:
    """Write ``rates.md`` to ``out``, with a table for each size that has a ``rates.json``; return the tables."""
    paths = {size: out / size / "rates.json" for size in suite.sizes}
    tables = [rates_table(read_rates(path), size) for size, path in paths.items() if is_there(path)]
    if tables:
        write_text(out / "rates.md", "\n".join(map(markdown, tables)))
    return tables
