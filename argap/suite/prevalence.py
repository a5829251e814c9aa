"""How common repeated bigrams are, by domain and position, among all bigrams and among those of content words."""

import numpy as np
import pandas as pd

from argap.metric.bins import position_bins
from argap.slices.cells import sum_by
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
    frame = pd.DataFrame(
        {
            "domain": np.array(labels.domains, dtype=object)[labels.domain[rows]],
            "position": position_bins(labels.record.evaluation.seq_len).index(labels.position[rows]),
            "content": content[rows],
            "n": 1,
            "repeated": labels.repeated[rows].astype(np.int64),
        }
    )
    return sum_by(frame, ["domain", "position", "content"])
