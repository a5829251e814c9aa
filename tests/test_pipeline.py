"""The whole pipeline against a plain recomputation with transformers and NumPy, and the command line."""

import itertools
import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from argap.atomic import read_json
from argap.bigram_index.build import build_index
from argap.cells import read_cells
from argap.cli import main
from argap.comparison import compare_runs, label_result
from argap.corpus import open_corpus
from argap.corpus.tokenize import token_documents
from argap.errors import ArgapError, FormatError, MismatchError
from argap.labels import read_labels
from argap.pipeline import score_models
from argap.records import EvaluationSpec, as_json, read_gap
from argap.references import Reference, add_reference
from argap.reports.write import write_report
from argap.slice_library import SliceSpec
from argap.threshold import parse_threshold, resolve_threshold
from argap.tokenizer import load_tokenizer

ROOT = Path(__file__).parent.parent
TOKENIZER = ROOT / "argap" / "demo" / "tokenizer"
SEQ_LEN, LIMIT, THRESHOLD = 48, 1500, 3
TRAIN = ["def add(a, b):\n    return a + b\n" * 3, "class Stack:\n    def push(self, item):\n        self.items = []\n"]


def save_model(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=8192, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    )
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20 + seed)
    model.save_pretrained(folder)
    shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory, tokenizer):
    """Two checkpoints, real text in two domains, and the index of a small training text."""
    place = tmp_path_factory.mktemp("place")
    for seed, name in enumerate(["good", "bad"]):
        save_model(place / name, seed)
    source = Path(json.__file__).parent
    for domain, file in (("decode", "decoder.py"), ("encode", "encoder.py")):
        (place / "text" / domain).mkdir(parents=True)
        (place / "text" / domain / file).write_text((source / file).read_text()[:4000])
    (place / "train").mkdir()
    for i, text in enumerate(TRAIN):
        (place / "train" / f"{i}.py").write_text(text)
    build_index(
        (d.ids for d in token_documents(open_corpus(place / "train"), tokenizer)),
        place / "index",
        vocab_size=tokenizer.vocab_size,
        tokenizer=str(TOKENIZER),
        tokenizer_fingerprint=tokenizer.fingerprint,
        sources=["train"],
    )
    return place


def spec(place: Path, **changed) -> EvaluationSpec:
    chosen = {"data": (str(place / "text"),), "seq_len": SEQ_LEN, "limit_tokens": LIMIT, "packing": "packed"}
    return EvaluationSpec(**{**chosen, **changed})


def on(place: Path, **changed) -> dict[str, Any]:
    """The text and index of ``place``, as `score_models` takes them."""
    return {"spec": spec(place, **changed), "index": str(place / "index")}


def recompute(place: Path, tokenizer) -> dict:
    """The same numbers without argap's code, except the tokenizer: loops, dicts, one window at a time."""
    stream, domains = [], []
    for path in sorted((place / "text").rglob("*.py")):
        ids = [*tokenizer.encode([path.read_text()])[0].tolist(), tokenizer.eos]
        stream += ids
        domains += [path.parent.name] * len(ids)
    stream = stream[:LIMIT]
    windows = [stream[i : i + SEQ_LEN] for i in range(0, len(stream), SEQ_LEN)]
    counts = Counter()
    for text in TRAIN:
        ids = tokenizer.encode([text])[0].tolist()
        counts.update(itertools.pairwise(ids))
    hits, logprobs = [], {"good": [], "bad": []}
    for window in windows:
        seen = set()
        for pair in itertools.pairwise(window):
            hits.append(pair in seen and tokenizer.eos not in pair and counts[pair] <= THRESHOLD)
            seen.add(pair)
    for name, found in logprobs.items():
        model = AutoModelForCausalLM.from_pretrained(place / name, dtype=torch.float32).eval()
        for window in windows:
            with torch.no_grad():
                table = model(torch.tensor([window])).logits[0].double().log_softmax(-1)
            found += [table[i, token].item() for i, token in enumerate(window[1:])]
    hit = np.array(hits)
    mean = {
        (m, s): np.mean(np.array(v)[k]) for m, v in logprobs.items() for s, k in (("all", slice(None)), ("hit", hit))
    }
    raw = (mean["bad", "hit"] - mean["good", "hit"]) * hit.mean() / (mean["bad", "all"] - mean["good", "all"])
    return {"hits": int(hit.sum()), "n": len(hit), "raw": raw, "mean": mean, "logprobs": logprobs}


