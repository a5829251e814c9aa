"""Count repeated bigrams by domain and position, among all bigrams and among those of content words."""

import numpy as np
import pandas as pd

from argap.metric.bins import position_bins
from argap.slices.tally import tally
from argap.text.content import content_bigrams, has_letters
from argap.text.tokenizer import Tokenizer
from argap.text.words import PieceBytes
from argap.tokens.labels import Labels


def build_prevalence(labels: Labels, tokens: np.ndarray, tokenizer: Tokenizer) -> pd.DataFrame:
    """Count scored tokens ``n`` and ``repeated`` ones for each ``domain, position, content``.

    ``position``: bin of the position (`argap.metric.bins.position_bins`); ``content``: whether the bigram is of content
    words (`argap.text.content`). ``tokens``: int32 ``[N]``, the ids of the evaluation set.
    """
    words = PieceBytes(tokenizer.piece_bytes).words(tokens, labels.window)
    content = content_bigrams(tokens, words, has_letters(tokenizer))
    rows = np.flatnonzero(labels.scored)
    position = position_bins(labels.record.evaluation.seq_len).index(labels.position[rows])
    groups = tally([labels.domain[rows], position, content[rows]], [labels.repeated[rows]])
    domain, position, content = groups.keys
    names = np.array(labels.domains, dtype=object)
    columns = {"domain": names[domain], "position": position, "content": content, "n": groups.n}
    return pd.DataFrame(columns | {"repeated": groups.sums[0].astype(np.int64)})
