"""What a mixer takes to solve the task: its smallest model that reaches 99%, in operations, state and parameters.

The first blog post on the Zoology paper asks for operations to solve a task, not operations of a layer: a mixer
that is cheap a layer and needs four times the width is not cheap.
"""

from typing import cast

import pandas as pd

SOLVED = 0.99
MEASURES = ("flops", "state_size", "parameters")


def best_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Of each member, length, pairs and width the run with the best *validation* accuracy, of all learning
    rates and seeds: its test accuracy is then no maximum over test scores."""
    ordered = runs.sort_values(["validation_accuracy", "lr"], ascending=[False, True], kind="stable")
    keys = ["name", "length", "pairs", "width"]
    best = ordered.drop_duplicates(keys)
    places = {name: place for place, name in enumerate(dict.fromkeys(runs["name"]))}
    best = best.assign(
        place=[places[name] for name in best["name"]],
        number=[int(str(pairs).split(",")[0]) for pairs in best["pairs"]],  # of text: "16" is less than "4"
    )
    in_order = best.sort_values(["length", "number", "place", "width"], kind="stable")
    return cast(pd.DataFrame, in_order.drop(columns=["place", "number"]).reset_index(drop=True))


def to_solve(runs: pd.DataFrame, solved: float = SOLVED) -> pd.DataFrame:
    """One row for each member, length and pairs: the least ``flops``, ``state_size`` and ``parameters`` of its
    models that reach ``solved`` on the test set, each of its own model, and the least ``width``; empty (NA)
    where none does. ``best`` is the highest accuracy that was reached, ``widest`` the largest width tried."""
    rows = []
    for keys, group in best_runs(runs).groupby(["length", "pairs", "name"], sort=False):
        reached = group[group["accuracy"] >= solved]
        least = {m: reached[m].min() if len(reached) else None for m in (*MEASURES, "width")}
        named = dict(zip(("length", "pairs", "name"), cast(tuple, keys), strict=True))
        rows.append({**named, **least, "best": group["accuracy"].max(), "widest": group["width"].max()})
    frame = pd.DataFrame(rows)
    return frame.astype(dict.fromkeys((*MEASURES, "width"), "Int64"))
