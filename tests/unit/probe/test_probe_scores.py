"""``argap probe``: its scores against values worked by hand and a naive scan of the model; what it resumes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError, MismatchError
from argap.files.parquet import read_parquet
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.probe.drafts import Answer, Prompt
from argap.probe.measures import read_answers, rows_by_distance, rows_by_load
from argap.probe.prompts import ProbeSet, as_windows, build_prompts
from argap.probe.records import Condition, ProbeSpec, read_probe
from argap.probe.run import probe
from argap.text.tokenizer import copy_tokenizer
from argap.train.model import save_model

DEMO = Path(__file__).parents[3] / "argap" / "demo" / "checkpoints"
SPEC: dict[str, Any] = {
    "tasks": ("induction", "phonebook"),
    "loads": {"induction": (3,), "phonebook": (3, 4)},
    "prompts": 2,
    "shots": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights with the demo's tokenizer, for 128 tokens at most."""
    where = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = ArgapConfig(vocab_size=8192, hidden_size=8, num_hidden_layers=1, max_position_embeddings=128)
    save_model(ArgapForCausalLM(config), where)
    copy_tokenizer(DEMO / "attention", where)
    return where


def test_scores_by_hand(tokenizer: Any) -> None:
    """Two prompts of one condition. Their answers are tokens 4 and 5; token 2 of the prompt is a decoy of the first."""
    decoyed = Answer(4, 6, distance=3, chance=0.25, decoys=((1, 3),))
    prompts = [Prompt(np.array([9, 5, 7, 9, 5, 6], dtype=np.int32), (decoyed,), control=(1, 3)) for _ in range(2)]
    made = ProbeSet([Condition("phonebook", "tokens", 4)], 2, prompts, as_windows(prompts, tokenizer))
    # The first model answer is right; the second begins as both the answer and the decoy, then goes on with the decoy.
    top1 = np.array([-1, 0, 0, 0, 5, 6, -1, 0, 0, 0, 5, 7])
    logprob = np.array([np.nan, -1, -3, 0, -0.5, -0.25, np.nan, -2, -4, 0, -1, -2.25])
    answered = read_answers(made, logprob, top1)
    (row,) = rows_by_load("m", made, answered)
    assert (row.accuracy, row.nll, row.token_nll, row.token_accuracy) == (0.5, 2.0, 1.0, 0.75)
    assert (row.decoys, row.control_nll, row.chance, row.distance, row.tokens) == (0.5, 2.5, 0.25, 3, 6)
    # Two prompts of 0.75 and 3.25 nats: 2.0 ± t·|difference| / 2 with one degree of freedom (12.706). Half of two right
    # answers: Wilson's (1 + z²/2) / (2 + z²) ± z √(1/2 + z²/4) / (2 + z²), z = 1.96.
    assert row.nll_ci95 == pytest.approx((2 - 12.706 * 1.25, 2 + 12.706 * 1.25), rel=1e-4)
    assert row.accuracy_ci95 == pytest.approx((0.0945, 0.9055), abs=1e-4)
    (near,) = rows_by_distance("m", made, answered)
    assert (near.low, near.nll, near.answers, near.control_nll) == (2, 2.0, 2, None)  # 2 to 3 tokens back


def test_a_probe_is_a_naive_scan_and_resumes_without_a_model(
    folder: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build_prompts(ProbeSpec(**SPEC), tokenizer)
    result = probe([str(folder)], ProbeSpec(**SPEC), tmp_path)
    model = ArgapForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    table = read_parquet(tmp_path / "tiny" / "answers.parquet")
    assert len(table) == 2 * 2 + 2 * 4  # two answers in a repetition of three tokens, one in each phone book
    for row in table.to_pylist():
        ids = made.prompts[row["window"]].ids
        with torch.no_grad():
            logprobs = model(torch.from_numpy(ids)[None].long()).logits[0].log_softmax(-1)
        places = range(row["start"], row["stop"])
        assert row["nll"] == pytest.approx(-sum(float(logprobs[k - 1, ids[k]]) for k in places), rel=1e-4)
        assert row["right_tokens"] == sum(int(logprobs[k - 1].argmax()) == ids[k] for k in places)
    books = [row for row in result.rows if row.task == "phonebook" and row.form == "text"]
    own = [row["nll"] for row in table.to_pylist() if row["form"] == "text" and row["load"] == 4]
    assert books[1].nll == pytest.approx(np.mean(own))
    assert (result.models, result.bos, read_probe(tmp_path / "probe.json")) == (["tiny"], {}, result)

    monkeypatch.setattr("argap.scoring.local.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    assert probe([str(folder)], ProbeSpec(**SPEC), tmp_path) == result
    with pytest.raises(MismatchError, match=r"holds a run with evaluation set .*; choose another `out`"):
        probe([str(folder)], ProbeSpec(**SPEC, seed=1), tmp_path)


def test_too_long_prompts_are_refused_before_a_model_is_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argap.scoring.local.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    spec = ProbeSpec(tasks=("induction",), loads={"induction": (64, 65)}, prompts=2)
    expected = r"tiny: takes at most 128 tokens; prompts of induction \(tokens, period 65\) have up to 130; use"
    with pytest.raises(ArgapError, match=expected) as error:
        probe([str(DEMO / "attention"), str(folder)], spec, tmp_path)
    assert "\n" not in str(error.value)
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_the_command_prints_a_table_or_json_and_writes_both_and_a_figure(folder: Path, tmp_path: Path) -> None:
    flags = ["--tasks", "induction,brackets", "--load", "induction=3,4", "--load", "brackets=1", "--prompts", "2"]
    call = ["probe", str(folder), f"again={folder}", *flags, "--shots", "1", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, [*call, "--markdown"])
    assert shown.exit_code == 0, shown.output
    by_load, by_distance = (tmp_path / "probe.md").read_text().split("\n**By distance**")
    assert shown.stdout == by_load
    assert by_distance.splitlines()[-1].startswith("- Accuracy and NLL of the answers by their distance")
    assert "| induction | tokens | 2–3 | 4 |" in by_distance  # two answers in each of two repetitions of three tokens
    assert [line.split(" | ")[:3] for line in shown.stdout.splitlines() if line.startswith("| ")][2:] == [
        ["| induction", "tokens", "3"],
        ["| induction", "tokens", "4"],
        ["| brackets", "text", "1"],
    ]
    printed = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert {(row["model"], row["load"]) for row in printed["rows"]} == {
        (m, k) for m in ("tiny", "again") for k in (1, 3, 4)
    }
    assert printed["rows"][0]["nll"] == printed["rows"][3]["nll"]  # the same weights
    assert (tmp_path / "probe.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--load", "phonebook"], r"`load` phonebook: expected TASK=N,... with a task of induction"),
        (["--load", "phonebook=4,x"], "`load` 4,x: expected whole numbers"),
        (["--length", "-1"], "`length` -1: expected whole numbers"),
        (["--tasks", ""], r"`forms` tokens, text: no task of \(none\)"),
        (["--forms", "poem"], "forms: "),
        (["--layers", "--tasks", "lag"], "`layers`: measured on one task"),
        (["--layers", "--load", "induction=8,16"], "as `load` one induction=N at most"),
    ],
)
def test_flags_that_say_nothing_are_refused(flags: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["probe", "absent", *flags])
    with pytest.raises(ArgapError, match=message):
        raise result.exception or AssertionError(result.output)