@pytest.fixture(scope="module")
def scored(place):
    out = place / "out"
    gap = score_models(
        [str(place / "bad")],
        str(place / "good"),
        out,
        spec=spec(place),
        index=str(place / "index"),
        threshold=THRESHOLD,
    )
    return out, gap


def test_agrees_with_a_plain_recomputation(place, scored, tokenizer):
    _, gap = scored
    expected = recompute(place, tokenizer)
    reference, model = gap.rows
    assert (reference.model, model.model) == ("good", "bad")
    assert (reference.reference, model.reference) == (True, False)
    for row in gap.rows:
        assert row.overall.n == expected["n"]
        assert row.ar_hits.n == expected["hits"] > 20
        assert row.share_ar_hits == expected["hits"] / expected["n"]
        assert row.overall.nll == pytest.approx(-expected["mean"][row.model, "all"], abs=1e-5)
        assert row.ar_hits.nll == pytest.approx(-expected["mean"][row.model, "hit"], abs=1e-5)
    assert model.gap_due_to_ar.raw == pytest.approx(expected["raw"], abs=1e-6)


def test_writes_every_file_of_the_contract(scored):
    out, gap = scored
    assert read_json(out / "gap.json") == json.loads(json.dumps(as_json(gap)))
    assert {p.name for p in out.iterdir()} == {
        "gap.json",
        "cells.parquet",
        "checksums.json",
        "examples.json",
        "labels",
        "good",
        "bad",
    }
    for model in ("good", "bad"):
        assert (out / model / "run.json").is_file()
        assert list((out / model / "tokens").glob("part-*.parquet"))


def test_a_rerun_gives_the_same_result_without_scoring(place, scored, monkeypatch):
    out, gap = scored
    monkeypatch.setattr("argap.scorer.load_model", lambda *a, **k: pytest.fail("a finished run was scored again"))
    again = score_models(
        [str(place / "bad")],
        str(place / "good"),
        out,
        spec=spec(place),
        index=str(place / "index"),
        threshold=THRESHOLD,
    )
    assert again.rows == gap.rows


def test_slices_are_checked_before_any_model_runs(place, tmp_path, monkeypatch):
    monkeypatch.setattr("argap.scorer.load_model", lambda *a, **k: pytest.fail("a model ran"))
    for where, message in {
        "frequency > 3": 'slice bad: condition "frequency > 3": Referenced column',
        "nll.nobody > 3": 'Could not find key "nobody"',
        "pos": "gives integer; expected a boolean",
    }.items():
        with pytest.raises(ArgapError, match=message):
            score_models(
                [str(place / "bad")], str(place / "good"), tmp_path, **on(place), slices=[SliceSpec("bad", where)]
            )
    assert not list(tmp_path.glob("*"))


def test_a_rerun_and_new_labels_keep_the_slices(place, tmp_path, capsys):
    models = [str(place / "bad"), str(place / "good")]
    settings = {**on(place), "threshold": THRESHOLD}
    index = settings.pop("index")
    slices = [SliceSpec("late", "pos > 24", "Late", "A note."), SliceSpec("hard", "nll.bad > 9")]
    first = score_models(models[:1], models[1], tmp_path, **settings, slices=slices)
    assert [each.name for each in first.slices] == ["ar_hits", "late", "hard"]
    assert score_models(models[:1], models[1], tmp_path, **settings).slices == first.slices
    labelled = label_result(tmp_path, index, threshold=0)
    assert labelled == read_gap(tmp_path)
    assert [(s.name, s.where, s.title, s.note, s.n, s.models) for s in labelled.slices[1:]] == [
        (s.name, s.where, s.title, s.note, s.n, s.models) for s in first.slices[1:]
    ]
    assert labelled.slices[0].n < first.slices[0].n  # the hits are now the repeated bigrams never seen in training
    other = score_models([], models[1], tmp_path, **settings)
    assert [each.name for each in other.slices] == ["ar_hits", "late"]
    assert 'a slice of the earlier result is left out: slice hard: condition "nll.bad > 9"' in capsys.readouterr().err
    assert score_models(models[:1], models[1], tmp_path, **settings, slices=[]).slices == ()


def test_compare_gives_the_same_result_without_checkpoints(place, scored, tmp_path):
    out, gap = scored
    again = compare_runs([str(out / "bad")], str(out / "good"), tmp_path, threshold=THRESHOLD)
    assert [replace(row, run="") for row in again.rows] == [replace(row, run="") for row in gap.rows]
    other = compare_runs([str(out / "bad")], str(out / "good"), tmp_path, threshold=0, base=str(out / "bad"))
    assert other.rows[0].ar_hits.n < gap.rows[0].ar_hits.n


