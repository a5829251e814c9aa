"""Select runs: the best of a group by validation, and the smallest models that solve a task.

The first blog post on the Zoology paper asks for the FLOPs to solve a task, not the FLOPs of a layer: a mixer whose
layers are cheap is not cheap if it needs four times the width.
"""

from typing import cast

import pandas as pd

SOLVED = 0.99
MEASURES = ("flops", "state_size", "parameters")


def best_by_validation(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Select, for each value of ``keys``, the run with the best *validation* accuracy across learning rates and seeds.

    Its test accuracy is then not a maximum over test scores. The lower learning rate wins a tie.
    """
    ordered = runs.sort_values(["validation_accuracy", "lr"], ascending=[False, True])
    return cast(pd.DataFrame, ordered.drop_duplicates(keys))


def best_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Apply `best_by_validation` by length, KV pairs, member and width, sorted so; members keep their order."""
    ranks = {
        "pairs": {pairs: int(str(pairs).split(",")[0]) for pairs in runs["pairs"]},  # pairs are text: "16" < "4"
        "name": {name: rank for rank, name in enumerate(dict.fromkeys(runs["name"]))},
    }
    best = best_by_validation(runs, ["name", "length", "pairs", "width"])
    return best.sort_values(
        ["length", "pairs", "name", "width"],
        key=lambda column: column.map(ranks[str(column.name)]) if column.name in ranks else column,
        ignore_index=True,
    )


def across_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Summarise the spread over seeds: one row per length, number of KV pairs, member and width.

    Rows are in the order of `best_runs`. Each seed counts with the learning rate of its best validation accuracy.
    ``accuracy`` is the mean of the test accuracies, ``deviation`` their sample standard deviation (NaN for one seed),
    ``lowest`` and ``highest`` their range.
    """
    keys = ["length", "pairs", "name", "width"]
    of_seeds = best_by_validation(runs, [*keys, "seed"]).groupby(keys)["accuracy"]
    found = of_seeds.agg(seeds="count", accuracy="mean", deviation="std", lowest="min", highest="max")
    return best_runs(runs)[keys].merge(found.reset_index())


def smallest_solving(runs: pd.DataFrame) -> pd.DataFrame:
    """Find the cost of solving each task: one row per length, number of KV pairs and member.

    ``flops``, ``state_size``, ``parameters`` and ``width`` are separate minima over the models with a test accuracy of
    at least `SOLVED`, or NA without such a model. ``best`` is the highest accuracy, ``widest`` the largest width tried.
    """
    best, keys, sizes = best_runs(runs), ["length", "pairs", "name"], [*MEASURES, "width"]
    solving = best[sizes].astype("Int64").where(best["accuracy"] >= SOLVED)
    groups = best.assign(best=best["accuracy"], widest=best["width"], **solving).groupby(keys, sort=False)
    return groups.agg(dict.fromkeys(sizes, "min") | {"best": "max", "widest": "max"}).reset_index()
