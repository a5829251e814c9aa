"""How common repeated bigrams are, by domain and position, with and without function words and punctuation.

Bigrams of function words repeat in any text and say little about recall, so figure 4 and appendix D.2 of arXiv
2312.04927 exclude them. Here a bigram is excluded if either token is a function word or has no letter or digit.
"""

import numpy as np
import pandas as pd

from argap.bins import position_bins
from argap.cells import sum_by
from argap.labels import Labels
from argap.tokenizer import Tokenizer

WORDS = """
a about above after again against all also although am an and any are as at be because been before being below
between both but by can cannot could did do does doing down during each either else ever every few for from further
had has have having he her here hers herself him himself his how however i if in into is it its itself just least
less let like made make many may me might more most much must my myself neither never no nor not now of off often on
once one only or other others our ours ourselves out over own per rather said same she should since so some such than
that the their theirs them themselves then there these they this those through thus to too under until up upon us
very was we well were what when where whether which while who whom whose why will with within without would yet you
your yours yourself yourselves
"""
FUNCTION_WORDS = frozenset(WORDS.split())


def build_prevalence(labels: Labels, tokens: np.ndarray, tokenizer: Tokenizer) -> pd.DataFrame:
    """Count scored tokens ``n`` and ``repeated`` ones for each ``domain, position, content``.

    ``position``: bin of the position (`argap.bins.position_bins`); ``content``: whether both tokens of the bigram are
    content tokens. ``tokens``: int32 ``[N]``, the ids of the evaluation set.
    """
    content = content_tokens(tokenizer)[tokens]
    rows = np.flatnonzero(labels.scored)
    frame = pd.DataFrame(
        {
            "domain": np.array(labels.domains, dtype=object)[labels.domain[rows]],
            "position": position_bins(labels.record.evaluation.seq_len).index(labels.position[rows]),
            "content": content[rows] & content[rows - 1],
            "n": 1,
            "repeated": labels.repeated[rows].astype(np.int64),
        }
    )
    return sum_by(frame, ["domain", "position", "content"])


def content_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """bool ``[vocab]``: tokens with a letter or digit that are not function words."""
    texts = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
    return np.array([text.strip().lower() not in FUNCTION_WORDS and any(map(str.isalnum, text)) for text in texts])