def test_a_finished_run_serves_as_reference_with_its_settings_from_any_folder(place, scored, tmp_path, monkeypatch):
    _, gap = scored
    monkeypatch.chdir(place)
    relative = spec(place, data=("text",))
    score_models(["bad"], "good", tmp_path, spec=relative, index="index", threshold=THRESHOLD)
    monkeypatch.chdir(tmp_path)
    again = score_models([str(place / "bad")], "good", tmp_path, threshold=THRESHOLD)
    for row, other in zip(again.rows, gap.rows, strict=True):
        assert row.overall == other.overall
        assert row.ar_hits == other.ar_hits


def test_a_named_reference_brings_its_text_and_index(place, tmp_path, own_home):
    add_reference(
        "mine",
        Reference(
            checkpoint=str(place / "good"), data=(str(place / "text"),), index=str(place / "index"), seq_len=SEQ_LEN
        ),
    )
    gap = score_models([str(place / "bad")], "mine", tmp_path, spec=EvaluationSpec(limit_tokens=LIMIT))
    assert [row.model for row in gap.rows] == ["mine", "bad"]
    assert gap.evaluation.seq_len == SEQ_LEN


def test_without_text_the_standard_library_is_scored_and_said(place, tmp_path, capsys):
    spec = EvaluationSpec(seq_len=SEQ_LEN, limit_tokens=LIMIT)
    gap = score_models([str(place / "bad")], str(place / "good"), tmp_path, spec=spec)
    assert "no text given: scoring the held-out modules of Python's standard library" in capsys.readouterr().err
    assert gap.evaluation.data == ("stdlib:heldout",)
    assert (gap.index, gap.threshold, gap.bins.frequency, gap.breakdowns.frequency) == (None, None, (), ())


def test_without_an_index_every_repeated_bigram_counts_and_counts_come_later(place, scored, tmp_path):
    """`label_result` gives what scoring with the index gives, and touches no run."""
    counted, _ = scored
    settings = {**on(place)}
    index = settings.pop("index")
    gap = score_models([str(place / "bad")], str(place / "good"), tmp_path, **settings)
    labels = read_labels(tmp_path / "labels")
    assert labels.train_count is None
    assert gap.rows[1].ar_hits.n == (labels.repeated & labels.scored).sum()
    assert [part.bin for part in gap.breakdowns.slice] == ["repeated", "other tokens"]
    assert "frequency" not in read_cells(tmp_path / "cells.parquet")
    with pytest.raises(ArgapError, match=r"`threshold` scaled: .* give `index=DIR`"):
        score_models([str(place / "bad")], str(place / "good"), tmp_path, **settings, threshold="scaled")
    page = write_report(tmp_path).read_text()
    assert "% of gap due to repeats" in page
    assert "By training frequency" not in page
    assert "no index: every repeated bigram counts" in (tmp_path / "table.md").read_text()
    before = {path: path.read_bytes() for path in tmp_path.glob("*/run.json")}
    assert len(before) == 2
    later = label_result(tmp_path, index, threshold=THRESHOLD)
    assert {path: path.read_bytes() for path in before} == before
    expected = read_gap(counted)
    for name in ("overall", "ar_hits", "other", "share_ar_hits", "gap_due_to_ar", "delta", "delta_ar"):
        assert [getattr(row, name) for row in later.rows] == [getattr(row, name) for row in expected.rows], name
    assert later.breakdowns == expected.breakdowns
    assert (later.index, later.threshold) == (expected.index, expected.threshold)
    assert not (tmp_path / "report.html").exists()
    assert read_gap(tmp_path) == later
    compare_runs([str(tmp_path / "bad")], str(tmp_path / "good"), tmp_path / "compared")
    with pytest.raises(ArgapError, match="no labels there; label the folder of `argap score`"):
        label_result(tmp_path / "compared", index)


