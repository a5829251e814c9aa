"""`argap recall` on the fixture: files, resume, parity with lm-eval, tables and page."""

import json
import re
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from matplotlib.text import Text

from argap.cli import main
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json, write_json
from argap.recall.examples import load_examples
from argap.recall.link import ArNll
from argap.recall.lm_eval_model import ArgapLM
from argap.recall.lm_eval_tasks import OWN
from argap.recall.prompts import Protocol
from argap.recall.result import RecallResult, flips, open_recall
from argap.recall.run import run_recall, run_upstream
from argap.recall.samples import HitRule, Sample, task_folder
from argap.recall.scores import Failures, by_key, chance, gold_interval, gold_nll, interval, why
from argap.records import as_json
from argap.reports.figures.recall import recall_figure
from argap.reports.pages.recall import (
    failures_table,
    published,
    recall_headline,
    recall_table,
    tasks_table,
    write_recall_page,
)
from argap.reports.tables.formats import markdown, print_tables
from argap.reports.tables.numbers import DASH
from argap.text.tokenizer import tokenizer_folder
from tests.conftest import index_of

CHECKPOINTS = Path(__file__).parents[3] / "argap" / "demo" / "checkpoints"
HYBRID = str(CHECKPOINTS / "hybrid")


def a_sample(**values: Any) -> Sample:
    """A sample of which only some fields matter."""
    unset: dict[str, Any] = dict.fromkeys(Sample.__struct_fields__)
    return Sample(**unset | values)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Four examples of two tasks, hybrid against the copy baseline."""
    out = tmp_path_factory.mktemp("recall")
    tasks = [load_examples(task, "fixture", limit=4) for task in ("swde", "squad")]
    return out, tasks, run_recall([HYBRID], tasks, out, reference="copy")


def test_lm_eval_computes_the_same_scores_and_they_stand_in_its_shape(done) -> None:
    out, _, result = done
    for row in result.rows:
        results = json.loads((out / row.model / "results.json").read_text())
        own = results["results"][row.task]
        assert own["contains,none"] == pytest.approx(row.contains, rel=1e-12)  # a sum over n by another route
        assert own["contains_stderr,none"] == pytest.approx(row.stderr, rel=1e-12)
        assert own["whole_word,none"] == pytest.approx(row.whole_word, rel=1e-12)
        assert results["versions"][row.task] == 1


@pytest.mark.filterwarnings("ignore")  # lm-eval's own
def test_the_stock_pipeline_of_lm_eval_gives_the_same_answers(done, decoder, monkeypatch) -> None:
    """Our YAML through ``simple_evaluate``: by lm-eval's own model of transformers, and by our adapter."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer

    _, _, result = done
    score = next(r.contains for r in result.rows if r.model == "hybrid" and r.task == "fixture:swde")
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)  # seconds, and not compared
    model_class: Any = HFLM
    evaluate: Any = simple_evaluate  # its decorator hides its signature
    stock_tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(Path(HYBRID)))
    stock = model_class(pretrained=decoder.model, tokenizer=stock_tokenizer, batch_size=1)
    answers = []
    for lm in (stock, ArgapLM(decoder, "hybrid")):
        manager = TaskManager(include_path=str(OWN), include_defaults=False, metadata={"rows": "fixture"})
        results = evaluate(lm, tasks=["swde"], task_manager=manager, limit=4, bootstrap_iters=0)
        assert results["results"]["swde"]["contains,none"] == pytest.approx(score, rel=1e-12)
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


def test_ar_hits_of_golds_are_repeated_and_rare(tokenizer, tmp_path) -> None:
    # In 1 2 1 2 3 the bigram 1 2 occurs twice, 2 1 and 2 3 once; the last is not repeated in the prompt.
    index = index_of([[1, 2, 1, 2, 3]], tmp_path, tokenizer)
    bigrams = ([1, 2, 2], [2, 1, 3], [True, True, False])
    assert HitRule(index, 1).hits(*bigrams) == [False, True, False]
    assert HitRule(index, 2).hits(*bigrams) == [True, True, False]
    assert HitRule().hits(*bigrams) is None


