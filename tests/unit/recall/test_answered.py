"""Finished runs of `argap recall` in place of models: the same result, and what is refused before a model is loaded."""

import shutil
from pathlib import Path

import pytest

from argap.cli import main
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json, write_json
from argap.recall.examples import load_examples
from argap.recall.link import ArNll
from argap.recall.prompts import Protocol
from argap.recall.run import run_recall
from argap.records import as_json
from argap.reports.pages.recall import write_recall_page
from argap.scoring.config import ScoreConfig
from tests.conftest import flip_bit, index_of

CHECKPOINTS = Path(__file__).parents[3] / "argap" / "demo" / "checkpoints"
HYBRID, ATTENTION = (str(CHECKPOINTS / name) for name in ("hybrid", "attention"))
AR_NLLS = {"hybrid": ArNll(2.0), "attention": ArNll(1.5), "copy": ArNll(3.0)}


@pytest.fixture(scope="module")
def asked(tmp_path_factory, tokenizer):
    """Two models and the copy baseline asked four examples of two tasks in one call, with an index of no text."""
    folder = tmp_path_factory.mktemp("asked")
    index = index_of([[1, 2]], folder / "index", tokenizer)
    tasks = [load_examples(task, "fixture", limit=4) for task in ("swde", "squad")]
    options = {"index": str(index.folder), "threshold": 0, "ar_nlls": AR_NLLS}
    result = run_recall([HYBRID, "copy"], tasks, folder / "out", reference=ATTENTION, **options)
    write_recall_page(folder / "out")
    return folder / "out", tasks, options, result


@pytest.fixture
def one_by_one(asked, tmp_path):
    """Each model of `asked` in an ``out`` of its own, with another dtype, device and path of the index."""
    for model in AR_NLLS:
        shutil.copytree(asked[0] / model, tmp_path / f"only-{model}" / model)
    for path in tmp_path.rglob("run.json"):
        run = read_json(path)
        there = {"dtype": "bfloat16", "device": "cuda", "index": "/on/another/machine/index"}
        write_json(path, run | {"identity": run["identity"] | there})
    return {model: str(tmp_path / f"only-{model}" / model) for model in AR_NLLS}


@pytest.fixture
def no_model(monkeypatch):
    """Nothing is loaded and asked."""

    def fails(*_, **__):
        raise AssertionError("asked a model")

    monkeypatch.setattr("argap.recall.asked.load_decoder", fails)
    monkeypatch.setattr("argap.recall.asked.make_sample", fails)


def files_of(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob(pattern)}


@pytest.mark.usefixtures("no_model")
def test_finished_runs_give_the_result_that_asking_in_one_call_gives(asked, one_by_one, tmp_path) -> None:
    out, tasks, options, result = asked
    joined = tmp_path / "joined"
    again = run_recall(
        [one_by_one["hybrid"], one_by_one["copy"]], tasks, joined, reference=one_by_one["attention"], **options
    )
    assert as_json(again) | {"run": result.run} == as_json(result)
    assert len(result.flips) == 4
    assert [len(link.points) for link in result.link] == [2, 2]
    provenance = read_json(joined / "hybrid" / "fixture-swde" / "run.json")
    assert provenance["identity"]["dtype"] == "bfloat16"
    for folder in tmp_path.glob("only-*"):
        shutil.rmtree(folder)  # the result holds all it needs
    write_recall_page(joined)
    for pattern in ("recall.html", "*.svg", "*/*/samples/*", "*/*/checksums.json"):
        assert files_of(joined, pattern) == files_of(out, pattern) != {}


@pytest.mark.usefixtures("no_model")
def test_an_interrupted_copy_is_completed_and_another_model_of_the_name_refused(asked, one_by_one, tmp_path) -> None:
    _, tasks, options, _ = asked
    options = options | {"ar_nlls": None}
    run_recall([one_by_one["hybrid"]], tasks, tmp_path / "out", **options)
    samples = tmp_path / "out" / "hybrid" / "fixture-squad" / "samples"
    whole = files_of(samples, "*")
    flip_bit(samples / "part-00000.parquet", 100)
    run_recall([one_by_one["hybrid"]], tasks, tmp_path / "out", **options)
    assert files_of(samples, "*") == whole
    other = [f"hybrid={one_by_one['attention']}"]
    with pytest.raises(MismatchError, match="holds a run with checkpoint"):
        run_recall(other, tasks, tmp_path / "out", **options)
    replaced = run_recall(other, tasks, tmp_path / "out", overwrite=True, **options)
    assert replaced.models == ["hybrid"]
    assert files_of(samples, "*") == files_of(Path(one_by_one["attention"]) / "fixture-squad" / "samples", "*")