def test_a_tokenizer_other_than_the_references_is_refused(place, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(place / "bad", other)
    state = json.loads((other / "tokenizer.json").read_text())
    state["pre_tokenizer"]["add_prefix_space"] = True
    (other / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(MismatchError, match=r"good and .*other: their tokenizers differ \(\w+ and \w+\)"):
        score_models([str(place / "bad")], str(place / "good"), tmp_path / "out", **on(place, tokenizer=str(other)))
    assert not (tmp_path / "out").exists()


def test_runs_of_different_windows_are_not_joined(place, scored, tmp_path):
    out, _ = scored
    other = spec(place, seq_len=32)
    score_models([str(place / "bad")], str(place / "good"), tmp_path / "o", spec=other, index=str(place / "index"))
    with pytest.raises(MismatchError, match=r"holds evaluation set \w+, the labels .* hold \w+"):
        compare_runs([str(tmp_path / "o" / "bad")], str(out / "good"), tmp_path / "c")


def test_a_run_of_another_configuration_is_kept(place, scored):
    out, _ = scored
    before = {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    other = spec(place, seq_len=32)
    with pytest.raises(
        MismatchError, match=r"holds a run with evaluation set \w+, asked for \w+; choose another `out`"
    ):
        score_models([str(place / "bad")], str(place / "good"), out, spec=other, index=str(place / "index"))
    assert {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()} == before


def test_the_order_of_documents_does_not_change_the_means(place, tmp_path):
    flipped = tmp_path / "text"
    for name, source in (("a", "encode/encoder.py"), ("b", "decode/decoder.py")):
        (flipped / name).mkdir(parents=True)
        shutil.copy(place / "text" / source, flipped / name)
    both = []
    for text in (place / "text", flipped):
        chosen = on(place, data=(str(text),), packing="document", limit_tokens=None)
        both.append(
            score_models(
                [str(place / "bad")],
                str(place / "good"),
                tmp_path / text.parent.name,
                **chosen,
            )
        )
    for a, b in zip(both[0].rows, both[1].rows, strict=True):
        assert a.overall.nll == pytest.approx(b.overall.nll, abs=1e-6)
        assert a.ar_hits.n == b.ar_hits.n


def test_an_interrupted_result_leaves_no_stale_files(scored, tmp_path, monkeypatch):
    runs = str(scored[0] / "bad"), str(scored[0] / "good")
    compare_runs(runs[:1], runs[1], tmp_path)
    assert (tmp_path / "gap.json").is_file()

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("argap.comparison.summarize", killed)
    with pytest.raises(KeyboardInterrupt):
        compare_runs(runs[:1], runs[1], tmp_path, threshold=7)
    assert not (tmp_path / "gap.json").exists()


def test_a_checkpoint_named_twice_is_scored_once(place, tmp_path):
    shutil.copytree(place / "bad", tmp_path / "copy")
    models = [str(place / "bad"), str(tmp_path / "copy"), str(place / "good")]
    gap = score_models(models, str(place / "good"), tmp_path / "out", **on(place))
    assert [row.model for row in gap.rows] == ["good", "bad"]


def test_checkpoints_with_equal_names_get_their_parent_s_name(place, tmp_path):
    for seed, parent in ((2, "first"), (3, "second")):
        save_model(tmp_path / parent / "final", seed)
    gap = score_models(
        [str(tmp_path / "first" / "final"), str(tmp_path / "second" / "final")],
        str(place / "good"),
        tmp_path / "out",
        spec=spec(place),
        index=str(place / "index"),
    )
    assert [row.model for row in gap.rows] == ["good", "final", "second/final"]


def test_runs_never_share_a_folder(place, tmp_path):
    for seed, name in ((2, "labels"), (3, "a b"), (4, "a-b")):
        save_model(tmp_path / name, seed)
    with pytest.raises(ArgapError, match="labels: its run and the labels would share the folder labels; rename"):
        score_models(
            [str(tmp_path / "labels")],
            str(place / "good"),
            tmp_path / "out",
            spec=spec(place),
            index=str(place / "index"),
        )
    both = [str(tmp_path / "a b"), str(tmp_path / "a-b")]
    with pytest.raises(ArgapError, match="a-b: its run and the run of a b would share the folder a-b; rename"):
        score_models(both, str(place / "good"), tmp_path / "out", **on(place))
    assert not (tmp_path / "out").exists()


def test_incomparable_models_are_refused_before_scoring(place, scored, tmp_path):
    good, bad, out = str(place / "good"), str(place / "bad"), tmp_path / "out"
    with pytest.raises(ArgapError, match="`base` nobody: not one of the models compared, which are good, bad"):
        score_models([bad], good, out, **on(place), base="nobody")
    with pytest.raises(MismatchError, match=r"good holds evaluation set \w+, the text is now \w+"):
        score_models([bad], str(scored[0] / "good"), out, spec=EvaluationSpec(seq_len=32))
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [("1250", 1, 1250), ("0", 1, 0), ("scaled", 10**10, 1250), ("scaled", 54_000_000, 6)],
)
def test_thresholds(text, tokens, expected):
    assert resolve_threshold(parse_threshold(text), tokens) == expected


def run_command(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["argap", *arguments])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_score_prints_json_of_the_documented_shape(place, tmp_path, monkeypatch, capsys):
    code, out, _ = run_command(
        monkeypatch, capsys, "score", str(place / "bad"), "--ref", str(place / "good"),
        "--data", str(place / "text"), "--index", str(place / "index"), "--seq-len", str(SEQ_LEN),
        "--limit-tokens", str(LIMIT), "--out", str(tmp_path), "--json",
    )  # fmt: skip
    assert code == 0
    gap = json.loads(out)
    for row in gap["rows"]:
        assert {"model", "reference", "overall", "ar_hits", "other", "share_ar_hits", "gap_due_to_ar"} <= set(row)
        assert {"n", "nll", "ppl"} == set(row["overall"])
    assert {"value", "raw", "case", "ci95"} <= set(gap["rows"][1]["gap_due_to_ar"])
    assert math.isclose(
        sum(p["contribution"]["bad"] for p in gap["breakdowns"]["distance"]), gap["rows"][1]["delta"]["nll"]
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--limit-tokens", "0"], "--limit-tokens 0: expected at least 2"),
        (["--threshold", "many"], "--threshold many: expected a whole number"),
        (["--dtype", "int8"], "--dtype int8: expected auto, float32"),
        (["--device", "tpu"], "--device tpu: expected auto, cpu, cuda or cuda:N"),
        (["--batch-size", "none"], "--batch-size none: expected a positive whole number"),
        (["--index", "nowhere"], "nowhere"),
        (["--seq-len", "100"], "takes at most 64 tokens, the windows have 100; use --seq-len 64"),
    ],
)
def test_bad_input_is_one_line_and_exit_1(place, tmp_path, monkeypatch, capsys, flags, message):
    given = {"--data": str(place / "text"), "--index": str(place / "index"), "--seq-len": "48", "--out": str(tmp_path)}
    given |= dict(zip(flags[::2], flags[1::2], strict=True))
    arguments = [part for pair in given.items() for part in pair]
    code, out, err = run_command(
        monkeypatch, capsys, "score", str(place / "bad"), "--ref", str(place / "good"), *arguments
    )
    assert code == 1
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


def test_usage_errors_exit_2(monkeypatch, capsys):
    assert run_command(monkeypatch, capsys, "score")[0] == 2
    assert run_command(monkeypatch, capsys, "score", "x", "--ref", "y", "--no-such-flag")[0] == 2


def test_references_are_added_listed_and_removed(place, monkeypatch, capsys, own_home):
    assert (
        run_command(monkeypatch, capsys, "ref", "add", "mine", str(place / "good"), "--index", str(place / "index"))[0]
        == 0
    )
    listed = run_command(monkeypatch, capsys, "ref", "list")[1]
    assert "attention\t" in listed
    assert f"mine\t{place / 'good'}\tno text recorded\t{place / 'index'}" in listed
    assert run_command(monkeypatch, capsys, "ref", "remove", "mine")[0] == 0
    code, _, err = run_command(monkeypatch, capsys, "ref", "remove", "mine")
    assert (code, err) == (1, "argap: mine: no reference of that name is recorded; recorded: none\n")
    code, _, err = run_command(monkeypatch, capsys, "ref", "add", "x", str(place / "nowhere" / "at" / "all"))
    assert code == 1


def test_models_with_a_bigger_vocabulary_than_the_tokenizer_are_fine(place, tmp_path):
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(vocab_size=8256, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    model.save_pretrained(tmp_path / "padded")
    shutil.copytree(TOKENIZER, tmp_path / "padded", dirs_exist_ok=True)
    gap = score_models([str(tmp_path / "padded")], str(place / "good"), tmp_path / "out", **on(place))
    assert gap.rows[1].model == "padded"


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_broken_tokenizer_config_is_named(tmp_path, text):
    shutil.copytree(TOKENIZER, tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(text)
    with pytest.raises(FormatError, match=r"tokenizer_config\.json: "):
        load_tokenizer(tmp_path / "tokenizer")


def test_tokenizers_of_checkpoints_are_found_as_transformers_finds_them(real_data):
    from transformers import AutoTokenizer

    ours = load_tokenizer(real_data / "gpt2")
    theirs = AutoTokenizer.from_pretrained(real_data / "gpt2")
    text = "Hakuna Matata <|endoftext|>\n\n  é ½ 漢字"
    expected = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert ours.encode([text])[0].tolist() == expected
    assert ours.eos == theirs.eos_token_id
    assert ours.vocab_size == len(theirs)
