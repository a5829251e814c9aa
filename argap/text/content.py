"""Content bigrams: both tokens have a letter or digit and belong to no function word.

Bigrams of function words and punctuation repeat in any text and say little about recall, so figure 4 and appendix D.2
of arXiv 2312.04927 exclude them. Function words are looked up by white-space-delimited word (`argap.text.words`), not
by token: ``in`` in `` in|side`` is a piece of a content word, and ``wh`` in `` wh|ich`` one of a function word.
"""

import re

import numpy as np

from argap.text.tokenizer import Tokenizer
from argap.text.words import Words

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
EDGES = re.compile(r"^\W+|\W+$")


def is_content_word(word: str) -> bool:
    """Return whether a word, stripped of punctuation, has a letter or digit and is not a function word.

    Of a contraction, the part before the apostrophe counts.

    >>> [is_content_word(word) for word in ("inside", "self.the", "7", "(The", "it's", "don't", "which,", "--")]
    [True, True, True, False, False, False, False, False]
    """
    stem, apostrophe, _ = EDGES.sub("", word).lower().replace("’", "'").partition("'")
    return bool(stem) and not (stem in FUNCTION_WORDS or (apostrophe and stem.removesuffix("n") in FUNCTION_WORDS))


def has_letters(tokenizer: Tokenizer) -> np.ndarray:
    """Return bool ``[vocab]``: ids whose text has a letter or digit; a piece of a character counts as one."""
    return np.array([any(c.isalnum() or c == "\ufffd" for c in piece) for piece in tokenizer.pieces])


def content_tokens(tokens: np.ndarray, words: Words, letters: np.ndarray) -> np.ndarray:
    """Return bool ``[N]``: whether a token has a letter or digit and belongs to no function word.

    ``tokens``: int ``[N]``, whole windows in order; ``words``: their words; ``letters``: `has_letters`.
    """
    coded = words.texts.dictionary_encode()
    of_text = np.array([is_content_word(word) for word in coded.dictionary.to_pylist()], dtype=bool)
    of_word = np.append(of_text[coded.indices.to_numpy()], False)  # the last is for white space
    return letters[tokens] & of_word[words.number]


def content_bigrams(tokens: np.ndarray, words: Words, letters: np.ndarray) -> np.ndarray:
    """Return bool ``[N]``: whether a token and the one before are content tokens; undefined at position 0 of a window.

    Arguments as in `content_tokens`.
    """
    content = content_tokens(tokens, words, letters)
    return content & np.roll(content, 1)
