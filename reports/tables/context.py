"""Show the context-use curve of each model as a table: its loss on the same tokens with more and more context."""

from argap.records import ContextUse, Gap
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import DASH, mean_nll, signed, signed_range

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
