"""The columns that every scored token has (`argap.tokens.table`), and their types.

======================  =========  ==============================================================================
column                  type       what it holds
======================  =========  ==============================================================================
window, pos             int32      the window, and the token's position in it, from 1
document                int32      the document that holds most of the window
domain, source          string     of the token's document; where the window's document was read
token, piece            int32,     id of the token and its text; a piece of a character is U+FFFD
                        string
previous                string     the piece before it
word                    string     the white-space-delimited word of its first visible character, as far as its
                                   window has it; null for white space
word_start              bool       whether that character begins the word
word_repeated           bool       whether the same word stands earlier in the window
content                 bool       whether the bigram is of content words (`argap.text.content`)
repeated                bool       whether the bigram that the token ends occurs earlier in the window
distance, occurrences   int32      tokens back to the nearest such occurrence, 0 where there is none; their number
train_count             int64      occurrences of the bigram in training
opportunity             bool       whether the token before occurs earlier in the window (`argap.tokens.copies`)
match_length            int32      how many of the tokens before occur earlier in this order, followed by this token
induction               bool       whether copying what followed the longest context that occurred is right; null
                                   without an opportunity
nll                     struct     a field for each model: −log p in nats
top1                    struct     a field for each model: the id of its most likely token
======================  =========  ==============================================================================

Where models were compared by segments (`argap.segments`) the tokens are the reference's, ``nll`` is that of the whole
segment that a token is in, and there are also

======================  =========  ==============================================================================
segment                 int64      a number for each segment, the same for all of its tokens
segment_bytes           int32      the bytes of the segment at its last token, 0 at the others
======================  =========  ==============================================================================

Where runs have ranks (``argap score --rank``) there is also

======================  =========  ==============================================================================
rank                    struct     a field for each model whose run has them: the token's rank in the vocabulary
======================  =========  ==============================================================================

Further columns are those that were kept of the source (`argap.evaluation.documents`): a value of the token's own
document, or the labels of its spans.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

TEXT = pa.dictionary(pa.int32(), pa.string())
TYPES: dict[str, pa.DataType] = {
    "window": pa.int32(),
    "pos": pa.int32(),
    "document": pa.int32(),
    "domain": TEXT,
    "source": TEXT,
    "token": pa.int32(),
    "piece": TEXT,
    "previous": TEXT,
    "word": TEXT,
    "word_start": pa.bool_(),
    "word_repeated": pa.bool_(),
    "content": pa.bool_(),
    "repeated": pa.bool_(),
    "distance": pa.int32(),
    "occurrences": pa.int32(),
    "train_count": pa.int64(),
    "opportunity": pa.bool_(),
    "match_length": pa.int32(),
    "induction": pa.bool_(),
}
SEGMENTED: dict[str, pa.DataType] = {"segment": pa.int64(), "segment_bytes": pa.int32()}
"""Columns of a comparison by segments alone."""
LABELLED = ("repeated", "distance", "occurrences", "train_count")
COPIED = ("opportunity", "match_length", "induction")
"""Further labels, which those of format 1 lack."""
OF_TOKEN = {"token", "piece", "previous", "word", "word_start", "word_repeated", "content"}
OF_MODELS = {"nll": pa.float32(), "top1": pa.int32()}
RANK = "rank"
"""As in ``nll`` and ``top1``, but a column only where runs have ranks, and with fields for these alone."""
BY_MODEL = (*OF_MODELS, RANK)
COLUMNS = (*TYPES, *OF_MODELS)
LOGPROB = "log p of model "
"""Prefix of further columns, one for each model by its index, that no condition can name."""
UNIT = "unit of the bootstrap"
"""A further column, the unit that the token's document belongs to (`argap.metric.intervals`)."""
MASK = "in slice "
"""Prefix of the columns that functions make; no condition can name them either."""
RESERVED = (LOGPROB, MASK, UNIT)


def ranks_of(models: Sequence[str]) -> dict[str, pa.DataType]:
    """The column `RANK` with a field for each of ``models``, and its type; empty without any."""
    return {RANK: pa.struct([(model, pa.int32()) for model in models])} if models else {}


def schema_of(
    models: Sequence[str], kept: Mapping[str, pa.DataType] | None = None, columns: Sequence[str] | None = None
) -> pa.Schema:
    """The types of ``columns``, by default all: those of every token and the ``kept`` ones. ``nll`` and ``top1`` have a
    field for each of ``models``."""
    structs = {name: pa.struct([(model, each) for model in models]) for name, each in OF_MODELS.items()}
    known = TYPES | structs | dict(kept or {})
    types = known | {UNIT: pa.int32()}
    return pa.schema([(name, types.get(name, pa.float32())) for name in (known if columns is None else columns)])
