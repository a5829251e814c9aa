"""What a suite adds to its members' figures, in worked examples: the law of distances, prevalence, trajectories."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from argap.corpus import open_corpus
from argap.errors import FormatError
from argap.evaluation.windows import build_evaluation_set
from argap.reports.figures.suite import frontier
from argap.reports.tables.suites.mqar_link import rank_correlation
from argap.suite.repeats import build_prevalence, expected_log, fit_exponents, power_law
from argap.suite.trajectory import COLUMNS, LOG_COLUMNS, build_logs, share_along
from argap.text.content import content_bigrams, has_letters
from argap.text.tokenizer import load_tokenizer
from argap.text.words import PieceBytes
from argap.tokens.labels import label


def test_expected_log_matches_a_worked_example():
    # On 1, 2 there is room for 1 twice, for 2 once. α = 0: weights 2 and 1. α = 1: weights 2 and ½.
    found = expected_log(np.array([0.0, 1.0]), 2)
    assert found == pytest.approx([np.log(2) / 3, np.log(2) / 5])


def test_power_law_counts_positions_with_room():
    # Wherever a token repeats the one d before it with probability ∝ d^−2, alike at all places of 5.
    pairs = np.array([b - a for a in range(5) for b in range(a + 1, 5)], dtype=float)
    weight = np.array([(pairs == d).sum() * d**-2.0 for d in range(1, 5)])
    assert power_law(np.array([2.0]), 4) == pytest.approx(weight / weight.sum())


@pytest.mark.parametrize("exponent", [0.5, 1.2, 2.5])
def test_fit_recovers_the_exponent_of_sampled_distances(exponent):
    rng = np.random.default_rng(1)
    support = np.arange(1, 1023)
    weights = (1023 - support) * support**-exponent
    drawn = np.log(rng.choice(support, 60_000, p=weights / weights.sum())).reshape(60, 1000)
    documents = pd.DataFrame(
        {"document": np.arange(60), "domain": ["a"] * 30 + ["b"] * 30, "n": 1000, "log_distance": drawn.sum(axis=1)}
    )
    fitted = fit_exponents(documents, 1022).set_index("domain")
    assert list(fitted.index) == ["all", "a", "b"]
    assert fitted.loc["all", "exponent"] == pytest.approx(exponent, abs=0.02)
    assert fitted.loc["all", "low"] < exponent < fitted.loc["all", "high"]
    assert (fitted["high"] - fitted["low"]).to_numpy()[0] < (fitted["high"] - fitted["low"]).to_numpy()[1]


def test_one_document_has_no_interval():
    documents = pd.DataFrame({"document": [0], "domain": ["a"], "n": [3], "log_distance": [2.0]})
    fitted = fit_exponents(documents, 100)
    assert np.isnan(fitted["low"].to_numpy()).all()
    assert np.isnan(fitted["high"].to_numpy()).all()


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


def trajectory_of(model, steps, hits, other):
    """Two AR hits and six other tokens at every step; a step has 10 training tokens."""
    rows = [(model, step, 10 * step, 2, h, 6, o) for step, h, o in zip(steps, hits, other, strict=True)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_share_matches_a_worked_example():
    # Of 8 tokens 2 are hits. Step 1: 4 nats lost on each hit, 0 on others: all of the gap. Step 2: 3 on each hit, 1 on
    # each other token: 6 of 12. Step 3: 1 won on each other token and 3 lost on each hit: even, so there is no gap.
    reference = trajectory_of("ref", [1, 2, 3], [2.0, 1.0, 1.0], [3.0, 2.0, 2.0])
    model = trajectory_of("m", [1, 2, 3], [6.0, 4.0, 4.0], [3.0, 3.0, 1.0])
    tokens, shares = share_along(pd.concat([reference, model]), "m", "ref")
    assert tokens.tolist() == [10, 20, 30]
    assert shares[:2].tolist() == pytest.approx([1.0, 0.5])
    assert np.isnan(shares[2])


def test_logs_have_no_evaluations_and_an_auxiliary_loss_where_a_mixer_has_one(tmp_path):
    line = '"tokens": 10, "loss": 0.1, "lr": 0.001, "grad_norm": 1.5, "tokens_per_s": 2.5'
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text(f'{{"step": 1, {line}}}\n{{"step": 1, "tokens": 10, "eval_loss": 2.0}}\n')
    second.write_text(f'{{"step": 2, {line}, "auxiliary_loss": 0.3}}\n')
    logs = build_logs({"b": second, "a": first})
    assert tuple(logs) == LOG_COLUMNS
    rows = logs.astype(object).where(logs.notna(), None).to_numpy().tolist()
    same = [10, 0.1, 0.001, 1.5, 2.5]
    assert rows == [["b", 2, *same, 0.3], ["a", 1, *same, None]]
    assert build_logs({}).dtypes.to_list()[1:] == logs.dtypes.to_list()[1:]
    with pytest.raises(FormatError, match=r"log\.jsonl: no step of a finished training"):
        build_logs({"a": first, "gone": tmp_path / "gone" / "log.jsonl"})


def test_only_common_steps_are_compared():
    reference = trajectory_of("ref", [1, 3, 5], [1.0] * 3, [1.0] * 3)
    model = trajectory_of("m", [2, 3, 4, 5], [2.0] * 4, [1.0] * 4)
    tokens, shares = share_along(pd.concat([model, reference]), "m", "ref")
    assert tokens.tolist() == [30, 50]
    assert shares.tolist() == pytest.approx([1.0, 1.0])


def test_without_ar_hits_the_share_is_zero():
    both = pd.concat([trajectory_of("ref", [1], [np.nan], [1.0]), trajectory_of("m", [1], [np.nan], [2.0])])
    assert share_along(both.assign(n_ar_hits=0), "m", "ref")[1].tolist() == [0.0]


def test_the_frontier_has_the_models_that_none_as_small_surpasses():
    # b needs as much as a and recalls less; d needs more than c for as much.
    points = {"d": (4.0, 1.0), "a": (1.0, 3.0), "b": (1.0, 3.5), "c": (2.0, 1.0), "e": (8.0, 0.5), "f": (3.0, 2.0)}
    assert frontier(points) == ["a", "c", "e"]


def test_rank_correlation_matches_worked_examples():
    # Ranks 1 2 3 4 5 and 2 1 4 3 5: Σ d² = 4, ρ = 1 − 6·4 / (5·24) = 0.8, z = 1.0986123, σ² = 1.32 / 2.
    found = rank_correlation([1, 2, 3, 4, 5], [20, 10, 40, 30, 50])
    assert found is not None
    assert (found.rho, found.n) == (pytest.approx(0.8), 5)
    assert found.ci95 == pytest.approx(
        (np.tanh(1.0986123 - 1.959964 * 0.66**0.5), np.tanh(1.0986123 + 1.959964 * 0.66**0.5))
    )
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == (pytest.approx(-1), None, 3)
    assert rank_correlation([1, 1, 1], [3, 2, 1]) is None
