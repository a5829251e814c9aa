"""Content tokens and how often their bigrams repeat, in worked examples."""

from pathlib import Path

import numpy as np

from argap.corpus import open_corpus
from argap.evaluation import build_evaluation_set
from argap.labels import Labels
from argap.records import IndexRecord, LabelsRecord
from argap.repeats import find_repeats
from argap.suite.prevalence import build_prevalence, content_tokens
from argap.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(Path(__file__).parents[2] / "argap" / "demo" / "tokenizer")


def test_function_words_and_punctuation_are_not_content():
    carries = content_tokens(TOKENIZER)
    ids = {text: TOKENIZER.encode([text])[0].tolist() for text in (" the", "The", ",", ")\n", "def", "7")}
    assert {text: carries[i].tolist() for text, i in ids.items() if len(i) == 1} == {
        " the": [False], "The": [False], ",": [False], "def": [True], "7": [True],
    } | ({")\n": [False]} if len(ids[")\n"]) == 1 else {})  # fmt: skip


def test_a_content_bigram_has_two_content_tokens(tmp_path):
    (tmp_path / "a.txt").write_text(" def class , , def class , ,")
    data = build_evaluation_set(open_corpus(tmp_path), TOKENIZER, seq_len=64, packing="document")
    repeats = find_repeats(data)
    zeros = np.zeros(len(data.tokens), np.int64)
    labels = Labels(
        data.window, data.position, repeats.repeated, repeats.distance, repeats.occurrences, zeros,
        zeros.astype(np.int32), ["code"], data.document_of_window,
        LabelsRecord(1, data.record, IndexRecord("", "", "", 0, 0, 0, False), ()),
    )  # fmt: skip
    table = build_prevalence(labels, data.tokens, TOKENIZER)
    n, repeated, content = (table[name].to_numpy() for name in ("n", "repeated", "content"))
    assert n.sum() == len(data.tokens) - 1
    assert repeated.sum() == repeats.repeated.sum()
    carries = content_tokens(TOKENIZER)[data.tokens]
    both = carries[1:] & carries[:-1]
    assert n[content].sum() == both.sum()
    assert repeated[content].sum() == (both & repeats.repeated[1:]).sum() > 0
