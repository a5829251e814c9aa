"""Define the records of a text, an index and a checkpoint."""

from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from argap.files.record import Count, Record

Packing = Literal["packed", "document"]
Unit = Literal["token", "byte"]
"""The unit of counts and of NLL (per token or per byte): byte if the models have different tokenizers (segments)."""
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
    """Tokens with a log-prob: all but the first of each window. With the unit ``byte``: bytes of scored segments."""
    windows: Count
    documents: Count
    seq_len: Annotated[int, Meta(ge=2, le=LONGEST_WINDOW)]
    packing: Packing
    data: tuple[str, ...] = ()
    """The texts as the user named them; only in ``gap.json``."""
    unit: Unit = "token"
    left_out: LeftOut | None = None
    """In a restated result: all other fields describe the windows kept, and so does the fingerprint."""


class EvaluationSpec(Record, frozen=True):
    """Settings that decide which tokens are scored; None where not given or not recorded.

    Each field's description is its help on the command line (`argap.scoring.config`).

    Examples
    --------
    >>> EvaluationSpec(seq_len=1024).over(EvaluationSpec(data=("text/",), seq_len=512)).seq_len
    1024
    """

    data: Annotated[
        tuple[str, ...],
        Meta(
            description="Evaluation text: file, folder, hub:NAME, stdlib:heldout. Repeatable.",
            extra={"metavar": "PATH"},
        ),
    ] = ()
    seq_len: Annotated[int | None, Meta(description="Tokens per window [2048].", extra={"metavar": "N"})] = None
    packing: Annotated[
        Packing | None, Meta(description="With an EOS between documents, or each on its own [packed].")
    ] = None
    limit_tokens: Annotated[
        int | None, Meta(description="Only the first N tokens of the text.", extra={"metavar": "N"})
    ] = None
    text_column: Annotated[
        str | None, Meta(description="Column of a table (JSON, CSV, Parquet) with the text [text].")
    ] = None
    token_dtype: Annotated[str | None, Meta(description="Type of .bin shards.", extra={"metavar": "uint16|uint32"})] = (
        None
    )
    tokenizer: str | None = None
    """A folder or hub id; None: the reference's."""
    keep: Annotated[
        tuple[str, ...],
        Meta(
            description="Column of a table to slice by (argap slice). Repeatable.",
            extra={"metavar": "COLUMN"},
        ),
    ] = ()
    limit_document_tokens: Annotated[
        int | None, Meta(description="Only the first N tokens of each document.", extra={"metavar": "N"})
    ] = None

    def over(self, recorded: "EvaluationSpec") -> "EvaluationSpec":
        """Return this specification with its empty fields taken from ``recorded``."""
        empty = [name for name in EvaluationSpec.__struct_fields__ if getattr(self, name) in (None, ())]
        if self.data and "keep" in empty:
            empty.remove("keep")  # the recorded columns belong to another text
        return replace(self, **{name: getattr(recorded, name) for name in empty})


class IndexRecord(Record, frozen=True):
    """The bigram index that supplies the training counts."""

    folder: str
    tokenizer: str
    tokenizer_fingerprint: str
    tokens: int
    documents: int
    distinct: int
    """Distinct bigrams."""
    proxy: bool
    """True if the counts are not of the training documents themselves."""
    passes: float = 1
    """How often training read the corpus; 1 where the file omits it."""

    @property
    def exposed_tokens(self) -> float:
        """Return the tokens that training read, all passes counted."""
        return self.tokens * self.passes


class CheckpointRecord(Record, frozen=True):
    """The checkpoint of a run."""

    name: str
    """As the user wrote it."""
    fingerprint: str
    """SHA-256 (hex) over ``config.json`` and the weight files."""
