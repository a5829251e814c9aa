"""The tables of a suite's result: what each must hold, and the one function that reads them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from argap.errors import FormatError
from argap.files.checksums import check_files
from argap.files.parquet import read_frame
from argap.files.remedies import remedy_for
from argap.records import COPY, INDUCTION
from argap.slices.cells import BOUNDS, KEYS, PREFIX
from argap.suite.trajectory import COLUMNS, LOG_COLUMNS

DISTANCES = "distances.parquet"
KEPT = {
    "cells.parquet": [key for key in KEYS if key not in ("window", "position", COPY, INDUCTION)],
    "positions.parquet": ["document", "position"],
    "copies.parquet": ["document", COPY, INDUCTION],
}
"""Keys of the committed sums. Intervals are over documents; in files of their own positions and copy labels take far
less space."""
TABLES: Mapping[str, Sequence[str]] = {
    **{name: [*keys, "n"] for name, keys in KEPT.items()},
    "curve.parquet": ["document", "high", "n"],
    DISTANCES: ["domain", "distance", "n"],
    "distance_sums.parquet": ["document", "domain", "n", "log_distance"],
    "prevalence.parquet": ["domain", "position", "content", "n", "repeated"],
    "logs.parquet": LOG_COLUMNS,
    "trajectory.parquet": COLUMNS,
}
"""The columns of each table besides the models' sums."""
NOT_ALWAYS = ("positions.parquet", "copies.parquet", "curve.parquet", "trajectory.parquet")
"""Tables that may be missing: older results lack the first three, results without intermediate checkpoints the last."""
MAY_BE_EMPTY = (DISTANCES, "distance_sums.parquet")
"""Tables that have no rows if the text has no AR hit."""
POSITIVE = {"logs.parquet": "tokens", DISTANCES: "n", "distance_sums.parquet": "n"}
"""Columns whose numbers are 1 or more."""


def read_suite_table(folder: Path, name: str, models: Sequence[str] = ()) -> pd.DataFrame:
    """Read one of `TABLES` without bin bounds. Raises `FormatError` if it is missing, damaged or broken.

    ``models``: those whose sums it must have.
    """
    path = folder / name
    check_files(folder, [path])
    needed = [*TABLES[name], *(PREFIX + model for model in models)]
    found = read_frame(path, needed=needed, may_be_empty=name in MAY_BE_EMPTY)
    if (column := POSITIVE.get(name)) and (least := found[column].to_numpy().min(initial=1)) < 1:
        raise FormatError(f"{path}: {column} is {least} in a row{remedy_for(path)}")
    return found.drop(columns=list(BOUNDS & {*found.columns}))
