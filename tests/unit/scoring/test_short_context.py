"""Passes over a short context against a brute-force computation, the curve of context use, and what is refused."""

import shutil
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import argap
from argap.corpus import open_corpus
from argap.errors import ArgapError, FormatError
from argap.evaluation.windows import build_evaluation_set, strided, tokens_read
from argap.metric.influence import estimates, ratio
from argap.models import ArgapConfig
from argap.records import read_gap
from argap.reports.figures.result import context_use as draw_context_use
from argap.reports.pages.result import render
from argap.reports.tables.result import context_table
from argap.results.printed import result_json
from argap.tokens import runs
from argap.tokens.runs import open_run, read_logprobs, short_passes
from tests.conftest import drawn_model, save_model, word_tokenizer

SEQ_LEN, REACH = 64, 8
LAYERS = {"dense": "attention", "sliding": {"name": "attention", "window": REACH}}
SHORT = 16


@pytest.fixture(scope="module")
def place(tmp_path_factory, tokenizer) -> Path:
    """Two layers of attention, over all positions or over a sliding window; and a text of six documents."""
    place = tmp_path_factory.mktemp("models")
    for name, mixer in LAYERS.items():
        config = ArgapConfig(vocab_size=8192, hidden_size=32, num_hidden_layers=2, mixers=[mixer])
        model = drawn_model(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    torch.nn.init.normal_(weight, std=0.3)  # so large that every layer matters
        model.save_pretrained(place / name)
        tokenizer.save(place / name)
    (place / "text").mkdir()
    code = Path(argap.__file__).with_name("result.py").read_text()
    for k in range(6):
        (place / "text" / f"{k}.txt").write_text(code[600 * k : 600 * (k + 1) + 50 * k])
    return place


def scored(place: Path, out: Path, *models: str, **options):
    """``dense`` as the reference of some ``models``."""
    options = {"data": place / "text", "seq_len": SEQ_LEN, "packing": "document", "out": out} | options
    return argap.score([str(place / model) for model in models], str(place / "dense"), **options)


@pytest.fixture(scope="module")
def curve(place, tmp_path_factory):
    """With every short context from 16 tokens on, in shards of a window or two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "SHARD_TOKENS", 100)
        return scored(place, tmp_path_factory.mktemp("curve"), "sliding", short_context=SHORT, context_curve=True)


@pytest.mark.parametrize("context", [2, 3, 15, 16, 40, 63])
def test_short_windows_give_each_token_at_least_half_their_context(tokenizer, context):
    data = build_evaluation_set(open_corpus("stdlib:heldout"), tokenizer, seq_len=64, limit_tokens=7 * 64 + 30)
    windows = range(2, 8)
    short, kept = strided(data, windows, context)
    assert len(short.tokens) == tokens_read(data, windows, context) <= context / (context // 2) * data.count_in(windows)
    np.testing.assert_array_equal(short.tokens[kept], data.tokens[data.rows(windows)])
    before, position = short.position[kept], data.position_of(windows)
    np.testing.assert_array_equal(before[position < context], position[position < context])
    assert (before[position >= context] >= context / 2).all()
    assert short.longest == context


def by_brute_force(folder: Path, tokens: np.ndarray, context: int) -> np.ndarray:
    """The log-prob of each token of a window, from the short window that holds it first; NaN at position 0."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found, start = np.full(len(tokens), np.nan), 0
    for at in range(1, len(tokens)):
        while at >= start + context:
            start += context // 2
        ids = torch.from_numpy(tokens[start : at + 1].astype(np.int64))
        with torch.no_grad():
            found[at] = model(ids[None]).logits[0, -2].double().log_softmax(-1)[ids[-1]]
    return found


def test_gain_is_the_long_contexts_log_prob_minus_the_short_ones(place, curve):
    table = curve.tokens(columns=["window", "pos", "token", "nll", "gain"])
    short = read_logprobs(open_run(curve.folder / "dense" / f"short-{SHORT}"))[0]
    ids = runs.read_token_ids(open_run(curve.folder / "dense"))
    bounds = runs.read_window_offsets(open_run(curve.folder / "dense"))
    for first, end in pairwise(bounds[:4]):
        expected = by_brute_force(place / "dense", ids[first:end], SHORT)
        np.testing.assert_allclose(short[first:end], expected, atol=2e-5)
    gain, nll = (table[name].combine_chunks().field("dense").to_numpy() for name in ("gain", "nll"))
    np.testing.assert_allclose(gain, -nll - short[~np.isnan(short)], atol=1e-6)
    np.testing.assert_allclose(gain[table["pos"].to_numpy() < SHORT], 0, atol=2e-5)
    assert np.abs(gain).max() > 0.1


@pytest.mark.parametrize(("target", "said"), [("/dev/null", "expected a folder"), ("gone", "a link to nothing")])
def test_what_has_the_name_of_a_pass_and_is_none_is_refused(curve, tmp_path, target, said):
    run = open_run(shutil.copytree(curve.folder / "dense", tmp_path / "dense"))
    assert short_passes(run.folder, run.record.identity)
    shutil.rmtree(run.folder / f"short-{SHORT}")
    (run.folder / f"short-{SHORT}").symlink_to(target)
    with pytest.raises(FormatError, match=said):
        short_passes(run.folder, run.record.identity)


def test_the_curve_of_a_sliding_window_is_flat_beyond_its_reach(curve):
    """Two layers of a window of 8 see 15 tokens back; windows of 32 hold at least 16, windows of 16 only 8."""
    frame = curve.context_use()
    assert frame["context"].fillna(0).tolist() == [16, 32, 0] * 2
    flat = frame.set_index(["model", "context"])["gain"]
    assert flat["sliding", 32] == pytest.approx(0, abs=1e-5)

    def moved(model: str, context: int) -> float:
        whole, short = (curve.folder / model / name for name in ("", f"short-{context}"))
        return float(np.nanmax(np.abs(read_logprobs(open_run(whole))[0] - read_logprobs(open_run(short))[0])))

    assert moved("sliding", 32) < 1e-4
    assert min(moved("sliding", 16), moved("dense", 32), moved("dense", 16)) > 0.01


def test_the_curve_is_over_the_tokens_with_the_longest_short_context_before_them(curve):
    table = curve.tokens(columns=["pos", "document", "nll", "gain"])
    chosen = table["pos"].to_numpy() >= 32
    frame = curve.context_use().set_index(["model", "context"])
    nll = {
        m: table["nll"].combine_chunks().field(m).to_numpy()[chosen].astype(np.float64) for m in ("dense", "sliding")
    }
    gain = table["gain"].combine_chunks().field("dense").to_numpy()[chosen].astype(np.float64)
    whole = frame[frame.index.get_level_values("context").isna()].droplevel("context")
    assert (frame["n"] == chosen.sum()).all()
    assert whole.loc["dense", "nll"] == pytest.approx(nll["dense"].mean(), rel=1e-6)
    assert whole.loc["sliding", "delta"] == pytest.approx((nll["sliding"] - nll["dense"]).mean(), rel=1e-5)
    point = frame.loc["dense", 16]
    assert point["gain"] == pytest.approx(gain.mean(), rel=1e-4)
    assert point["nll"] == pytest.approx(nll["dense"].mean() + gain.mean(), rel=1e-5)
    assert point["gain_low"] < point["gain"] < point["gain_high"]
    assert point["gain_high"] - point["gain_low"] < point["nll_high"] - point["nll_low"]  # paired


def test_intervals_of_the_curve_are_over_the_documents_with_windows(place, tmp_path):
    """Each of the six has several windows; the forty of a single token, which are numbered first, have none."""
    text = Path(shutil.copytree(place / "text", tmp_path / "text"))
    for k in range(40):
        (text / f"0-{k:02d}.txt").write_text("x")
    result = scored(place, tmp_path / "out", "sliding", data=text, short_context=SHORT)
    table = result.tokens(columns=["pos", "document", "nll"])
    chosen = table["pos"].to_numpy() >= SHORT
    _, document = np.unique(table["document"].to_numpy()[chosen], return_inverse=True)
    nll = table["nll"].combine_chunks().field("dense").to_numpy()[chosen]
    expected = estimates(ratio(np.bincount(document, nll), np.bincount(document)))
    assert document.max() == 5
    point = result.context_use().set_index(["model", "context"]).loc["dense"].iloc[-1]
    found = [point["nll"], point["nll_low"], point["nll_high"]]
    assert found == pytest.approx([float(each) for each in (expected.value, expected.low, expected.high)], rel=1e-6)


def test_the_curve_is_in_the_table_the_figure_and_the_json(curve, tmp_path):
    gap = read_gap(curve.folder)
    table = context_table(gap)
    assert table is not None
    assert [row[:2] for row in table.rows[:3]] == [
        ("dense", "16 tokens"),
        ("dense", "32 tokens"),
        ("dense", "whole window"),
    ]
    assert [each["context"] for each in result_json(gap)["context"]] == [16, 32, None] * 2
    loss, _ = draw_context_use(gap).axes
    assert len(loss.lines) == 2
    assert np.asarray(loss.lines[0].get_ydata())[0] == gap.context[0].nll
    assert "context" not in result_json(gap, slices=[gap.on_all])
    page = render(gap, None, {})
    assert "With less context" in page
    assert all(f">{cell}</td>" in page for cell in table.rows[0][2:5])


def test_key_tokens_are_a_bundled_slice_where_the_reference_has_gains(curve, result):
    found = curve.gap().set_index(["slice", "model"])
    where = "gain.dense > 2 AND nll.dense < 2"
    assert found.loc[("key_tokens", "dense"), "where"] == where
    assert found.loc[("key_tokens", "dense"), "n"] == len(curve.tokens(where))
    assert "key_tokens" not in set(result.gap()["slice"])
    with pytest.raises(ArgapError, match="`argap score --short-context` keeps gain"):
        result.gap({"far": "gain.ref > 1"})


def test_a_pass_is_added_to_a_finished_run_and_resumed(place, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "SHARD_TOKENS", 300)
    scored(place, tmp_path)
    parts = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/tokens/*")}
    added = scored(place, tmp_path, short_context=SHORT)
    short = sorted((tmp_path / "dense" / f"short-{SHORT}" / "tokens").iterdir())
    before = [path.read_bytes() for path in short]
    assert len(short) > 2
    short[1].unlink()
    kept = {path: path.stat().st_mtime_ns for path in short if path != short[1]}
    resumed = scored(place, tmp_path, short_context=SHORT)
    assert [path.read_bytes() for path in short] == before
    assert {path: path.stat().st_mtime_ns for path in parts | kept} == parts | kept
    assert resumed.record.context == added.record.context


def test_a_comparison_reads_the_passes_of_its_runs(curve, tmp_path):
    """One run has none; nor has the one of another checkpoint or dtype, whose pass was left over."""
    shutil.copytree(curve.folder / "dense", tmp_path / "dense", ignore=shutil.ignore_patterns("short-*"))
    compared = argap.compare(curve.folder / "sliding", tmp_path / "dense", out=tmp_path / "compared")
    own = [each for each in curve.record.context if each.model == "sliding"]
    assert [each.nll for each in compared.record.context] == [each.nll for each in own]
    assert compared.record.context[0].delta is None
    assert compared.tokens(limit=1).schema.field("gain").type.num_fields == 1
    run = open_run(curve.folder / "dense")
    assert [*short_passes(run.folder, run.record.identity)] == [16, 32]
    for changed in ({"checkpoint": "other"}, {"dtype": "bfloat16"}, {"evaluation_set": "other"}):
        assert not short_passes(run.folder, msgspec.structs.replace(run.record.identity, **changed))


def test_a_finished_reference_without_the_pass_has_no_gain(curve, place, tmp_path, capsys):
    shutil.copytree(curve.folder / "dense", tmp_path / "dense", ignore=shutil.ignore_patterns("short-*"))
    slices, out = {"far": "gain.sliding > 0.01"}, tmp_path / "out"
    result = argap.score(str(place / "sliding"), str(tmp_path / "dense"), short_context=SHORT, slices=slices, out=out)
    assert "dense: a finished run without a pass over 16 tokens" in capsys.readouterr().err
    assert {each.model for each in result.record.context} == {"sliding"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"short_context": SEQ_LEN}, "`short_context` 64: the longest window has 64 tokens; expected fewer"),
        ({"short_context": 1}, "`short_context` 1: expected at least 2, one of context and one to score"),
        ({"context_curve": True}, "`context_curve`: begins at `short_context`, which is not given; for example 64"),
    ],
)
def test_what_has_no_short_context_is_refused_before_any_model_runs(place, tmp_path, options, message):
    with pytest.raises(ArgapError, match=message):
        scored(place, tmp_path, **options)
    assert not list(tmp_path.glob("*/run.json"))


def test_servers_and_several_tokenizers_are_refused(place, tmp_path):
    options = {"data": place / "text", "seq_len": SEQ_LEN, "short_context": SHORT, "packing": "document"}
    tokenizer = str(place / "dense")
    with pytest.raises(ArgapError, match="tiny: `short_context`: not scored on a server; leave `short_context` out"):
        argap.score("http://127.0.0.1:1/v1", tokenizer, model_name="tiny", tokenizer=tokenizer, out=tmp_path, **options)
    words = word_tokenizer(["<unk>", "def", "return"], unknown="<unk>")
    other = save_model(tmp_path / "words", ArgapConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1), words)
    with pytest.raises(ArgapError, match="`short_context`: the models have different tokenizers"):
        argap.score(str(other), tokenizer, out=tmp_path / "out", **options)
    assert not list(tmp_path.glob("**/run.json"))
