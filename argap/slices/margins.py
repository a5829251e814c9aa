"""Sum the cells to margins: over all keys except those of one partition.

Every bin of a partition, and the AR hits at any threshold, is a union of values of one or two keys. The margins are
small however many cells there are, suffice for all of these, and are summed while the cells are written.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from argap.metric.documents import group_of
from argap.records import COPY, INDUCTION
from argap.slices.cells import PREFIX, CellFile, models_of, parts_of
from argap.slices.tally import Groups, joined, tally

AXES = ((("repeated", "frequency"), ("domain",)), (("distance",), ("position",)), ((COPY, INDUCTION),))
"""Keys that margins keep together; keys that the cells lack are left out. The margins of a row share a pass."""
WAITING = 2**18
"""Rows collected before they are summed."""


class Margin(NamedTuple):
    """Sums of cells by document and by the keys of one of `AXES`."""

    names: tuple[str, ...]
    domains: list[str] | None
    """The domains that the key ``domain`` numbers."""
    groups: Groups
    """The first key is the document, or its unit (`argap.metric.documents.group_of`)."""


def margins_of(cells: pd.DataFrame) -> list[Margin]:
    """Sum cells to their margins by document."""
    document, n = cells["document"].to_numpy(), cells["n"].to_numpy()
    sums = [cells[PREFIX + model].to_numpy() for model in models_of(cells)]
    domain = pd.Categorical(cells["domain"]) if "domain" in cells else None
    domains = None if domain is None else domain.categories.tolist()
    margins = []
    for axes in AXES:
        known = [tuple(name for name in axis if name in cells) for axis in axes]
        names = [name for axis in known for name in axis]
        keys = [domain.codes if domain is not None and name == "domain" else cells[name].to_numpy() for name in names]
        if not names:
            continue
        both = tally([document, *keys], sums, n)
        of_names = dict(zip(names, both.keys[1:], strict=True))
        for axis in filter(None, known):
            groups = tally([both.keys[0], *(of_names[name] for name in axis)], list(both.sums), both.n)
            margins.append(Margin(axis, domains if axis == ("domain",) else None, groups))
    return margins


class Margins:
    """The margins of all cells of a result by unit, summed in portions."""

    def __init__(self, models: Sequence[str], documents: np.ndarray, n: np.ndarray) -> None:
        """Take the documents in the cells, ascending, and the tokens of each, both ``[D]``."""
        self._sums = [PREFIX + model for model in models]
        self.documents, self.n = documents, n
        self.unit = group_of(len(documents))
        """``[D]``: the unit of each document."""
        self._domains: dict[str, int] = {}
        self._waiting: dict[tuple[str, ...], list[Groups]] = {}

    @property
    def columns(self) -> list[str]:
        """The names of the models' sums."""
        return self._sums

    def add(self, margins: Sequence[Margin]) -> None:
        """Add the margins of more cells."""
        for names, domains, groups in margins:
            document, *keys = groups.keys
            if domains is not None:
                numbers = [self._domains.setdefault(each, len(self._domains)) for each in domains]
                keys = [np.array(numbers)[keys[0]]]
            unit = self.unit[np.searchsorted(self.documents, document)]
            waiting = self._waiting.setdefault(names, [])
            waiting.append(groups._replace(keys=[unit, *keys]))
            if sum(len(each.n) for each in waiting[1:]) > WAITING:
                waiting[:] = [joined(waiting)]

    def frames(self) -> Iterator[pd.DataFrame]:
        """Yield each margin as cells with ``unit`` instead of the document."""
        for names, waiting in self._waiting.items():
            groups = joined(waiting)
            columns = dict(zip(("unit", *names), groups.keys, strict=True))
            if "domain" in columns:
                columns["domain"] = np.array([*self._domains], dtype=object)[columns["domain"]]
            sums = zip(self._sums, groups.sums, strict=True)
            yield pd.DataFrame({**columns, "n": groups.n, **dict(sums)})


def sum_margins(cells: pd.DataFrame | CellFile, documents: np.ndarray, n: np.ndarray) -> Margins:
    """Sum all cells, read in portions, to their margins; ``documents``, ``n``: as `Margins` takes them."""
    models = models_of(cells)
    margins = Margins(models, documents, n)
    for part in parts_of(cells, [name for name in cells.columns if name != "window"]):
        margins.add(margins_of(part))
    return margins
