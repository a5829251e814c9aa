"""The result in words: one sentence a model, for each of the four cases of the metric."""

from typing import Any

from argap.reports.tables import nats, percent, percent_range

Row = dict[str, Any]


def headline(row: Row, reference: str) -> str:
    """What the table's row says, for people who read nothing else. ``row``: not the reference's."""
    model, share = row["model"], percent(row["share_ar_hits"])
    due = row["gap_due_to_ar"]
    if row["ar_hits"]["n"] == 0:
        return f"No token here is an AR hit: none of {model}'s gap to {reference} can be associative recall."
    if due["case"] == "no_gap":
        return f"{model} has no gap to {reference}: it is at least as good overall and on the AR hits."
    if due["case"] == "recall_only":
        return (
            f"{model} is at least as good as {reference} overall, but worse on the {share} of tokens that are AR hits."
        )
    if due["case"] == "reversed":
        return f"{model} is worse than {reference} overall, but better on the {share} of tokens that are AR hits."
    interval = due["ci95"]
    within = f" (95% interval {percent_range(*interval)})" if interval else " (gap not resolved)"
    whole = percent(due["value"], 0) if due["value"] < 1 else "All"
    return f"{whole} of {model}'s gap to {reference}{within} sits on the {share} of tokens that are AR hits."


def detail(row: Row) -> str:
    """The gap in nats, as a second sentence."""
    delta, part = row["delta"], row["delta_ar"]
    return (
        f"Gap: {nats(delta['nll'])} nats per token (95% interval {nats(delta['ci95'][0])} to "
        f"{nats(delta['ci95'][1])}), of which AR hits {nats(part['nll'])} "
        f"({nats(part['ci95'][0])} to {nats(part['ci95'][1])})."
    )
