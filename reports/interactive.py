"""What the page's script shows: the result at every τ, as text, and the values behind the figures."""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256

import msgspec
from markupsafe import Markup

from argap.records import Gap, Record
from argap.reports.formats import Table
from argap.reports.hover import Panel
from argap.reports.numbers import percent, threshold_text
from argap.reports.overview import Overview, overview
from argap.reports.page import TEMPLATES
from argap.reports.sentences import headlines
from argap.reports.tables import closed_table, gap_table
from argap.reports.thresholds import at_thresholds
from argap.reports.tokens import visible


class TableText(Record, frozen=True):
    """A table's cells, its notes, and the row and column of the best values."""

    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    best: tuple[tuple[int, int], ...]


class State(Record, frozen=True):
    """The page at one τ."""

    tau: str
    share: str
    """Of the scored tokens, that are hits."""
    point: int
    """Its number on the curve."""
    tables: tuple[TableText, ...]
    headlines: tuple[tuple[str, str], ...]
    overview: Overview | None


class PageData(Record, frozen=True):
    """The page's data block."""

    unit: str
    hits: str
    own: int
    """The state of the result's own τ."""
    states: tuple[State, ...]
    """Ascending in τ; empty where τ cannot move."""
    figures: Mapping[str, tuple[Panel, ...]]


def page_data(gap: Gap, figures: Mapping[str, tuple[Panel, ...]]) -> PageData:
    """The data block of a result's page; ``figures``: the panels of each."""
    made, point = at_thresholds(gap), {each.threshold: k for k, each in enumerate(gap.curve)}
    taus = [each.threshold for each in made]
    states = tuple(_state(each, point[each.threshold]) for each in made if each.threshold is not None)
    own = taus.index(gap.threshold) if gap.threshold in taus else 0
    return PageData(gap.unit, gap.hits, own, states, {name: panels for name, panels in figures.items() if panels})


def main_tables(gap: Gap) -> list[Table]:
    """The tables that follow τ."""
    return [table for table in (gap_table(gap), closed_table(gap)) if table is not None]


def _state(gap: Gap, point: int) -> State:
    assert gap.threshold is not None  # of a curve
    return State(
        tau=threshold_text(gap.threshold),
        share=percent(gap.rows[0].share_ar_hits),
        point=point,
        tables=tuple(_text(table) for table in main_tables(gap)),
        headlines=tuple((visible(sentence), visible(numbers)) for sentence, numbers in headlines(gap)),
        overview=overview(gap),
    )


def _text(table: Table) -> TableText:
    rows = tuple(tuple(map(visible, row)) for row in table.rows)
    return TableText(rows, tuple(map(visible, table.notes)), tuple(sorted(table.best)))


def data_block(data: PageData) -> Markup:
    """The content of a script element of type ``application/json``: ASCII, and no tag ends or begins in it."""
    text = json.dumps(msgspec.to_builtins(data), separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def script() -> tuple[Markup, str]:
    """The page's script and, for its policy, the hash that allows this one alone."""
    text = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return Markup(text), f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
