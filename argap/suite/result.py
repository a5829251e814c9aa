"""Reading a suite's result back: rows, intervals and curves rebuilt from the committed files alone."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from argap.atomic import read_json
from argap.cells import PREFIX, ar_hits, models_of, read_cells, sum_by
from argap.errors import FormatError
from argap.gap import gap_due_to_ar
from argap.suite.curve import share_by_threshold
from argap.suite.distances import fit_exponents
from argap.summary import gap_rows
from argap.train import read_log


@dataclass(frozen=True)
class Result:
    """One size of a suite, as `argap.suite.collect` wrote it."""

    folder: Path
    gap: dict[str, Any]
    """``gap.json``, its rows rebuilt from the cells."""
    cells: pd.DataFrame
    members: list[dict[str, Any]]

    @property
    def size(self) -> str:
        return self.folder.name

    @property
    def reference(self) -> str:
        return self.gap["reference"]

    @property
    def seq_len(self) -> int:
        return self.gap["evaluation"]["seq_len"]

    @cached_property
    def totals(self) -> dict[str, float]:
        """``n`` and each model's sum of log p over all scored tokens."""
        columns = ["n", *(PREFIX + model for model in models_of(self.cells))]
        return {name: float(self.cells[name].to_numpy().sum()) for name in columns}

    def curve(self) -> pd.DataFrame:
        """The share of the gap for every threshold (`argap.suite.curve.share_by_threshold`)."""
        return share_by_threshold(self._table("curve"), self.totals, self.reference)

    def distances(self) -> pd.DataFrame:
        """``domain, distance, n`` of the AR hits."""
        return self._table("distances")

    def exponents(self) -> pd.DataFrame:
        """The power law of each domain's distances (`argap.suite.distances.fit_exponents`)."""
        return fit_exponents(self._table("distance_sums"), self.seq_len - 2)

    def prevalence(self) -> pd.DataFrame:
        """``domain, position, content, n, repeated``."""
        return self._table("prevalence")

    def heat(self) -> pd.DataFrame:
        """``distance, frequency, n`` and each model's sum of log p on repeated tokens."""
        keep = [c for c in self.cells.columns if c not in ("document", "domain", "repeated")]
        repeated = self.cells.loc[self.cells["repeated"], keep]
        return sum_by(repeated, ["distance", "frequency"])

    def mqar(self) -> dict[str, Any] | None:
        """Recall of pairs by the models of which it was measured (`argap.synthetics.pretrained_scores`)."""
        path = self.folder / "mqar.json"
        return read_json(path) if path.is_file() else None

    def trajectory(self) -> pd.DataFrame | None:
        """`argap.suite.trajectory.COLUMNS`: NLL along training; None where no checkpoint on the way was scored."""
        return self._table("trajectory") if (self.folder / "trajectory.parquet").is_file() else None

    def log(self, name: str) -> list[dict[str, Any]]:
        """The training log of a member."""
        return read_log(self.folder / "logs" / f"{name}.jsonl")

    def spread(self) -> dict[str, list[float]]:
        """Of each member trained from several seeds, the share of the gap from each, against the reference
        of the same seed, or of seed 0 where there is none."""
        hits = ar_hits(self.cells, self.gap["threshold"])
        names = {(m["member"], m["seed"]): m["name"] for m in self.members}
        found: dict[str, list[float]] = {}
        for (member, seed), name in names.items():
            if member != self.reference:
                against = names.get((self.reference, seed), self.reference)
                found.setdefault(member, []).append(self._share(name, against, hits))
        return {member: values for member, values in found.items() if len(values) > 1}

    def _share(self, model: str, reference: str, hits: np.ndarray) -> float:
        n = self.cells["n"].to_numpy()
        lost = (self.cells[PREFIX + model] - self.cells[PREFIX + reference]).to_numpy()
        on_hits = lost[hits].sum() / max(n[hits].sum(), 1)
        value = gap_due_to_ar(on_hits, lost.sum() / n.sum(), n[hits].sum() / n.sum()).value
        return float("nan") if value is None else value

    def _table(self, name: str) -> pd.DataFrame:
        path = self.folder / f"{name}.parquet"
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: not a whole Parquet file ({str(error).splitlines()[0]})") from error


def read_result(folder: Path) -> Result:
    """One size's folder. Raises `FormatError` where it is none, or a file of it is missing or broken."""
    if not (folder / "gap.json").is_file():
        raise FormatError(f"{folder}: no gap.json there; `argap suite run` writes it")
    gap, cells = read_json(folder / "gap.json"), read_cells(folder / "cells.parquet")
    names = [row["model"] for row in gap["rows"]]
    others = [PREFIX + model for model in models_of(cells) if model not in names]
    closed = next((row["closed"]["base"] for row in gap["rows"] if row.get("closed")), None)
    rows = gap_rows(cells.drop(columns=others), reference=gap["reference"], threshold=gap["threshold"], base=closed)
    known = {row["model"]: row for row in gap["rows"]}
    rebuilt = [{**row, **{key: known[row["model"]][key] for key in ("parameters", "run")}} for row in rows]
    return Result(folder, gap | {"rows": rebuilt}, cells, read_json(folder / "members.json")["members"])


def read_results(out: Path, sizes: list[str]) -> list[Result]:
    """The sizes of a suite that have a result, in order. Raises `FormatError` where none has."""
    found = [read_result(out / size) for size in sizes if (out / size / "gap.json").is_file()]
    if not found:
        raise FormatError(f"{out}: no result there; `argap suite run` writes one for each size")
    return found
