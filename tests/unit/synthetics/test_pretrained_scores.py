"""Recall of pretrained models in their own vocabulary: pairs among a fill token or a text, scored by a naive scan."""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError, FormatError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.records import as_json
from argap.synthetics.pretrained.records import PretrainedTest, read_scores
from argap.synthetics.pretrained.scores import _check, _examples, _measure, _slices, _text, score_pretrained
from argap.synthetics.tasks.examples import IGNORED
from argap.synthetics.tasks.mqar import ROWS
from argap.synthetics.tasks.pretrained_mqar import build, layout
from argap.text.tokenizer import copy_tokenizer
from argap.train.model import save_model
from tests.conftest import word_tokenizer

DEMO = Path(__file__).parents[3] / "argap" / "demo" / "checkpoints"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of random weights with the demo's tokenizer, for 64 tokens at most."""
    where = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = ArgapConfig(vocab_size=8192, hidden_size=8, num_hidden_layers=1, max_position_embeddings=64)
    save_model(ArgapForCausalLM(config), where)
    copy_tokenizer(DEMO / "attention", where)
    return where


def test_rows_are_a_naive_scans(tokenizer):
    test = PretrainedTest(pairs=(2, 4), examples=3, length=32, fill=" the")
    twice = [str(DEMO / "attention"), str(DEMO / "hybrid" / ".." / "attention")]  # one model
    scores = score_pretrained(twice, test, dtype=torch.float32, device=CPU)
    assert (scores.models, scores.between) == (["attention"], "' the'")
    rows = scores.rows
    assert [(row.pairs, row.slice, row.n) for row in rows] == [
        (2, "ar", 6),  # 3 examples of 2 pairs; 31 scored tokens each
        (2, "other", 72),  # 32 less 4 · 2 fill tokens
        (2, "pairs", 15),  # first keys and values but for the first token, and 2 queries
        (4, "ar", 12),
        (4, "other", 48),
        (4, "pairs", 33),
    ]
    model = ArgapForCausalLM.from_pretrained(DEMO / "attention", dtype=torch.float32).eval()
    made = _examples(tokenizer, test)[1]
    losses, right = [], []
    for inputs, labels in zip(made.inputs, made.labels, strict=True):
        with torch.no_grad():
            logprobs = model(torch.from_numpy(inputs)[None].long()).logits[0].log_softmax(-1)
        for place in np.flatnonzero(labels != IGNORED):
            assert labels[place] == inputs[place]
            losses.append(-float(logprobs[place - 1, labels[place]]))
            right.append(int(logprobs[place - 1].argmax()) == labels[place])
    assert rows[3].nll == pytest.approx(np.mean(losses), rel=1e-5)
    assert 0 < sum(right) < len(right)
    assert rows[3].accuracy == pytest.approx(np.mean(right), abs=1e-12)


def test_scores_do_not_depend_on_how_many_examples_are_scored_at_once(folder, monkeypatch):
    test = PretrainedTest(pairs=(2,), examples=5, length=32, fill=" the")

    def measures(at_once: int) -> list[float]:
        monkeypatch.setattr("argap.synthetics.pretrained.scores.LOGITS_AT_ONCE", at_once * 32 * 8192)
        rows = score_pretrained([str(folder)], test, dtype=torch.float32, device=CPU).rows
        return [value for row in rows for value in (row.n, row.nll, row.accuracy)]

    assert measures(2) == pytest.approx(measures(5), rel=1e-5)
    assert measures(0) == pytest.approx(measures(5), rel=1e-5)


def test_other_is_the_fill_token_alone(tokenizer):
    """As in figure 7, where its line does not rise with the number of pairs."""
    test = PretrainedTest(pairs=(4,), examples=5, length=32, fill=" the")
    (made,) = _examples(tokenizer, test)
    fill = int(tokenizer.encode([" the"])[0][0])
    slices = _slices(made, 4)
    assert np.array_equal(slices["other"], made.inputs[:, 1:] == fill)
    assert np.array_equal(sum(part.astype(int) for part in slices.values()), np.ones((5, 31)))
    (full,) = _examples(tokenizer, PretrainedTest(pairs=(4,), examples=2, length=16, fill=" the"))
    assert "other" not in _slices(full, 4)
    assert PretrainedTest().examples == 1000


def test_no_pair_holds_a_special_token_or_the_fill(tokenizer):
    fill = int(tokenizer.encode([" the"])[0][0])
    # 600 examples of 64 drawn tokens: each of 8,192 would be drawn almost five times.
    (made,) = _examples(tokenizer, PretrainedTest(pairs=(32,), examples=600, length=136, fill=" the"))
    assert tokenizer.eos in tokenizer.special
    assert not np.isin(made.inputs[:, :64], [*tokenizer.special, fill]).any()
    assert (made.inputs == fill).sum() == 600 * (136 - 4 * 32)