@pytest.mark.usefixtures("no_model")
def test_finished_runs_of_the_same_folder_are_not_overwritten(asked, one_by_one, monkeypatch) -> None:
    _, tasks, options, result = asked
    own = Path(one_by_one["attention"])
    before = files_of(own, "*/samples/*")
    monkeypatch.setattr("argap.recall.samples.write_parquet", lambda *_: pytest.fail("wrote its own answers again"))
    again = run_recall([str(own)], tasks, own.parent, overwrite=True, **options | {"ar_nlls": None})
    assert again.rows == [row for row in result.rows if row.model == "attention"]
    assert files_of(own, "*/samples/*") == before


def test_finished_runs_stand_beside_checkpoints_the_copy_baseline_and_names(asked, one_by_one, tmp_path) -> None:
    """On one of the two tasks that they were asked."""
    _, tasks, options, result = asked
    models = ["copy", f"earlier={one_by_one['hybrid']}"]
    again = run_recall(models, tasks[:1], tmp_path / "out", reference=HYBRID, **options | {"ar_nlls": None})
    assert again.models == ["copy", "earlier", "hybrid"]
    rows = {row.model: as_json(row) for row in again.rows}
    before = {row.model: as_json(row) for row in result.rows if row.task == "fixture:swde"}
    assert rows["copy"] == before["copy"]
    assert rows["earlier"] == before["hybrid"] | {"model": "earlier"}
    assert rows["hybrid"] == before["hybrid"]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"limit": 3}, r"only-hybrid/hybrid/fixture-swde: holds answers with `examples` 4, asked for 3; give what"),
        ({"data": "other"}, r"holds answers with `data` [0-9a-f]{12}, asked for [0-9a-f]{12};"),
        ({"tasks": "fda"}, r"hybrid: no answers on fixture:fda, only fixture-squad, fixture-swde; repeat its `argap"),
        ({"protocol": Protocol(context=200)}, r"holds answers with `context` None, asked for 200;"),
        ({"protocol": Protocol(twice=True)}, r"holds answers with `twice` False, asked for True;"),
        ({"threshold": 1}, r"holds answers with `threshold` 0, asked for 1;"),
        ({"config": ScoreConfig.of(bos={"hybrid": "own"})}, "holds answers with `bos` none, asked for 'own';"),
        ({"config": ScoreConfig.of(bos={"hybrid": "Ġthe"})}, r"holds answers with `bos` none, asked for 'Ġthe';"),
        ({"index": None}, r"with `index` /on/another/machine/index, asked for none; give what"),
    ],
)
def test_what_the_answers_were_not_asked_is_refused(asked, one_by_one, changed, message, tmp_path) -> None:
    _, tasks, options, _ = asked
    if "limit" in changed:
        tasks = [load_examples("swde", "fixture", limit=changed.pop("limit"))]
    elif "tasks" in changed:
        tasks = [*tasks, load_examples(changed.pop("tasks"), "fixture", limit=4)]
    elif changed.pop("data", None):
        rows = load_examples("swde", "fixture", limit=5).rows[1:]
        tasks = [type(tasks[0])(tasks[0].task, tasks[0].label, "elsewhere", None, rows)]
    with pytest.raises(ArgapError, match=message):
        run_recall([ATTENTION, one_by_one["hybrid"]], tasks, tmp_path / "out", **options | {"ar_nlls": None} | changed)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_model")
def test_an_index_is_known_by_its_counts(asked, one_by_one, tokenizer, tmp_path) -> None:
    _, tasks, options, result = asked
    models, options = [one_by_one["hybrid"]], options | {"ar_nlls": None}
    shutil.copytree(options["index"], tmp_path / "moved")
    again = run_recall(models, tasks, tmp_path / "out", **options | {"index": str(tmp_path / "moved")})
    assert again.rows == [row for row in result.rows if row.model == "hybrid"]
    golds = [tokenizer.encode([f" {row.gold}"])[0].tolist() for task in tasks for row in task.rows]
    other = index_of(golds, tmp_path / "other", tokenizer)
    with pytest.raises(MismatchError, match=r"asked for \S+/other, which gives other AR hits"):
        run_recall(models, tasks, tmp_path / "out2", **options | {"index": str(other.folder)})


