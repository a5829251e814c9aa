"""Records of a text, an index and a checkpoint."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from argap.files.record import Count, Record

Packing = Literal["packed", "document"]
Unit = Literal["token", "byte"]
"""What is counted, and what an NLL is per: bytes where models of different tokenizers are compared (segments)."""
LONGEST_WINDOW = 2**24
"""Tokens, at most."""


class LeftOut(Record, frozen=True):
    """Documents that a result was restated without, and the evaluation set that they were part of."""

    where: dict[str, tuple[str, ...]]
    """How they were chosen: values of ``source``, ``domain`` and ``document``."""
    documents: tuple[int, ...]
    """Their numbers in that set, ascending."""
    tokens: Count
    """Tokens of their windows."""
    scored: Count
    fingerprint: str
    """Of that set."""
    unchanged: tuple[str, ...] = ()
    """Files of the result that do not know documents, and still include these."""


class EvaluationRecord(Record, frozen=True):
    """The evaluation set of a run, of labels or of a result."""

    fingerprint: str
    """SHA-256 (hex) over token ids and window bounds."""
    tokenizer: str
    tokenizer_fingerprint: str
    tokens: Count
    scored: Count
    """Tokens with a log-prob: all but the first of each window. Under the unit ``byte`` bytes, of scored segments."""
    windows: Count
    documents: Count
    seq_len: Annotated[int, Meta(ge=2, le=LONGEST_WINDOW)]
    packing: Packing
    data: tuple[str, ...] = ()
    """The texts as they were named; in ``gap.json`` alone."""
    unit: Unit = "token"
    left_out: LeftOut | None = None
    """In a restated result: all other fields describe the windows kept, and so does the fingerprint."""


class EvaluationSpec(Record, frozen=True):
    """What to evaluate on: everything that decides which tokens are scored. None: not given, or not recorded.

    >>> EvaluationSpec(seq_len=1024).over(EvaluationSpec(data=("text/",), seq_len=512)).seq_len
    1024
    """

    data: tuple[str, ...] = ()
    """Files, folders, ``hub:NAME`` or ``stdlib:heldout``."""
    seq_len: int | None = None
    """Tokens a window; 2,048 by default."""
    packing: Packing | None = None
    """``packed`` by default."""
    limit_tokens: int | None = None
    """Score only the first tokens of the text."""
    text_column: str | None = None
    """Column of JSON lines and Parquet that holds the text: ``text`` by default."""
    token_dtype: str | None = None
    """Of headerless token shards: ``uint16`` or ``uint32``."""
    tokenizer: str | None = None
    """A folder or hub id; None: the reference's."""
    keep: tuple[str, ...] = ()
    """Columns of JSON lines, Parquet and hub data sets that become columns of the tokens."""
    limit_document_tokens: int | None = None
    """Take only the first tokens of each document."""

    def over(self, recorded: "EvaluationSpec") -> "EvaluationSpec":
        """This specification, completed by what ``recorded`` has in the fields that are empty here."""
        names = EvaluationSpec.__struct_fields__
        own = {name: getattr(self, name) for name in names}
        completed: dict[str, Any] = {k: getattr(recorded, k) if v in (None, ()) else v for k, v in own.items()}
        if self.data:  # the recorded columns are those of another text
            completed["keep"] = self.keep
        return EvaluationSpec(**completed)


class IndexRecord(Record, frozen=True):
    """The bigram index that the training counts come from."""

    folder: str
    tokenizer: str
    tokenizer_fingerprint: str
    tokens: int
    documents: int
    distinct: int
    """Distinct bigrams."""
    proxy: bool
    """True where the counts are not those of the training documents themselves."""
    passes: float = 1
    """How often training read the corpus; 1 where the file omits it."""

    @property
    def exposed_tokens(self) -> float:
        """Tokens that training read."""
        return self.tokens * self.passes


class CheckpointRecord(Record, frozen=True):
    """The checkpoint of a run."""

    name: str
    """As the user wrote it."""
    fingerprint: str
    """SHA-256 (hex) over ``config.json`` and the weight files."""
