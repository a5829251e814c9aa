"""Sum the cells to margins: over all keys except those of one partition.

Every bin of a partition, and the AR hits at any threshold, is a union of values of one or two keys. The margins are
small however many cells there are, suffice for all of these, and are summed while the cells are written.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from argap.metric.documents import group_of
from argap.records import COPY, INDUCTION, Bins
from argap.slices.cells import PREFIX, CellFile, ar_hits, models_of, parts_of
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


def joint_margins(cells: pd.DataFrame) -> list[Margin]:
    """Sum cells by document and by all keys of each row of `AXES`; rows whose keys the cells lack are left out."""
    document, n = cells["document"].to_numpy(), cells["n"].to_numpy()
    sums = [cells[PREFIX + model].to_numpy() for model in models_of(cells)]
    domain = pd.Categorical(cells["domain"]) if "domain" in cells else None
    domains = None if domain is None else domain.categories.tolist()
    margins = []
    for axes in AXES:
        names = tuple(name for axis in axes for name in axis if name in cells)
        keys = [domain.codes if domain is not None and name == "domain" else cells[name].to_numpy() for name in names]
        if names:
            groups = tally([document, *keys], sums, n)
            margins.append(Margin(names, domains if "domain" in names else None, groups))
    return margins


def margins_of(joint: Sequence[Margin]) -> list[Margin]:
    """Sum `joint_margins` to the margin of each of `AXES`, by document."""
    margins = []
    for names, domains, groups in joint:
        of_names = dict(zip(names, groups.keys[1:], strict=True))
        for axis in (tuple(name for name in axis if name in names) for axes in AXES for axis in axes):
            if axis:
                summed = tally([groups.keys[0], *map(of_names.__getitem__, axis)], list(groups.sums), groups.n)
                margins.append(Margin(axis, domains if axis == ("domain",) else None, summed))
    return margins


def margin_of_hits(joint: Sequence[Margin], threshold: int | None, bins: Bins) -> Margin:
    """Sum the first of `joint_margins` by document, by domain, and by ``hit``: whether cells are AR hits."""
    names, domains, groups = joint[0]
    of_names = dict(zip(names, groups.keys[1:], strict=True))
    hit = ar_hits(pd.DataFrame({name: of_names[name] for name in AXES[0][0] if name in names}), threshold, bins)
    summed = tally([groups.keys[0], of_names["domain"], hit], list(groups.sums), groups.n)
    return Margin(("domain", "hit"), domains, summed)


class Margins:
    """The margins of all cells of a result by unit or by document, summed in portions."""

    def __init__(
        self, models: Sequence[str], documents: np.ndarray, n: np.ndarray, *, by: Literal["unit", "document"] = "unit"
    ) -> None:
        """Take the documents in the cells, ascending, and the tokens of each, both ``[D]``."""
        self._sums = [PREFIX + model for model in models]
        self.documents, self.n = documents, n
        self._by = by
        self._of_document = group_of(len(documents)) if by == "unit" else documents
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
                keys[names.index("domain")] = np.array(numbers)[keys[names.index("domain")]]
            unit = self._of_document[np.searchsorted(self.documents, document)]
            waiting = self._waiting.setdefault(names, [])
            waiting.append(groups._replace(keys=[unit, *keys]))
            if sum(len(each.n) for each in waiting[1:]) > WAITING:
                waiting[:] = [joined(waiting)]

    def frames(self) -> Iterator[pd.DataFrame]:
        """Yield each margin as cells, with ``unit`` instead of the document if it is by unit."""
        for names, waiting in self._waiting.items():
            groups = joined(waiting)
            columns = dict(zip((self._by, *names), groups.keys, strict=True))
            if "domain" in columns:
                columns["domain"] = np.array([*self._domains], dtype=object)[columns["domain"]]
            sums = zip(self._sums, groups.sums, strict=True)
            yield pd.DataFrame({**columns, "n": groups.n, **dict(sums)})


def sum_hits(cells: pd.DataFrame, threshold: int | None, bins: Bins) -> pd.DataFrame:
    """Sum cells by document, as `margin_of_hits` does."""
    documents = np.unique(cells["document"].to_numpy())
    hits = Margins(models_of(cells), documents, np.zeros(len(documents)), by="document")
    hits.add([margin_of_hits(joint_margins(cells), threshold, bins)])
    return next(hits.frames())


def sum_margins(cells: pd.DataFrame | CellFile, documents: np.ndarray, n: np.ndarray) -> Margins:
    """Sum all cells, read in portions, to their margins; ``documents``, ``n``: as `Margins` takes them."""
    models = models_of(cells)
    margins = Margins(models, documents, n)
    for part in parts_of(cells, [name for name in cells.columns if name != "window"]):
        margins.add(margins_of(joint_margins(part)))
    return margins