def test_a_rerun_skips_what_is_there_and_refuses_another_protocol(done, monkeypatch) -> None:
    out, tasks, result = done

    def fails(*_, **__):
        raise AssertionError("asked again")

    monkeypatch.setattr("argap.recall.asked.make_sample", fails)
    again = run_recall([HYBRID], tasks, out, reference="copy")
    assert again.rows == result.rows
    part = out / "hybrid" / "fixture-squad" / "samples" / "part-00000.parquet"
    part.rename(part.with_suffix(".gone"))
    with pytest.raises(AssertionError, match="asked again"):
        run_recall([HYBRID], tasks, out, reference="copy")
    part.with_suffix(".gone").rename(part)
    with pytest.raises(MismatchError, match="protocol"):
        run_recall([HYBRID], tasks, out, protocol=Protocol(twice=True))
    with pytest.raises(ArgapError, match="takes its tokenizer"):
        run_recall(["copy"], tasks, out)


def test_a_run_killed_before_its_last_record_ends_as_any_other(done, tmp_path) -> None:
    """With every sample written, and ``run.json`` not yet finished."""
    out, tasks, *_ = done
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out" / "hybrid" / "fixture-swde" / "run.json"
    write_json(path, read_json(path) | {"finished": None})
    run_recall([HYBRID], tasks, tmp_path / "out", reference="copy")
    assert path.read_bytes() == (out / "hybrid" / "fixture-swde" / "run.json").read_bytes()


def test_a_run_that_is_no_record_is_named(done, tmp_path) -> None:
    out, tasks, *_ = done
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out" / "hybrid" / "fixture-swde" / "run.json"
    write_json(path, {key: value for key, value in read_json(path).items() if key != "model"})
    with pytest.raises(FormatError, match=r"fixture-swde/run\.json: Object missing required field `model`"):
        run_recall([HYBRID], tasks, tmp_path / "out", reference="copy")


def test_table_and_page_name_the_fixture_and_escape_the_text(done) -> None:
    out, _, result = done
    table = recall_table(result)
    assert "fixture:swde" in {row[1] for row in table.rows}
    assert table.notes[0].startswith("Protocol 1: zero-shot")
    page = write_recall_page(out).read_text()
    title, sentences = recall_headline(result)
    scores = {m: 100 * fmean(row.contains for row in result.rows if row.model == m) for m in ("hybrid", "copy")}
    assert title == (f"hybrid recalls {scores['hybrid']:.1f}% of the 2 tasks, on average; copy {scores['copy']:.1f}%")
    assert f"<h1>{title}</h1>" in page
    assert sentences[0].startswith(f"{sum(flip.p_value < 0.05 for flip in result.flips)} of 2 differences from copy")
    assert [row[0] for row in tasks_table(result).rows] == ["copy", "hybrid"]
    assert page.count("<svg") == 1
    assert '"recall":[{"axes":1,"along":"y"' in page
    assert '<mark class="gold">' in page
    assert '<mark class="query">' in page
    here = msgspec.structs.replace(result.tasks[0], source="/home/me/rows.jsonl")
    assert ": rows.jsonl, " in recall_table(msgspec.structs.replace(result, tasks=[here])).notes[1]


def test_control_characters_of_a_prompt_are_written_out_on_the_page(done, monkeypatch: pytest.MonkeyPatch) -> None:
    from argap.reports.pages import recall

    read = recall.read_samples

    def altered(folder: Path) -> list[Sample]:
        return [msgspec.structs.replace(each, prompt=f"{each.prompt}\x1b[31m\u202e") for each in read(folder)]

    monkeypatch.setattr(recall, "read_samples", altered)
    page = write_recall_page(done[0]).read_text()
    assert r"\u001b[31m\u202e</mark>" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)
    monkeypatch.undo()
    write_recall_page(done[0])


