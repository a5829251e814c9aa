"""A token of probability 0: the NLL is infinite, figures that need it have no number, and all others stay."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

import argap
from argap.bigram_index.store import BigramIndex
from argap.cli import app
from argap.corpus import open_corpus
from argap.corpus.tokenize import token_documents
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet, build_evaluation_set
from argap.metric.documents import leave_one_source_out
from argap.metric.fidelity import SUMMED, fidelity
from argap.metric.share import gap_due_to_ar
from argap.records import INFINITE, EvaluationSpec, read_gap
from argap.reports.pages.write import write_report
from argap.reports.tables.result import gap_table, where_table
from argap.reports.tables.sentences import headlines
from argap.result import Result, open_result
from argap.results.difference import compare_pair
from argap.scoring.importing import import_run
from argap.slices.figures import Key, SliceScorer
from argap.slices.sums import Sums, _Groups
from argap.tokens.labels import label
from argap.tokens.runs import read_logprobs
from tests.conftest import estimates_in, index_of, write_drawn_result

MODELS = ("ref", "m", "other")
DOCUMENTS = [
    "the cat sat on the mat and the cat sat. " * 6,
    "a dog saw the cat, and a dog saw it. " * 5,
    "an end. " * 20,
]


def test_the_figures_by_hand() -> None:
    """Two documents of 10 tokens. The reference's NLL is 1, that of ``m`` 2 but for a token of probability 0 in the
    second document, which is in the slice ``hits`` of 5 tokens and not in ``other``."""
    n, inf = np.array([10.0, 10.0]), np.inf
    scorer = SliceScorer(["ref", "m"], "ref", n, np.array([[-10, -20], [-10, -inf]]))
    scorer.add(Key("named", "hits"), np.array([0.0, 5.0]), np.array([[0, 0], [-5, -inf]]))
    scorer.add(Key("named", "other"), np.array([10.0, 5.0]), np.array([[-10, -20], [-5, -10]]))
    whole, hits, other = scorer.results()
    for each in (whole["m"], hits["m"]):
        assert each.infinite
        assert (each.nll, each.ppl, each.delta, each.contribution) == (None, None, None, None)
    assert (other["m"].nll, other["m"].delta, other["m"].contribution) == (2.0, 1.0, 0.75)
    assert other["m"].contribution_ci95 is not None
    for each in (whole["m"], hits["m"], other["m"]):
        assert (each.share, each.paper_rule, each.share_ci95, each.reason) == (None, None, None, INFINITE)
    assert [each["ref"].nll for each in (whole, hits, other)] == [1.0, 1.0, 1.0]


def test_a_source_with_an_infinite_loss_has_no_share_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left = leave_one_source_out(np.array([[[1.0, 2.0], [1.0, np.inf]]]), np.array([0, 1]))
    assert left.part[0].tolist() == pytest.approx([1 / 3, 2 / 3])
    assert np.isnan(left.part[1]).all()


@pytest.mark.parametrize(("hits", "whole"), [(-np.inf, -np.inf), (0.1, -np.inf), (0.1, np.inf), (np.nan, np.nan)])
def test_an_infinite_gap_has_no_share(hits: float, whole: float) -> None:
    assert gap_due_to_ar(hits, whole, 0.1) == (None, None, "infinite")


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("infinite") / "text.jsonl"
    rows = [{"text": f"{k} {d}", "domain": "abc"[k % 3]} for k, d in enumerate(DOCUMENTS * 8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def data(text: Path, tokenizer) -> EvaluationSet:
    return build_evaluation_set(open_corpus(text), tokenizer, seq_len=32)


@pytest.fixture(scope="module")
def index(text: Path, tokenizer) -> BigramIndex:
    first = next(iter(token_documents(open_corpus(text), tokenizer)))
    return index_of([first.ids], text.parent / "index", tokenizer)


@pytest.fixture
def write(data: EvaluationSet, tokenizer, index: BigramIndex, text: Path, tmp_path: Path) -> Callable[[str], Result]:
    """Writes the result of ``ref``, ``m`` and ``other``, one of which gives a repeated token probability 0."""

    def result(rules_out: str) -> Result:
        generator = np.random.default_rng(1)
        loss = [generator.gamma(2.0, 0.2, len(data.tokens)) + k for k in range(3)]
        row = int(np.flatnonzero(label(data).repeated & (data.position > 0))[3])
        loss[MODELS.index(rules_out)][row] = np.inf
        out = tmp_path / "out"
        return open_result(write_drawn_result(out, data, tokenizer, index, source=text, loss=loss, models=MODELS))

    return result


def test_a_model_that_rules_a_token_out(write: Callable[[str], Result], capsys) -> None:
    result = write("m")
    assert "m: a log-prob is −∞, so its perplexity is infinite" in capsys.readouterr().err
    raw = json.loads((result.folder / "gap.json").read_text(), parse_constant=refuse)
    json.loads((result.folder / "examples.json").read_text(), parse_constant=refuse)
    (own,) = (each for each in estimates_in(raw) if each["model"] == "m")
    where = {"model": "m", "partition": "all", "bin": "all"}
    assert own == where | {"n": result.evaluation.scored, "share_of_tokens": 1.0, "reason": INFINITE}
    gap = result.record
    assert gap.deltas.keys() == {"other"}
    assert sum(part["m"].infinite for part in gap.parts("distance")) == 1
    parts = [part["other"].contribution or 0.0 for part in gap.parts("distance")]
    assert sum(parts) == pytest.approx(gap.deltas["other"])

    table = gap_table(gap)
    cells = next(row for row in table.rows if row[0] == "m")
    assert (cells[2], cells[5:]) == ("∞", ("—", "—"))
    where = where_table(gap)
    assert where is not None
    assert (where.rows[0][0], *where.rows[0][3:5]) == ("m", "—ᵃ", "—")
    assert "ᵃ unresolved: a log-prob is −∞." in where.notes
    assert ("∞", "nats per token behind", "ΔNLL of m to ref is not finite: a log-prob is −∞.", "") in headlines(gap)
    frame = result.table().set_index(["model", "slice"])
    assert frame.loc[("m", "overall"), "nll"] == np.inf
    assert frame.loc[("other", "overall"), "delta"] == pytest.approx(gap.deltas["other"])

    write_report(result.folder)
    assert "∞" in (result.folder / "report.html").read_text()
    assert "∞" in (result.folder / "table.md").read_text()


def test_models_that_rule_out_tokens_of_different_sources_give_no_warning(
    data: EvaluationSet, tokenizer, index: BigramIndex, text: Path, tmp_path: Path
) -> None:
    generator = np.random.default_rng(1)
    loss = [generator.gamma(2.0, 0.2, len(data.tokens)) + k for k in range(3)]
    drawn = np.flatnonzero(data.position > 0)
    for k, each in enumerate(loss):  # of domain a, b and c: the parts of a gap are ∞ and −∞
        each[drawn[data.document[drawn] % 3 == k][2]] = np.inf
    out = tmp_path / "out"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_drawn_result(out, data, tokenizer, index, source=text, loss=loss, models=MODELS)
        write_report(out)
        result = open_result(out)
        assert result.record.deltas == {}
        assert np.isnan(np.asarray(result.breakdown("source")["contribution"])).any()
        compare_pair(str(out / "ref"), str(out / "m"))
        result.fidelity()
        result.fidelity(by="domain")
        result.closely()
        result.table()
        result.gap({"again": "repeated"})
        result.tokens("isinf(nll.m)")


def test_differences_of_portions_add_up_without_a_warning() -> None:
    made = Sums(1, 1)
    for value in (np.inf, -np.inf):
        one = np.array([[value]])
        made.add(_Groups(np.array([0]), np.array([None]), np.array([[0]]), np.array([1]), one), np.array([True]))
    assert made.n.tolist() == [2]
    assert np.isnan(made.logprob[0, 0])


def test_an_infinite_kl_has_no_share_and_no_warning() -> None:
    sums: dict[str, np.ndarray] = dict.fromkeys([*SUMMED, "kl"], np.array([np.inf, 0.0]))
    found = fidelity("m", "all", np.array([2.0, 1.0]), sums, of_all={"n": 3.0, "kl": np.inf})
    assert (found.kl, found.share_of_kl) == (None, None)


def test_its_other_slices_keep_their_figures(write: Callable[[str], Result]) -> None:
    result = write("m")
    assert len(result.tokens("isinf(nll.m)")) == 1
    frame = result.gap({"finite": "NOT isinf(nll.m)", "infinite": "isinf(nll.m)"}).set_index(["model", "slice"])
    assert frame.loc[("m", "infinite"), "nll"] == np.inf
    assert np.isfinite(frame.loc[("m", "finite"), ["nll", "delta", "delta_low", "contribution"]].astype(float)).all()
    assert frame.loc[("m", "finite"), "reason"] == INFINITE
    by_source = result.breakdown("source").set_index("model")["contribution"]
    assert np.isnan(np.asarray(by_source["m"])).sum() == 1  # the source with the token
    assert np.isfinite(np.asarray(by_source["other"])).all()
    with pytest.raises(ArgapError, match="m: no finite ΔNLL to ref"):
        result.discover("m")
    assert len(result.discover("other"))


def test_a_reference_that_rules_a_token_out(write: Callable[[str], Result]) -> None:
    """No model has a gap to it; the models' own figures stay."""
    result = write("ref")
    assert result.record.deltas == {}
    assert [each.infinite for each in result.record.on_all.estimates.values()] == [True, False, False]
    assert headlines(result.record) == [
        ("∞", "nats per token ahead", f"ΔNLL of {model} to ref is not finite: a log-prob is −∞.", "")
        for model in ("m", "other")
    ]
    write_report(result.folder)


