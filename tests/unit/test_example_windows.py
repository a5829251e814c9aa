"""The choice of example windows, and the data on their tokens."""

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from argap.evaluation.windows import EvaluationSet
from argap.records import ExampleWindow, IndexRecord, LabelsRecord
from argap.results.example_windows import AFTER, BEFORE, FARTHEST, LEAD, SNIPPET, add_models, choose_examples
from argap.text.tokenizer import Tokenizer
from argap.tokens.labels import Labels, find_repeats

EOS = 0
NO_INDEX = IndexRecord("", "words", "", 0, 0, 0, False)
SEQ_LEN = 256


def tokenizer(vocabulary: list[str]) -> Tokenizer:
    backend = Backend(models.WordLevel({word: k for k, word in enumerate(vocabulary)}, unk_token="?"))
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend, name="words", eos=EOS)


WORDS = tokenizer(["<eos>", "?", *(f" w{k}" for k in range(2, 4000))])


def labelled(documents: list[list[int]], domains: list[str]) -> tuple[np.ndarray, Labels]:
    """Packed windows labelled with their actual repeats; every training count is 7."""
    lengths = [len(d) + 1 for d in documents]
    tokens = np.array([t for d in documents for t in (*d, EOS)], dtype=np.int32)
    data = EvaluationSet(
        tokens=tokens,
        offsets=np.array([*range(0, len(tokens), SEQ_LEN), len(tokens)]),
        document_ends=np.cumsum(lengths),
        domains=domains,
        sources=[f"file{k}" for k in range(len(documents))],
        seq_len=SEQ_LEN,
        packing="packed",
        eos=EOS,
        tokenizer="words",
        tokenizer_fingerprint="",
    )
    repeats = find_repeats(data)
    names, domain = np.unique(domains, return_inverse=True)
    labels = Labels(
        window=data.window,
        position=data.position,
        repeated=repeats.repeated,
        distance=repeats.distance,
        occurrences=repeats.occurrences,
        train_count=np.full(len(tokens), 7, dtype=np.int64),
        domain=domain.astype(np.int32)[data.document],
        domains=names.tolist(),
        document_of_window=data.document_of_window,
        record=LabelsRecord(1, data.record, NO_INDEX, tuple(data.sources)),
    )
    return tokens, labels


def flat(labels: Labels, value: float) -> tuple[np.ndarray, np.ndarray]:
    logprob = np.where(labels.scored, np.float32(value), np.float32(np.nan)).astype(np.float32)
    return logprob, np.where(labels.scored, 1, -1).astype(np.int32)


