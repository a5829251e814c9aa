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
    within = f" (95% interval {percent_range(*interval)})" if interval else f" ({due['reason']})"
    whole = percent(due["value"], 0) if due["value"] < 1 else "All"
    return f"{whole} of {model}'s gap to {reference}{within} sits on the {share} of tokens that are AR hits."


def detail(row: Row) -> str:
    """The gap in nats, as a second sentence; without intervals where there is a single document."""
    delta, part = row["delta"], row["delta_ar"]
    whole, hits = ("" if x["ci95"] is None else " to ".join(nats(end) for end in x["ci95"]) for x in (delta, part))
    return (
        f"Gap: {nats(delta['nll'])} nats per token{whole and f' (95% interval {whole})'}, "
        f"of which AR hits {nats(part['nll'])}{hits and f' ({hits})'}."
    )