def test_a_text_stands_between_the_pairs(folder, tokenizer, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("once upon a time there was a king who had three sons. " * 40)
    test = PretrainedTest(pairs=(2,), examples=4, length=64, text=str(path))
    assert score_pretrained([str(folder)], test, dtype=torch.float32, device=CPU).between == f"the text {path}"
    (made,) = _examples(tokenizer, test)
    text = set(tokenizer.encode([path.read_text()])[0].tolist())
    free = np.ones((4, 64), dtype=bool)
    free[:, :4] = False  # the pairs; then each query and its answer
    rows, places = np.nonzero(made.labels != IGNORED)
    free[rows, places] = free[rows, places - 1] = False
    assert set(made.inputs[free].tolist()) <= text


def test_the_first_tokens_of_a_text_are_used_and_no_more_is_read(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "once upon a time"}\n{"text": "there was a king"}\nbroken\n')
    tokens = np.concatenate(tokenizer.encode(["once upon a time", "there was a king"]))
    for count in (len(tokens), len(tokens) - 1):
        monkeypatch.setattr("argap.synthetics.pretrained.scores.TEXT_TOKENS", count)
        assert _text(tokenizer, str(path)).tolist() == tokens[:count].tolist()
    path.write_text("")
    with pytest.raises(ArgapError, match="the text has 0 tokens; expected at least 32"):
        _examples(tokenizer, PretrainedTest(pairs=(2,), examples=2, length=32, text=str(path)))
    np.save(tmp_path / "ids.npy", np.arange(9, dtype=np.uint16))
    with pytest.raises(ArgapError, match=r"ids.npy: it holds token ids; expected text"):
        _text(tokenizer, str(tmp_path / "ids.npy"))


def test_pairs_are_filled_with_eos_by_default_and_stand_as_far_apart_as_asked(tokenizer):
    test = PretrainedTest(pairs=(4,), examples=20, length=64)
    near, far = (_examples(tokenizer, msgspec.structs.replace(test, alpha=alpha))[0] for alpha in (0.1, 20.0))
    assert (near.inputs == tokenizer.eos).sum() == 20 * (64 - 4 * 4)
    assert near.slices["distance"].sum() < far.slices["distance"].sum()
    with pytest.raises(ArgapError, match="words: it has no end-of-sequence token; choose another one with `fill=TEXT`"):
        _examples(word_tokenizer(["a", "b"], unknown="b"), test)


def test_an_interval_holds_its_mean_and_is_a_point_where_all_are_alike():
    rng = np.random.default_rng(0)
    chosen = rng.random((20, 30)) < 0.5
    logprob = -rng.random((20, 30)).astype(np.float32)
    found = _measure(logprob, logprob > -0.3, chosen, seed=0)
    assert found.nll == pytest.approx(-logprob[chosen].mean(), rel=1e-6)
    assert found.accuracy == pytest.approx((logprob > -0.3)[chosen].mean())
    assert found.ppl_ci95[0] < found.ppl < found.ppl_ci95[1]
    assert found.accuracy_ci95[0] < found.accuracy < found.accuracy_ci95[1]
    assert _measure(logprob, logprob > -0.3, chosen, seed=1).ppl_ci95 != found.ppl_ci95
    alike = _measure(np.full((20, 30), -1.0), np.ones((20, 30), dtype=bool), chosen, seed=0)
    assert alike.ppl_ci95 == pytest.approx([np.e, np.e])
    assert alike.accuracy_ci95 == pytest.approx([1.0, 1.0])


def test_what_does_not_fit_is_one_line(folder, tmp_path):
    def scored(model=folder, **asked):
        test = PretrainedTest(pairs=(2,), examples=2, **asked)
        return score_pretrained([str(model)], test, dtype=torch.float32, device=CPU)

    with pytest.raises(ArgapError, match="at most 64 tokens"):
        scored(length=128, fill=" the")
    scored(length=64, fill=" the")
    with pytest.raises(ArgapError, match="expected one"):
        scored(length=32, fill=" the the")
    with pytest.raises(ArgapError, match="one of the two"):
        scored(length=32, fill=" the", text="somewhere")
    config = ArgapConfig(vocab_size=100, hidden_size=8, num_hidden_layers=1)
    save_model(ArgapForCausalLM(config), tmp_path / "small")
    copy_tokenizer(DEMO / "attention", tmp_path / "small")
    with pytest.raises(ArgapError, match=r"small: it has 100 embeddings, but its tokenizer has token \d{4}; expected"):
        scored(tmp_path / "small", length=32)
    _check(ArgapForCausalLM(config), "small", PretrainedTest(), 99, None)
    with pytest.raises(ArgapError, match="100 embeddings"):
        _check(ArgapForCausalLM(config), "small", PretrainedTest(), 100, None)


def test_the_command_scores_the_demo(tmp_path):
    names = [str(DEMO / name) for name in ("attention", "hybrid")]
    flags = ["--pairs", "2,4", "--examples", "2", "--length", "32", "--out", str(tmp_path), "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, ["synthetics", "score", *names, *flags])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "pairs.svg").is_file()
    written = json.loads((tmp_path / "scores.json").read_text())
    assert written["between"] == "the end-of-sequence token"
    assert [row["model"] for row in written["rows"]] == ["attention"] * 6 + ["hybrid"] * 6
    broken = tmp_path / "broken.json"
    for change, said in (
        ({"rows": []}, "rows: expected those of at least one model"),
        ({"rows": [{"model": "m"}]}, "missing required field"),
        ({"rows": [row | {"nll": float("nan")} for row in written["rows"]]}, "nll"),
        ({"rows": written["rows"][1:]}, "attention has no answers on 2 pairs"),
        ({"pairs": [2, 10**30]}, "pairs"),
        ({"length": None}, "length"),
        ({"format": 3}, "newer argap"),
    ):
        broken.write_text(json.dumps(written | change))
        with pytest.raises(FormatError, match=rf"broken\.json: .*{said}"):
            read_scores(broken)
    broken.write_text(json.dumps(written))
    assert json.loads(json.dumps(as_json(read_scores(broken)))) == written


VOCABULARY = np.arange(100, 900)
TEXT = np.random.default_rng(0).integers(0, 700, 5000).astype(np.int32)


@pytest.mark.parametrize("around", [{"fill": 3}, {"fill": 250}, {"text": TEXT}], ids=["fill", "fill of ours", "text"])
@pytest.mark.parametrize("pairs", [1, 16, 32])
def test_every_return_of_a_key_is_asked_and_nothing_else_is_a_key(around: dict[str, Any], pairs: int) -> None:
    config = layout(examples=40, pairs=pairs, length=128)
    found = build(config, 1, vocabulary=VOCABULARY, **around)
    for tokens, labels, distances in zip(
        found.inputs.tolist(), found.labels.tolist(), found.slices["distance"].tolist(), strict=True
    ):
        answer = dict(zip(tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len({*answer, *answer.values()}) == 2 * pairs
        assert {*answer, *answer.values()} <= set(VOCABULARY.tolist())
        asked = {}
        for t in range(2 * pairs + 1, 128):
            if tokens[t - 1] in answer:
                asked[t] = answer[tokens[t - 1]]
                assert distances[t] == t - 1 - tokens.index(tokens[t - 1])
        assert {t: label for t, label in enumerate(labels) if label != IGNORED} == asked
        assert all(tokens[t] == value for t, value in asked.items())
        assert len(asked) == pairs
        around_them = [
            token for t, token in enumerate(tokens[2 * pairs :], start=2 * pairs)
            if t not in asked and t + 1 not in asked
        ]  # fmt: skip
        assert not set(around_them) & {*answer, *answer.values()}
        if "fill" in around:
            assert set(around_them) <= {around["fill"]}


def test_a_text_stays_in_its_order() -> None:
    found = build(layout(examples=30, pairs=2, length=64), 5, vocabulary=VOCABULARY, text=TEXT)
    starts = set()
    for tokens, labels in zip(found.inputs, found.labels, strict=True):
        own = np.flatnonzero(labels != IGNORED)
        kept = np.setdiff1d(np.arange(4, 64), np.concatenate([own, own - 1]))
        (fits,) = [k for k in range(len(TEXT) - 63) if (TEXT[k : k + 64][kept] == tokens[kept]).all()]
        starts.add(fits)
    assert len(starts) > 20


def test_a_text_of_the_length_and_a_vocabulary_of_the_pairs_are_enough() -> None:
    config = layout(examples=20, pairs=4, length=32)
    found = build(config, 0, vocabulary=VOCABULARY, text=TEXT[:32])
    assert ((found.inputs == TEXT[:32]).sum(axis=1) >= 32 - 4 * 4).all()
    full = build(config, 0, vocabulary=np.arange(9), fill=0)
    assert (np.sort(full.inputs[:, :8]) == np.arange(1, 9)).all()


def test_all_of_1024_tokens_can_be_pairs() -> None:
    found = build(layout(examples=2, pairs=256), 0, vocabulary=np.arange(5000), fill=0)
    assert ((found.labels != IGNORED).sum(axis=1) == 256).all()
    assert not (found.inputs == 0).any()


def test_a_seed_fixes_the_bytes_and_more_examples_only_add() -> None:
    config = layout(examples=3, pairs=4, length=32)
    found = build(config, 2, vocabulary=VOCABULARY, fill=0)
    assert hashlib.sha256(found.inputs.astype("<i4").tobytes()).hexdigest()[:16] == "357b867d20e7fe56"
    more = build(layout(examples=ROWS + 5, pairs=4, length=32), 2, vocabulary=VOCABULARY, fill=0)
    assert np.array_equal(more.inputs[:3], found.inputs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "expected either a fill token or a text"),
        ({"fill": 0, "text": TEXT}, "expected either a fill token or a text"),
        ({"text": TEXT[:50]}, "the text has 50 tokens; expected at least 64"),
        ({"fill": 0, "vocabulary": np.arange(8)}, "7 tokens of the vocabulary .* 4 pairs need 8"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    config = layout(examples=1, pairs=4, length=64)
    with pytest.raises(ArgapError, match=said):
        build(config, 0, **{"vocabulary": VOCABULARY, **options})
    with pytest.raises(ArgapError, match="need 1028 tokens, the length is 1024"):
        layout(examples=1, pairs=257)