def test_why_answers_failed(done) -> None:
    """Each wrong answer counts once, under the first reason."""
    prompt = "Size: 5\nColour: amber\nColour:"
    rows = [  # contains, gold in the prompt, rank of its first token, answer, reason
        (True, True, 0, " amber", None),
        (False, False, 0, " amber", "not_in_prompt"),
        (False, True, 0, " amb", "left"),
        (False, True, 3, " ", "empty"),
        (False, True, 1, " AMBER\ncolour", "copied"),
        (False, True, None, " 5", "copied"),
        (False, True, 7, " green", "invented"),
    ]
    samples = [
        a_sample(contains=found, gold_survived=kept, gold_rank=rank, generation=answer, prompt=prompt)
        for found, kept, rank, answer, _ in rows
    ]
    assert [why(sample) for sample in samples[1:]] == [reason for *_, reason in rows[1:]]
    out, _, result = done
    table = failures_table(result)
    wrong = [round((1 - row.contains) * row.n) for row in result.rows]
    assert [sum(map(int, row[2:])) for row in table.rows] == wrong
    assert sum(wrong) > 0
    older = msgspec.structs.replace(result, rows=[msgspec.structs.replace(result.rows[0], failures=None)])
    assert failures_table(older).rows[0][2:] == (DASH,) * 5
    assert "<h3>Why answers failed</h3>" in write_recall_page(out).read_text()
    assert as_json(Failures(copied=2)) == {"not_in_prompt": 0, "left": 0, "empty": 0, "copied": 2, "invented": 0}


def test_groups_have_the_nll_of_their_golds_tokens(done) -> None:
    # Over tokens, not over examples: (1 + 2 + 6) / 3 and 4; the copy baseline has none.
    golds = {"a": [[-1.0], [-2.0, -6.0]], "b": [[-4.0]], "c": [None]}
    samples = [a_sample(key=key, contains=False, gold_logprobs=own) for key in golds for own in golds[key]]
    assert [(group.bin, group.gold_nll) for group in by_key(samples)] == [("a", 3.0), ("b", 4.0), ("c", None)]
    out, _, result = done
    hybrid = next(row for row in result.rows if row.gold_nll is not None)
    nearest = hybrid.by_distance[0]
    assert f"<td>{nearest.gold_nll:.2f}</td><td>{nearest.n}</td>" in write_recall_page(out).read_text()


def test_tasks_are_set_on_the_left_below_their_title(done) -> None:
    out, _, result = done
    page = write_recall_page(out).read_text()
    assert not any(f"<td>{task.label}</td>" in page for task in result.tasks)


def test_an_axis_without_a_right_answer_has_whole_percents(done) -> None:
    result = done[2]
    rows = [msgspec.structs.replace(row, contains=0.0, ci95=(0.0, 0.0), chance=0.0) for row in result.rows]
    panel, *_ = recall_figure(msgspec.structs.replace(result, rows=rows)).axes
    assert panel.get_xlim() == (0, 1)


def test_titles_of_panels_fit_their_panels(done) -> None:
    result, label = done[2], "wde_like.jsonl (swde form)"
    rows = [msgspec.structs.replace(row, model=f"{row.model}-with-windows") for row in result.rows]
    tasks = [msgspec.structs.replace(result.tasks[0], label=f"{k}{label}") for k in range(3)]
    figure = recall_figure(msgspec.structs.replace(result, tasks=tasks, rows=rows, reference=None))
    figure.draw_without_rendering()
    for axes in figure.axes:
        (title,) = (text for text in axes.get_children() if isinstance(text, Text) and text.get_text())
        assert title.get_window_extent().x1 <= axes.get_window_extent().x1


def test_chance_is_the_mean_over_all_other_golds() -> None:
    # Golds a, b, c; answers "a b", "", "c": pairs (i, j ≠ i) that hit: answer 0 holds b. 1 of 6.
    samples = [a_sample(gold=g, generation=a) for g, a in zip("abc", ("a b", "", "c"), strict=True)]
    assert chance(samples) == pytest.approx(1 / 6)


