"""Find tokens worth looking at: those on which a model loses most, and occurrences of a text."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from argap.errors import ArgapError
from argap.files.checksums import check_file, read_checksums
from argap.files.parquet import check_whole, read_parquet
from argap.records import Record
from argap.reports.tables.tokens import visible
from argap.runtime.interrupt import Interrupt
from argap.runtime.threads import available_cores, map_ahead
from argap.slices.conditions import TABLE, Condition, connect, quoted
from argap.slices.of_tokens import checked
from argap.slices.queries import query_portions
from argap.tokens.batches import TokenReader
from argap.tokens.runs import token_parts
from argap.tokens.table import TokenTable
from argap.view.windows import LONGEST

AROUND = 40
"""Bytes of text shown on either side of a match."""


class Match(Record, frozen=True):
    """A token found by a search, with some text around it, all on one line."""

    window: int
    pos: int
    before: str
    text: str
    after: str
    tokens: int = 1
    """Number of tokens that the match spans."""
    nll: tuple[float, float] | None = None
    """NLL of the model and of the reference, in nats; None in a search for text."""


def lost_most(
    table: TokenTable, where: str, model: str, reference: str, *, limit: int, in_order: bool = False
) -> list[Match]:
    """Return the tokens of a condition with the largest NLL of ``model`` minus that of ``reference``, largest first.

    ``in_order``: the first ones in the text instead. Raises `ArgapError` for an invalid condition.
    """
    query, order, columns = _losses(table, where, model, reference, limit, in_order=in_order)
    reader = TokenReader(table, list(dict.fromkeys(["window", "pos", "previous", "piece", "nll", *columns])))
    portions: list[pa.Table] = []
    for portion in query_portions(reader, query):
        portions.append(portion)
        if in_order and sum(map(len, portions)) >= limit:
            break
    return _ordered(pa.concat_tables(portions), order)


def lost_most_in(
    rows: pa.Table, table: TokenTable, where: str, model: str, reference: str, *, limit: int
) -> list[Match]:
    """Return `lost_most` of ``rows``, some tokens of ``table`` with all of its columns."""
    query, order, _ = _losses(table, where, model, reference, limit)
    with connect() as connection:
        connection.register(TABLE, rows)
        found = connection.sql(query).to_arrow_table()
    return _ordered(found, order)


def _losses(
    table: TokenTable, where: str, model: str, reference: str, limit: int, *, in_order: bool = False
) -> tuple[str, str, tuple[str, ...]]:
    """Return the query for the tokens with the largest losses, its order, and the columns that ``where`` names."""
    condition = checked(table, where)
    assert isinstance(condition, Condition)
    own, other = (f"nll.{quoted(name)}" for name in (model, reference))
    chosen = f'"window", pos, previous::VARCHAR AS previous, piece::VARCHAR AS piece, {own} AS lost, {other} AS other'
    order = f'ORDER BY {"" if in_order else "lost - other DESC,"} "window", pos LIMIT {int(limit)}'
    return f"SELECT {chosen} FROM {TABLE} WHERE (\n{condition.sql}\n) {order}", order, condition.columns


def _ordered(rows: pa.Table, order: str) -> list[Match]:
    with connect() as connection:
        connection.register(TABLE, rows)
        found = connection.execute(f"SELECT * FROM {TABLE} {order}").fetchall()
    return [
        Match(window, pos, _line(previous), _line(piece), "", nll=(lost, lost_other))
        for window, pos, previous, piece, lost, lost_other in found
    ]


def find_text(table: TokenTable, text: str, *, limit: int, interrupt: Interrupt) -> list[Match]:
    """Find ``text`` within single windows, in order, however it is tokenized.

    Case (of ASCII letters) matters only if ``text`` has capitals. Raises `ArgapError` for an empty text.
    """
    if not text:
        raise ArgapError("`text` is empty; expected the text to look for")
    wanted = text.encode(errors="replace")
    pieces = table.piece_bytes.folded if wanted == wanted.lower() else table.piece_bytes
    folder = table.runs[0].folder
    recorded = read_checksums(folder)

    def found_in(path: Path) -> list[Match]:
        interrupt.check()
        check_file(path, recorded.get(path.relative_to(folder).as_posix()))
        content, ends = pieces.text(table.check_ids(_whole(path, ["token"])["token"].to_numpy()))
        starts = _occurrences(content.tobytes(), wanted)
        first = next(starts, None)
        if first is None:
            return []
        return list(islice(_matches(path, table, chain([first], starts), len(wanted), ends), limit))

    found: list[Match] = []
    for matches in map_ahead(found_in, token_parts(folder), available_cores()):
        found += matches[: limit - len(found)]
        if len(found) == limit:
            break
    table.check_unchanged()
    return found


def _whole(path: Path, columns: Sequence[str]) -> pa.Table:
    rows = read_parquet(path, columns)
    check_whole(path, rows)
    return rows


def _matches(path: Path, table: TokenTable, starts: Iterable[int], size: int, ends: np.ndarray) -> Iterator[Match]:
    """Yield the matches that start at the bytes ``starts`` of a part, stay in one window and do not overlap.

    ``ends``: byte offset of each token's end.
    """
    rows = _whole(path, ["window", "pos", "token"])
    window, pos, ids = (rows[name].to_numpy() for name in ("window", "pos", "token"))
    content = table.piece_bytes.text(ids)[0].tobytes()
    stop = 0
    for start in starts:
        first, last = np.searchsorted(ends, [start, start + size - 1], side="right").tolist()
        if start < stop or window[first] != window[last]:
            continue
        stop = start + size
        opens, closes = (int(np.searchsorted(window, window[first], side)) for side in ("left", "right"))
        low = int(ends[opens - 1]) if opens else 0
        before = content[max(low, start - AROUND) : start]
        after = content[stop : min(int(ends[closes - 1]), stop + AROUND)]
        texts = (_line(each.decode(errors="ignore")) for each in (before, content[start:stop], after))
        yield Match(int(window[first]), int(pos[first]), *texts, tokens=last - first + 1)


def _occurrences(content: bytes, wanted: bytes) -> Iterator[int]:
    """Yield the start of each occurrence, overlapping ones included."""
    start = content.find(wanted)
    while start >= 0:
        yield start
        start = content.find(wanted, start + 1)


def _line(piece: str) -> str:
    """Return a text on one line, cut if it is very long."""
    return visible(piece[:LONGEST]) + ("…" if len(piece) > LONGEST else "")
