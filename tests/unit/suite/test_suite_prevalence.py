"""Content bigrams and how often they repeat, in worked examples."""

from pathlib import Path

import numpy as np
import pytest

from argap.corpus import open_corpus
from argap.evaluation.windows import build_evaluation_set
from argap.suite.prevalence import build_prevalence
from argap.text.content import content_bigrams, has_letters
from argap.text.tokenizer import load_tokenizer
from argap.text.words import PieceBytes
from argap.tokens.labels import label

TOKENIZER = load_tokenizer(Path(__file__).parents[3] / "argap" / "demo" / "tokenizer")


def content_of(text: str) -> dict[tuple[str, str], bool]:
    """Of each bigram of a text, whether it is content."""
    ids = TOKENIZER.encode([text])[0]
    words = PieceBytes(TOKENIZER.piece_bytes).words(ids, np.zeros(len(ids), dtype=np.int32))
    content = content_bigrams(ids, words, has_letters(TOKENIZER))
    pieces = [TOKENIZER.decode([i]) for i in ids]
    return {(pieces[k - 1], pieces[k]): bool(content[k]) for k in range(1, len(ids))}


@pytest.mark.parametrize(
    ("text", "bigram", "content"),
    [
        (" class object", (" class", " object"), True),
        (" the object", (" the", " object"), False),
        (" (the object", ("the", " object"), False),
        (" object, object", (" object", ","), False),  # no letter
        (" ourselves", (" our", "selves"), False),  # pieces of a function word
        (" withdraw", (" with", "d"), True),  # a function word as a piece of a content word
        (" object can't", (" object", " can"), False),
        (" 言葉", None, True),  # pieces of characters
    ],
)
def test_function_words_are_looked_up_by_word(text, bigram, content):
    found = content_of(text)
    assert (found[bigram] if bigram else list(found.values())[-1]) == content, found


def test_a_content_bigram_has_two_content_tokens(tmp_path):
    (tmp_path / "a.txt").write_text(" def class , , def class , ,")
    data = build_evaluation_set(open_corpus(tmp_path), TOKENIZER, seq_len=64, packing="document")
    labels = label(data)
    table = build_prevalence(labels, data.tokens, TOKENIZER)
    n, repeated, content = (table[name].to_numpy() for name in ("n", "repeated", "content"))
    assert n.sum() == len(data.tokens) - 1
    assert repeated.sum() == labels.repeated.sum()
    # "def class", "class ,", ", ,", ", def", …: only the two "def class" are content, the second is repeated.
    assert n[content].sum() == 2
    assert repeated[content].sum() == 1