def test_flips_and_their_exact_test() -> None:
    # 5 lost, none gained: two-sided binomial p = 2 / 2^5
    own = [a_sample(id=str(k), contains=False) for k in range(5)]
    other = [a_sample(id=str(k), contains=True) for k in range(5)]
    result = flips("m", "t", own, other)
    assert (result.lost, result.gained, result.difference) == (5, 0, -1.0)
    assert result.p_value == pytest.approx(2 / 32, rel=1e-12)
    assert result.lost_ids == list("01234")


def test_the_interval_resamples_documents() -> None:
    import numpy as np

    hits = np.array([1.0, 1.0, 0.0, 0.0])
    assert interval(hits, ["a", "a", "a", "a"]) is None
    assert interval(hits, ["a", "a", "b", "b"]) == (0.0, 1.0)  # a resample may hold a or b alone
    assert interval(hits, ["a", "b", "a", "b"]) == (0.5, 0.5)  # every document has one of two
    assert interval(hits, ["a", "a", "a\0", "a\0"]) == (0.0, 1.0)


def test_the_gap_on_the_golds_is_per_token_and_paired_by_document() -> None:
    # Over documents a (1 token) and b (3): NLL (1 + 3·2) / 4; 0.5 less in a and 1 less in b with the reference.
    own, other = (
        [
            a_sample(id=name, document=name, gold_tokens=[0] * n, gold_logprobs=[-lost] * n)
            for name, n, lost in (("a", 1, nll_a), ("b", 3, nll_b))
        ]
        for nll_a, nll_b in ((1.0, 2.0), (0.5, 1.0))
    )
    result = flips("m", "t", own, other)
    assert (result.gold_gap, result.gold_gap_ci95) == (3.5 / 4, (0.5, 1.0))  # a resample may hold a or b alone
    assert (gold_nll(own), gold_interval(own)) == (7 / 4, (1.0, 2.0))
    without = [msgspec.structs.replace(sample, gold_logprobs=None) for sample in other]
    assert (flips("m", "t", own, without).gold_gap, gold_interval(without)) == (None, None)


def test_a_gap_without_the_reference_is_refused_before_a_model_is_asked(tmp_path) -> None:
    tasks = [load_examples("swde", "fixture", limit=1)]
    with pytest.raises(ArgapError, match=r"`gap`: no AR hits of the reference copy; expected one of attention, hybrid"):
        run_recall(
            [HYBRID], tasks, tmp_path / "out", reference="copy", ar_nlls={"attention": ArNll(1.0), "hybrid": ArNll(2.0)}
        )
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("protocol", ["pinned", "upstream"])
def test_a_task_file_of_lm_eval_runs_no_code(protocol, tmp_path, monkeypatch, capsys) -> None:
    """A YAML whose ``!function`` leaves a file when it is imported, named as a task, alone and beside a known one."""
    trace = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w').close()\n\ndef prompt(doc):\n    return ''\n")
    (tmp_path / "evil.yaml").write_text("task: evil\noutput_type: generate_until\ndoc_to_text: !function evil.prompt\n")
    monkeypatch.chdir(tmp_path)
    for tasks in (f"{tmp_path}/evil.yaml", "evil", f"swde,{tmp_path}", "../evil.yaml"):
        flags = ["--tasks", tasks, "--protocol", protocol, "--out", "out"]
        monkeypatch.setattr("sys.argv", ["argap", "recall", HYBRID, *flags, *(["--fixture"] * (protocol == "pinned"))])
        with pytest.raises(SystemExit, match="1"):
            main()
        (line,) = capsys.readouterr().err.splitlines()
        assert ("--tasks evil: no task of lm-eval" if tasks == "evil" else "task files are not read") in line
    with pytest.raises(ArgapError, match="can run code"):
        run_upstream([HYBRID], [str(tmp_path / "evil.yaml")], tmp_path / "out")
    assert not trace.exists()
    assert not (tmp_path / "out").exists()