def unique(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def test_the_largest_loss_is_shown_with_its_earlier_occurrence() -> None:
    #  row: 0..9 distinct, then 2 3 again: (2, 3) ends at rows 1 and 11
    tokens, labels = labelled([[*unique(2, 10), 2, 3, 50, 51]], ["a"])
    reference, model = flat(labels, -1.0), flat(labels, -2.0)
    reference[1][11] = 3  # right
    out = choose_examples(tokens, labels, {"ref": reference, "m": model}, WORDS, reference="ref", threshold=10)
    (window,) = out.windows
    focus = window.focus
    assert window.start + focus == 11
    assert window.tokens[focus - 1 : focus + 1] == (" w2", " w3")
    assert window.tokens[:2] == (" w2", " w3")
    assert window.distance[focus] == 10
    assert window.train_count is not None
    assert window.train_count[focus] == 7
    assert window.ar_hit == tuple(k == 11 for k in range(15))
    assert window.top1_correct == {"ref": tuple(k == 11 for k in range(15)), "m": (False,) * 15}
    assert window.logprob["m"] == (None, *[-2.0] * 14)
    assert (window.model, window.source, window.domain) == ("m", "file0", "a")
    assert window.earlier is None
    assert (out.models, out.reference, out.tokenizer) == (("ref", "m"), "ref", "words")


@pytest.mark.parametrize("distance", [FARTHEST - LEAD, FARTHEST - LEAD + 1, 180])
def test_a_distant_occurrence_is_shown_separately(distance: int) -> None:
    tokens, labels = labelled([[*unique(100, 30), 2, 3, *unique(200, distance - 2), 2, 3, *unique(400, 30)]], ["a"])
    row = 31 + distance
    scores = {"ref": flat(labels, -1.0), "m": flat(labels, -2.0)}
    (window,) = choose_examples(tokens, labels, scores, WORDS, reference="ref", threshold=10).windows
    assert len(window.tokens) == window.focus + 1 + AFTER
    shown = window.start <= row - distance
    assert shown == (distance + LEAD <= FARTHEST)
    if shown:
        assert window.tokens[window.focus - distance] == " w3"
        assert window.focus == FARTHEST  # with LEAD tokens before it
    else:
        assert window.focus == BEFORE
        earlier = window.earlier
        assert (earlier.focus, len(earlier.tokens) - 1 - earlier.focus) == SNIPPET
        assert earlier.tokens[earlier.focus - 1 : earlier.focus + 1] == (" w2", " w3")
        assert earlier.start + earlier.focus == row - distance


def many() -> tuple[np.ndarray, Labels, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Twelve documents in three domains, each with a repeat at distance 2, 3 or 9, and random log-probs."""
    documents, domains = [], []
    for k in range(12):
        gap = unique(1000 + 20 * k, (1, 2, 8)[k % 3] - 1)
        documents.append([*unique(100 * k + 10, 25), 2, 3, *gap, 2, 3, *unique(100 * k + 40, 15)])
        domains.append("abc"[k // 4])
    tokens, labels = labelled(documents, domains)
    generator = np.random.default_rng(0)
    shape = len(tokens)
    scores = {
        name: (-generator.exponential(1.0, shape).astype(np.float32), generator.integers(2, 9, shape, dtype=np.int32))
        for name in ("ref", "m1", "m2")
    }
    return tokens, labels, scores


def test_one_hit_per_document_and_per_domain_and_distance() -> None:
    tokens, labels, scores = many()
    out = choose_examples(tokens, labels, scores, WORDS, reference="ref", threshold=10, count=100)
    windows = out.windows
    assert len(windows) > 3
    assert len({w.document for w in windows}) == len(windows)
    for w in windows:  # packed tokens keep their document
        row = np.flatnonzero((labels.window == w.window) & (labels.position == w.start + w.focus))[0]
        document = int((tokens[:row] == EOS).sum())
        assert (w.document, w.source) == (document, f"file{document}")
    bands = [(w.domain, int(np.ceil(np.log2(w.distance[w.focus])))) for w in windows]
    assert len(set(bands)) == len(bands)

    def loss(w: ExampleWindow) -> float:
        return w.logprob["ref"][w.focus] - w.logprob[w.model][w.focus]

    losses = [loss(w) for w in windows]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] > 0
    # The first is the largest of all, of either model, on hits that the reference gives at least a quarter.
    hits = np.flatnonzero(labels.ar_hit(10) & labels.scored & (scores["ref"][0] >= np.log(0.25)))
    best = max(float((scores["ref"][0] - scores[m][0])[hits].max()) for m in ("m1", "m2"))
    assert losses[0] == pytest.approx(best)
    few = choose_examples(tokens, labels, scores, WORDS, reference="ref", threshold=10, count=2)
    assert few.windows == windows[:2]


def test_a_model_that_comes_later_is_shown_in_the_windows_of_the_others() -> None:
    tokens, labels, scores = many()
    every = choose_examples(tokens, labels, scores, WORDS, reference="ref", threshold=10, count=100)
    both = {name: scores[name] for name in ("ref", "m1")}
    before = choose_examples(tokens, labels, both, WORDS, reference="ref", threshold=10, count=100)
    later = {"m2": scores["m2"]}
    out = add_models(before, ["ref", "m2", "m1"], ["ref", "m1"], tokens, labels, later)
    assert (out.models, out.added) == (("ref", "m2", "m1"), ("m2",))
    assert out.choice == before.choice + "; chosen without m2"
    focus = [(w.document, w.start + w.focus) for w in out.windows]
    assert focus == [(w.document, w.start + w.focus) for w in before.windows]
    same = {w.document: w for w in every.windows if (w.document, w.start + w.focus) in focus}
    assert len(same) > 2
    for w in out.windows:
        assert list(w.logprob) == ["ref", "m2", "m1"]
        if w.document in same:
            assert (w.logprob, w.top1_correct) == (same[w.document].logprob, same[w.document].top1_correct)
    assert add_models(every, ["ref", "m1", "m2"], ["ref", "m1", "m2"], tokens, labels, later) == every
    # Another checkpoint of m2, and no m1 any more: only what m2 lost as it was could be left, and it is not.
    assert add_models(every, ["ref", "m2"], ["ref"], tokens, labels, later).windows == ()


def test_hits_that_the_reference_does_not_know_are_no_examples() -> None:
    """exp(-1.3) = 0.273 and exp(-1.4) = 0.247, on both sides of a quarter."""
    tokens, labels = labelled([[*unique(2, 10), 2, 3, 50, 51]], ["a"])
    for value, count in ((-1.3, 1), (-1.4, 0)):
        scores = {"ref": flat(labels, value), "m": flat(labels, -9.0)}
        out = choose_examples(tokens, labels, scores, WORDS, reference="ref", threshold=10)
        assert len(out.windows) == len(out.known) == count


def test_there_may_be_no_examples() -> None:
    tokens, labels, scores = many()
    alone = {"ref": scores["ref"]}
    assert choose_examples(tokens, labels, alone, WORDS, reference="ref", threshold=10).windows == ()
    assert choose_examples(tokens, labels, scores, WORDS, reference="ref", threshold=6).windows == ()
    equal = {"ref": scores["ref"], "m": scores["ref"]}
    assert choose_examples(tokens, labels, equal, WORDS, reference="ref", threshold=10).windows == ()


def test_leading_spaces_are_kept() -> None:
    vocabulary = ["<eos>", "?", *(f"▁w{k}" for k in range(2, 60)), *unique(60, 40)]
    backend = Backend(models.WordLevel({str(word): k for k, word in enumerate(vocabulary)}, unk_token="?"))
    backend.decoder = decoders.Metaspace()
    spaced = Tokenizer(backend, name="spaced", eos=EOS)
    tokens, labels = labelled([[*unique(2, 10), 2, 3, 50]], ["a"])
    scores = {"ref": flat(labels, -1.0), "m": flat(labels, -2.0)}
    (window,) = choose_examples(tokens, labels, scores, spaced, reference="ref", threshold=10).windows
    assert window.tokens[:3] == ("w2", " w3", " w4")