@pytest.mark.usefixtures("no_model")
def test_answers_that_are_not_whole_are_refused(asked, one_by_one, tmp_path) -> None:
    _, tasks, options, _ = asked
    hybrid = Path(one_by_one["hybrid"])

    def refused(error: type[ArgapError], message: str) -> None:
        with pytest.raises(error, match=message):
            run_recall([str(hybrid)], tasks, tmp_path / "out", **options | {"ar_nlls": None})
        assert not (tmp_path / "out").exists()

    path = hybrid / "fixture-squad" / "run.json"
    run = read_json(path)
    write_json(path, run | {"identity": run["identity"] | {"checkpoint": "0" * 64}})
    refused(MismatchError, r"answers of one checkpoint on fixture:swde, of another on fixture:squad; expected those of")
    write_json(path, run | {"finished": None})
    refused(ArgapError, r"hybrid/fixture-squad: the run is not finished; repeat its `argap recall` command to complete")
    write_json(path, run)
    part = hybrid / "fixture-squad" / "samples" / "part-00000.parquet"
    part.rename(tmp_path / "gone")
    refused(FormatError, r"hybrid/fixture-squad: 0 answers, expected 4; repeat its `argap recall` command")
    (tmp_path / "gone").rename(part)
    flip_bit(part, 100)
    refused(FormatError, r"part-00000\.parquet: damaged between bytes 0 and")


def test_a_result_is_no_model(asked, tmp_path) -> None:
    out, tasks, *_ = asked
    with pytest.raises(ArgapError, match=r"out: a result of `argap recall`; expected the folder of one model in it"):
        run_recall([str(out)], tasks, tmp_path / "out")


def test_the_copy_baseline_needs_a_checkpoint_beside_finished_runs(asked, one_by_one, tmp_path) -> None:
    _, tasks, options, _ = asked
    with pytest.raises(ArgapError, match=r"takes its tokenizer from a checkpoint, and finished runs have none; name a"):
        run_recall(["copy"], tasks, tmp_path / "out", reference=one_by_one["hybrid"], **options | {"ar_nlls": None})


@pytest.mark.usefixtures("no_model")
def test_the_command_takes_finished_runs(asked, one_by_one, tmp_path, monkeypatch, capsys) -> None:
    _, _, options, _ = asked
    flags = ["--tasks", "swde,squad", "--fixture", "--limit", "4", "--index", options["index"], "--threshold"]
    command = ["argap", "recall", one_by_one["hybrid"], "--ref", one_by_one["attention"], *flags]
    monkeypatch.setattr("sys.argv", [*command, "0", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "hybrid against attention on fixture:squad" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "out" / "recall.html").is_file()
    monkeypatch.setattr("sys.argv", [*command, "7", "--out", str(tmp_path / "out2")])
    with pytest.raises(SystemExit, match="1"):
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert "hybrid/fixture-swde: holds answers with --threshold 0, asked for 7; give what the answers have" in line


def test_a_path_written_in_two_ways_is_one_model_and_a_name_makes_two(one_by_one, tmp_path, asked, capsys):
    tasks, options, source = asked[1], asked[2] | {"ar_nlls": None}, one_by_one["hybrid"]
    twice = [f"{source}/", source.replace("/hybrid", "//hybrid")]
    result = run_recall(twice, tasks, tmp_path / "one", reference=source, **options)
    assert (result.models, result.reference) == (["hybrid"], "hybrid")
    assert capsys.readouterr().err.count("hybrid: listed twice, scored once; NAME=CKPT gives it a row") == 2
    copies = [one_by_one["copy"], f"{one_by_one['copy']}/"]  # of no weights
    assert run_recall(copies, tasks, tmp_path / "copies", **options).models == ["copy"]
    result = run_recall([f"{HYBRID}/", f"again={source}"], tasks[:1], tmp_path / "two", reference=HYBRID, **options)
    assert (result.models, result.reference) == (["hybrid", "again"], "hybrid")
