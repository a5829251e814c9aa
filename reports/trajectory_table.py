"""The trajectory of recall as a table: NLL on AR hits and on other tokens, and the share of the gap, along training."""

import pandas as pd

from argap.records import Gap
from argap.reports.formats import Column, Table
from argap.reports.numbers import DASH, percent, short
from argap.suite.trajectory import share_along


def trajectory_table(trajectory: pd.DataFrame, reference: str, gap: Gap) -> Table:
    """One row for each number of training tokens, three columns a model, the reference's first without a share.

    ``trajectory``: with `argap.suite.trajectory.COLUMNS`; ``gap`` says what the hits are, and the unit.
    """
    models = [reference, *(name for name in trajectory["model"].unique() if name != reference)]
    columns, cells = [Column("Training tokens")], {}
    for model in models:
        columns += [Column(f"{model}: {gap.hits}"), Column(f"other {gap.unit}s")]
        for _, row in trajectory.loc[trajectory["model"] == model].iterrows():
            cells[model, row["tokens"]] = [_nll(row["nll_ar_hits"]), _nll(row["nll_other"])]
        if model != reference:
            columns.append(Column(f"gap due to {'AR' if gap.index else 'repeats'}"))
            shares = dict(zip(*share_along(trajectory, model, reference), strict=True))
            for tokens in trajectory.loc[trajectory["model"] == model, "tokens"]:
                share = shares.get(tokens, float("nan"))
                cells[model, tokens].append(DASH if share != share else percent(share, 0))
    rows = tuple(
        (
            short(tokens),
            *(
                cell
                for model in models
                for cell in cells.get((model, tokens), [DASH] * (2 if model == reference else 3))
            ),
        )
        for tokens in sorted(trajectory["tokens"].unique())
    )
    note = f"NLL in nats per {gap.unit}; the gap is to {reference} after the same number of training tokens."
    return Table(tuple(columns), rows, (note,))


def _nll(value: float) -> str:
    return DASH if value != value else f"{value:.2f}"