def test_a_result_is_compared_again(write: Callable[[str], Result], tmp_path: Path) -> None:
    folder = write("m").folder
    command = ["compare", f"{folder}/m", "--ref", f"{folder}/ref", "--out", str(tmp_path / "again"), "--json"]
    answered = CliRunner().invoke(app, command, catch_exceptions=False)
    assert answered.exit_code == 0, answered.output
    assert read_gap(tmp_path / "again").on_all["m"].reason == INFINITE


class Ruling(torch.nn.Module):
    """The head of a model that never predicts one token."""

    def __init__(self, head: torch.nn.Module, token: int) -> None:
        super().__init__()
        self.head, self.token = head, token

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(hidden).index_fill(-1, torch.tensor([self.token]), -torch.inf)


def test_a_model_is_scored(data: EvaluationSet, tokenizer, text: Path, tmp_path: Path, capsys) -> None:
    torch.manual_seed(0)
    size = {"vocab_size": tokenizer.vocab_size, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    config = GPT2Config(**size, bos_token_id=0, eos_token_id=0)
    reference, model = GPT2LMHeadModel(config), GPT2LMHeadModel(config)
    model.name_or_path = "m"
    token = int(np.bincount(data.tokens).argmax())
    model.lm_head = Ruling(model.lm_head, token)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(tmp_path / "tokenizer")
    result = argap.score(
        model,
        reference,
        tokenizer=str(tmp_path / "tokenizer"),
        data=text,
        seq_len=32,
        out=tmp_path / "out",
    )
    tokens = result.tokens(columns=["token", "nll"])
    infinite = np.isinf(np.array([row["m"] for row in tokens["nll"].to_pylist()]))
    assert (infinite == (tokens["token"].to_numpy() == token)).all()
    assert infinite.any()
    assert result.record.on_all["m"].reason == INFINITE


def test_runs_of_which_one_rules_a_token_out_are_compared_without_a_warning(write: Callable[[str], Result]) -> None:
    folder = write("m").folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare_pair(str(folder / "ref"), str(folder / "m"))
    shares = [each.share for each in found.breakdowns["distance"]]
    assert shares.count(None) == 1  # of the token's distance: infinite of infinite
    assert sum(share for share in shares if share) == 0


def test_log_probs_are_imported(data: EvaluationSet, tokenizer, text: Path, tmp_path: Path) -> None:
    logprob = np.where(np.arange(len(data.tokens)) == 5, -np.inf, -1.0)
    rows = zip(data.document.tolist(), data.tokens.tolist(), logprob.tolist(), strict=True)
    lines = [json.dumps({"document": d, "token": t, "logprob": p}) for d, t, p in rows]
    (tmp_path / "log-probs.jsonl").write_text("\n".join(lines))
    tokenizer.save(tmp_path / "tokenizer")
    spec = EvaluationSpec(data=(str(text),), seq_len=32)
    run = import_run(tmp_path / "log-probs.jsonl", tmp_path / "out", tokenizer=str(tmp_path / "tokenizer"), spec=spec)
    assert np.flatnonzero(np.isneginf(read_logprobs(run)[0])).tolist() == [5]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
