"""Describe the columns of the tokens for the slice box, and write parts of a breakdown as conditions over them."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from argap.records import AR_HITS, Bin, Gap, Part, Record
from argap.records.columns import BY_MODEL
from argap.slices.conditions import COPIED_AS, hits_of, literal, quoted

MEANINGS = {
    "window": "number of the window, from 0",
    "pos": "position in the window, from 1",
    "document": "number of the document",
    "domain": "domain of the document",
    "source": "file that the document was read from",
    "token": "token id",
    "piece": "the token's text",
    "previous": "text of the token before it",
    "word": "the word that the token is in",
    "word_start": "begins its word",
    "word_repeated": "its word occurs earlier in the window",
    "content_word": "has a letter or digit and is no function word",
    "content": "both tokens of the bigram are content words",
    "repeated": "its bigram occurs earlier in the window",
    "distance": "tokens back to the nearest earlier occurrence; 0 if none",
    "occurrences": "number of earlier occurrences in the window",
    "train_count": "times that training saw the bigram",
    "opportunity": "the token before it occurs earlier in the window",
    "match_length": "length of the longest repeated context that is followed by this token",
    "induction": "copying after the longest repeated context predicts it",
    "segment": "number of the segment",
    "segment_bytes": "bytes of the segment, at its last token",
    "nll": "−log p in nats, a field for each model",
    "top1": "id of the most likely token, a field for each model",
    "rank": "rank of the token in the vocabulary, a field for each model",
}
"""What each column of `argap.records.columns` holds, in a few words."""


class Column(Record, frozen=True):
    """A column of the tokens."""

    name: str
    type: str
    meaning: str
    sql: str
    """How a condition names it: quoted where SQL has another use for the word, and with a model where each has a field
    of its own."""


def describe(schema: pa.Schema, models: Sequence[str]) -> Iterator[Column]:
    """Yield the columns of a schema; ``models``: the example in `Column.sql` is a field of the last one."""
    for field in schema:
        sql, of_type = quoted(field.name), field.type
        if field.name in BY_MODEL:
            sql, of_type = f"{sql}.{quoted(models[-1])}", of_type.field(0).type
        yield Column(field.name, _type(of_type), MEANINGS.get(field.name, "kept from the source"), sql)


def _type(of: pa.DataType) -> str:
    if pa.types.is_boolean(of):
        return "yes or no"
    if pa.types.is_list(of):
        return "list of texts"
    return "number" if pa.types.is_integer(of) or pa.types.is_floating(of) else "text"


def condition_of(part: Part, by: str, gap: Gap) -> str:
    """Return SQL over the columns of `argap.tokens.table` that selects the tokens of ``part`` in partition ``by``."""
    if by == "slice":
        hits = hits_of(gap.threshold)
        return hits if part.bin == AR_HITS else f"NOT ({hits})"
    if by in COPIED_AS:
        return COPIED_AS[by][part.bin]
    if by == "domain":
        return f"domain = {literal(part.bin)}"
    bounds = next(each for each in getattr(gap.bins, by) if each.label == part.bin)
    column = {"frequency": "train_count", "distance": "distance", "position": "pos"}[by]
    within = _within(column, bounds)
    if by != "frequency":
        return within
    return f"repeated AND {within}" if part.repeated else f"NOT repeated AND {within}"


def _within(column: str, bounds: Bin) -> str:
    if bounds.high is None:
        return f"{column} >= {bounds.low}"
    return (
        f"{column} = {bounds.low}" if bounds.low == bounds.high else f"{column} BETWEEN {bounds.low} AND {bounds.high}"
    )
