"""Define the columns of every scored token (`argap.tokens.table`) and their types.

======================  =========  ==============================================================================
column                  type       contents
======================  =========  ==============================================================================
window, pos             int32      the window, and the token's position in it, from 1
document                int32      the document that holds most of the window
domain, source          string     domain of the token's document; where the window's document was read from
token, piece            int32,     token id and text; part of a character is U+FFFD
                        string
previous                string     the preceding piece
word                    string     the white-space-delimited word of the token's first visible character, cut at the
                                   window's ends; null for white space
word_start              bool       whether that character begins the word
word_repeated           bool       whether the same word occurs earlier in the window
content_word            bool       whether the token has a letter or digit and belongs to no function word
content                 bool       whether the bigram consists of content words (`argap.text.content`)
repeated                bool       whether the bigram that ends at this token occurs earlier in the window
distance, occurrences   int32      tokens back to the nearest earlier occurrence, 0 if none; number of occurrences
train_count             int64      occurrences of the bigram in training
opportunity             bool       whether the preceding token occurs earlier in the window (`argap.tokens.copies`)
match_length            int32      length of the longest preceding context that occurs earlier, followed by this token
induction               bool       whether copying the token that followed the longest repeated context is correct;
                                   null without an opportunity
nll                     struct     one field per model: −log p in nats
top1                    struct     one field per model: id of its most likely token
======================  =========  ==============================================================================

In a comparison by segments (`argap.evaluation.segments`) the tokens are the reference's. A log-prob belongs to a
segment, so in a condition ``nll`` is that of the whole segment around a token, and `argap.result.Result.tokens` returns
it once: at the last of the tokens returned of a segment, with the bytes; it is null at the others. So the sums over the
tokens of a slice are those of the slice. There are two more columns:

======================  =========  ==============================================================================
segment                 int64      number of the segment, the same for all its tokens
segment_bytes           int32      bytes of the segment at its last token, 0 at the others
======================  =========  ==============================================================================

Runs of ``argap score --rank`` and ``--kl`` add structs with one field per model that has them:

======================  =========  ==============================================================================
rank                    struct     --rank: the token's rank in the vocabulary
kl                      struct     --kl: KL(reference ‖ model) in nats, of the two distributions before the token
entropy                 struct     --kl: entropy of the model's distribution in nats
======================  =========  ==============================================================================

gain                    struct     one field per model that has such a pass: log p with the whole window as context,
                                   minus log p with the short one, in nats
======================  =========  ==============================================================================
=======
A condition may write ``kl`` alone if a single model has it: ``kl > 1 AND repeated``.
and runs with a pass over a short context (``argap score --short-context N``)

======================  =========  =======================================================================
Further columns are those kept from the source (`argap.evaluation.documents`): a value of the token's document, or the
labels of its spans.
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
    "content_word": pa.bool_(),
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
"""Columns that only a comparison by segments has."""
LABELLED = ("repeated", "distance", "occurrences", "train_count")
COPIED = ("opportunity", "match_length", "induction")
"""Labels that format 1 lacks."""
OF_TOKEN = {"token", "piece", "previous", "word", "word_start", "word_repeated", "content_word", "content"}
OF_MODELS = {"nll": pa.float32(), "top1": pa.int32()}
RANK, KL, ENTROPY, GAIN = "rank", "kl", "entropy", "gain"
OPTIONAL: dict[str, pa.DataType] = {RANK: pa.int32(), KL: pa.float32(), ENTROPY: pa.float32(), GAIN: pa.float32()}
"""Structs like ``nll`` and ``top1``, but with fields only for models whose runs have them, and absent without any."""
OPTION_OF = {RANK: "rank", KL: "kl", ENTROPY: "kl", GAIN: "short_context"}
"""The option of `argap score` that keeps each of `OPTIONAL`."""
BY_MODEL = (*OF_MODELS, *OPTIONAL)
COLUMNS = (*TYPES, *OF_MODELS)
LOGPROB = "log p of model "
"""Prefix of internal columns, one per model index, that no condition can name."""
FOLLOWED = "beside the reference: "
"""Prefix of internal columns, a measure and a model index: what `argap.metric.fidelity` sums of each token."""
UNIT = "unit of documents"
"""Internal column: the unit of the token's document (`argap.metric.documents.group_of`)."""
WEIGHT = "weight of the token"
"""A further column: what the token counts (`argap.tokens.weights`)."""
WHOLE = "bytes of the whole segment"
"""A further column, in a comparison by segments."""
MASK = "in slice "
"""Prefix of the columns of slices defined by functions; no condition can name these either."""
RESERVED = (LOGPROB, FOLLOWED, MASK, UNIT, WEIGHT, WHOLE)


def optional_types(models: Mapping[str, Sequence[str]]) -> dict[str, pa.DataType]:
    """Return the types of the columns of `OPTIONAL`, with a field for each of their ``models``; none without models."""
    return {name: pa.struct([(model, OPTIONAL[name]) for model in having]) for name, having in models.items() if having}


def schema_of(
    models: Sequence[str], kept: Mapping[str, pa.DataType] | None = None, columns: Sequence[str] | None = None
) -> pa.Schema:
    """Return the types of ``columns``, by default of all columns and the ``kept`` ones.

    ``nll`` and ``top1`` have a field for each of ``models``.
    """
    structs = {name: pa.struct([(model, each) for model in models]) for name, each in OF_MODELS.items()}
    known = TYPES | structs | dict(kept or {})
    types = known | dict.fromkeys((UNIT, WEIGHT, WHOLE), pa.int32())
    return pa.schema([(name, types.get(name, pa.float32())) for name in (known if columns is None else columns)])
