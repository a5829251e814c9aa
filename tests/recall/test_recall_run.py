"""The command's path on the fixture: files, resume, parity with lm-eval, tables and page."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from argap.cli import main
from argap.errors import ArgapError, MismatchError
from argap.recall.adapter import ArgapLM
from argap.recall.analysis import chance, flips, interval, link_to_gap
from argap.recall.examples import load_examples
from argap.recall.harness import OWN
from argap.recall.protocol import Protocol
from argap.recall.run import run_recall
from argap.reports.recall import published, recall_table, write_recall_page
from argap.tokenizer import tokenizer_folder

CHECKPOINTS = Path(__file__).parents[2] / "argap" / "demo" / "checkpoints"
HYBRID = str(CHECKPOINTS / "hybrid")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Four examples of two tasks, hybrid against the copy baseline."""
    out = tmp_path_factory.mktemp("recall")
    tasks = [load_examples(task, "fixture", limit=4) for task in ("swde", "squad")]
    return out, tasks, run_recall([HYBRID], tasks, out, reference="copy")


def test_lm_eval_computes_the_same_scores_and_they_stand_in_its_shape(done) -> None:
    out, _, found = done
    for row in found["rows"]:
        results = json.loads((out / row["model"] / "results.json").read_text())
        own = results["results"][row["task"]]
        assert own["contains,none"] == row["contains"]
        assert own["contains_stderr,none"] == pytest.approx(row["stderr"])
        assert own["whole_word,none"] == row["whole_word"]
        assert results["versions"][row["task"]] == 1


@pytest.mark.filterwarnings("ignore")  # lm-eval's own
def test_the_stock_pipeline_of_lm_eval_gives_the_same_answers(done, decoder) -> None:
    """Our YAML through ``simple_evaluate``: by lm-eval's own model of transformers, and by our adapter."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer

    _, _, found = done
    score = next(r["contains"] for r in found["rows"] if r["model"] == "hybrid" and r["task"] == "fixture:swde")
    model_class: Any = HFLM
    evaluate: Any = simple_evaluate  # its decorator hides its signature
    stock_tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(Path(HYBRID)))
    stock = model_class(pretrained=decoder.model, tokenizer=stock_tokenizer, batch_size=1)
    answers = []
    for lm in (stock, ArgapLM(decoder, "hybrid")):
        manager = TaskManager(include_path=str(OWN), include_defaults=False, metadata={"rows": "fixture"})
        results = evaluate(lm, tasks=["swde"], task_manager=manager, limit=4, bootstrap_iters=0)
        assert results["results"]["swde"]["contains,none"] == score
        answers.append([sample["resps"] for sample in results["samples"]["swde"]])
    assert answers[0] == answers[1]


def test_samples_say_why(done) -> None:
    out, tasks, _ = done
    rows = pq.read_table(out / "hybrid" / "fixture-swde" / "samples").to_pylist()
    assert len(rows) == 4
    for row in rows:
        example = tasks[0].rows[row["row"]]
        assert row["prompt"] == example.text
        assert row["gold_survived"]
        assert row["distance"] == row["prompt_tokens"] - row["gold_positions"][-1]
        assert len(row["gold_logprobs"]) == len(row["gold_tokens"]) == len(row["gold_repeated"])
        assert row["gold_ar_hit"] is None  # without an index


def test_a_rerun_skips_what_is_there_and_refuses_another_protocol(done, monkeypatch) -> None:
    out, tasks, found = done

    def fails(*_, **__):
        raise AssertionError("asked again")

    monkeypatch.setattr("argap.recall.run.explain", fails)
    again = run_recall([HYBRID], tasks, out, reference="copy")
    assert again["rows"] == found["rows"]
    part = out / "hybrid" / "fixture-squad" / "samples" / "part-00000.parquet"
    part.rename(part.with_suffix(".gone"))
    with pytest.raises(AssertionError, match="asked again"):
        run_recall([HYBRID], tasks, out, reference="copy")
    part.with_suffix(".gone").rename(part)
    with pytest.raises(MismatchError, match="protocol"):
        run_recall([HYBRID], tasks, out, protocol=Protocol(twice=True))
    with pytest.raises(ArgapError, match="takes its tokenizer"):
        run_recall(["copy"], tasks, out)


def test_table_and_page_name_the_fixture_and_escape_the_text(done) -> None:
    out, _, found = done
    table = recall_table(found)
    assert "fixture:swde" in table
    assert "Protocol 1: zero-shot" in table
    page = write_recall_page(out).read_text()
    assert '<mark class="gold">' in page
    assert '<mark class="query">' in page


def test_chance_is_the_mean_over_all_other_golds() -> None:
    # Golds a, b, c; answers "a b", "", "c": pairs (i, j ≠ i) that hit: answer 0 holds b. 1 of 6.
    samples = [{"gold": g, "generation": a} for g, a in zip("abc", ("a b", "", "c"), strict=True)]
    assert chance(samples) == pytest.approx(1 / 6)


def test_flips_and_their_exact_test() -> None:
    # 5 lost, none gained: two-sided binomial p = 2 / 2^5
    own = [{"id": str(k), "contains": False} for k in range(5)]
    other = [{"id": str(k), "contains": True} for k in range(5)]
    found = flips(own, other)
    assert (found["lost"], found["gained"], found["difference"]) == (5, 0, -1.0)
    assert found["p_value"] == pytest.approx(2 / 32)
    assert found["lost_ids"] == list("01234")


def test_the_interval_resamples_documents() -> None:
    import numpy as np

    hits = np.array([1.0, 1.0, 0.0, 0.0])
    assert interval(hits, ["a", "a", "a", "a"]) is None
    assert interval(hits, ["a", "a", "b", "b"]) == (0.0, 1.0)  # a resample may hold a or b alone
    assert interval(hits, ["a", "b", "a", "b"]) == (0.5, 0.5)  # every document has one of two


def test_the_link_to_the_ar_gap() -> None:
    nll = {"ref": 1.0, "a": 2.0, "b": 3.0, "c": 4.0}
    gap = {"rows": [{"model": m, "ar_hits": {"nll": v}} for m, v in nll.items()]}
    rows = [{"model": m, "task": "t", "contains": s} for m, s in zip(nll, (0.9, 0.7, 0.5, 0.3), strict=True)]
    (link,) = link_to_gap(rows, gap, "ref")
    assert link["pearson"] == pytest.approx(1.0)
    assert [p["recall_gap"] for p in link["points"]] == pytest.approx([0.2, 0.4, 0.6])
    assert link_to_gap(rows[:3], gap, "ref")[0]["pearson"] is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tasks", ","], "--tasks ',': expected some of swde, fda, squad, or zeroshot alone"),
        (["--gap", "nowhere"], "--gap nowhere: the recall gap is to a reference; name it with --ref"),
        (["--ref", "copy", "--gap", "nowhere"], "nowhere/gap.json: no such file"),
        (["--paper", "nowhere.csv"], "--paper nowhere.csv: no such file"),
    ],
)
def test_bad_flags_are_refused_before_a_model_is_asked(flags, message, tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["argap", "recall", "no/such/model", "--fixture", "--out", str(out), *flags])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_published_figures_may_have_ragged_lines(tmp_path) -> None:
    (tmp_path / "f.csv").write_text("model,fda\nbased,24.4\nnote\n")
    assert published(tmp_path / "f.csv").splitlines()[1:] == [
        "Published (f.csv):", "model  fda ", "based  24.4", "note       "
    ]  # fmt: skip