def test_results_stay_below_their_folder(done) -> None:
    """Names become one folder name each, also where ``recall.json`` was altered."""
    out, _, result = done
    assert task_folder(Path("out"), "../../x", "a/../b").parts == ("out", "..-..-x", "a-..-b")
    for name in ("..", ".", "", "/"):
        with pytest.raises(ArgapError, match="becomes a folder"):
            task_folder(Path("out"), "model", name)
    rows = [as_json(row) | {"model": ".."} for row in result.rows]
    altered = out / "altered"
    altered.mkdir()
    (altered / "recall.json").write_text(json.dumps(as_json(result) | {"rows": rows, "reference": None}))
    with pytest.raises(ArgapError, match=r"'\.\.': the name of a model or task becomes a folder"):
        write_recall_page(altered)


def test_a_checkpoint_called_copy_does_not_share_the_baselines_folder(tmp_path, done) -> None:
    _, tasks, _ = done
    own = tmp_path / "checkpoints" / "copy"
    shutil.copytree(HYBRID, own)
    with pytest.raises(ArgapError, match="copy: two models have this name; write NAME=CKPT for one"):
        run_recall([str(own), "copy"], tasks, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_outside_a_repository_git_is_silent_and_the_page_is_named(done, monkeypatch, capfd) -> None:
    """``done`` again, which is finished: lm-eval still scores the answers, and its ``git`` would print to stderr."""
    out, _, result = done
    monkeypatch.chdir(out)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(out.parent))
    flags = ["--tasks", "swde,squad", "--fixture", "--limit", "4", "--ref", "copy", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["argap", "recall", HYBRID, *flags])
    with pytest.raises(SystemExit, match="0"):
        main()
    printed = capfd.readouterr()
    assert "fatal" not in printed.err
    assert printed.err.splitlines()[-1] == f"report: {out / 'recall.html'}"
    print_tables([recall_table(result), failures_table(result)])
    assert printed.out == capfd.readouterr().out


def test_recall_json_is_read_into_the_record_that_wrote_it(done) -> None:
    out, _, result = done
    assert isinstance(result, RecallResult)
    assert open_recall(out) == result


@pytest.mark.parametrize("content", [b"Model,SWDE\n\xe9,1\n", b"x" * 2**18])
def test_published_figures_that_are_no_csv_are_named(tmp_path, content: bytes) -> None:
    (tmp_path / "f.csv").write_bytes(content)
    with pytest.raises(ArgapError, match=r"`paper` .*f\.csv: not readable as CSV in UTF-8 \("):
        published(tmp_path / "f.csv")


def test_published_figures_are_not_read_without_end(tmp_path) -> None:
    with (tmp_path / "f.csv").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FormatError, match=r"f\.csv: 1,099,511,627,776 bytes; expected at most 1,048,576$"):
        published(tmp_path / "f.csv")


@pytest.mark.parametrize("content", ["a\n" * 10_001, "," * 500 + "\na" * 20])
def test_published_figures_have_a_number_of_cells_that_a_table_shows(tmp_path, content: str) -> None:
    (tmp_path / "f.csv").write_text(content)
    with pytest.raises(ArgapError, match=r"f\.csv: 10,\d+ cells; expected a table of at most 10,000$"):
        published(tmp_path / "f.csv")


def test_published_figures_may_have_ragged_lines(tmp_path) -> None:
    (tmp_path / "f.csv").write_text("model,fda\nbased,24.4\nnote\n")
    table = published(tmp_path / "f.csv")
    assert (table.columns, table.rows) == (("model", "fda"), [("based", "24.4"), ("note", "")])
    assert markdown(table) == (
        "**Published (f.csv)**\n\n| model | fda |\n| --- | ---: |\n| based | 24.4 |\n| note |  |\n"
    )


def test_published_figures_may_be_a_heading_alone(tmp_path, capfd) -> None:
    (tmp_path / "f.csv").write_text("model,fda\n")
    print_tables([published(tmp_path / "f.csv")])
    assert "model" in capfd.readouterr().out
