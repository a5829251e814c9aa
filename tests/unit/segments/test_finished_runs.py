"""Finished runs of several tokenizers, compared without a model: as those that were scored together, or refused."""

import itertools
import json
import math
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from argap.errors import ArgapError, MismatchError
from argap.results.compare import compare_runs, label_result
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from argap.scoring.importing import import_run
from argap.text.tokenizer import load_tokenizer
from argap.tokens.labels import read_labels
from argap.tokens.runs import OWN, open_run, read_logprobs, read_token_ids, read_window_offsets
from tests.conftest import save_model
from tests.unit.segments.conftest import SEQ_LEN, gpt2, llama, numbers, spec


def save_long(place: Path, folder: Path, name: str, seed: int = 0) -> Path:
    """The same kind of model for windows of 400 tokens."""
    tokenizer = load_tokenizer(place / name)
    config = gpt2(tokenizer.vocab_size) if name == "gpt2" else llama(tokenizer.vocab_size, 400)
    config.max_position_embeddings = 400
    return save_model(folder / "long" / name, config, tokenizer, seed)


def test_runs_made_apart(place, tmp_path):
    """Whole documents in a window are the same bytes for every tokenizer; a packed stream in equal windows is not."""
    for packing, seq_len in (("document", 400), ("packed", SEQ_LEN)):
        for name in ("gpt2", "llama"):
            out = tmp_path / packing / name
            long = save_long(place, tmp_path, name)
            score_models([], str(long), out, ScoreConfig(text=spec(place, packing=packing, seq_len=seq_len)))
    document, packed = tmp_path / "document", tmp_path / "packed"
    gap = compare_runs([str(document / "llama" / "llama")], str(document / "gpt2" / "gpt2"), tmp_path / "compared")
    together = score_models(
        [str(tmp_path / "long" / "llama")],
        str(tmp_path / "long" / "gpt2"),
        tmp_path / "together",
        ScoreConfig(text=spec(place, packing="document", seq_len=400)),
    )
    assert numbers(gap) == numbers(together)
    with_run = score_models([str(tmp_path / "long" / "llama")], str(document / "gpt2" / "gpt2"), tmp_path / "with-run")
    assert numbers(with_run) == numbers(together)
    # Log-probs of the second model that were made elsewhere.
    run = open_run(document / "llama" / "llama")
    logprob, tokens, offsets = read_logprobs(run)[0], read_token_ids(run), read_window_offsets(run)
    rows = [
        {
            "tokens": tokens[a:b].tolist(),
            "logprobs": [None if math.isnan(value) else value for value in logprob[a:b].tolist()],
        }
        for a, b in itertools.pairwise(offsets)
    ]
    (tmp_path / "elsewhere.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported = import_run(
        tmp_path / "elsewhere.jsonl",
        tmp_path / "imported",
        tokenizer=str(place / "llama"),
        spec=spec(place, packing="document", seq_len=400),
    )
    from_file = compare_runs([str(imported.folder)], str(document / "gpt2" / "gpt2"), tmp_path / "from-file")
    for own, other in ((from_file.on_all, gap.on_all), (from_file.on_hits, gap.on_hits)):
        assert replace(own["elsewhere"], model="llama") == other["llama"]
    said = r"gpt2: its windows do not hold the same bytes .*`argap score CKPT --ref.* each run with --packing document"
    with pytest.raises(MismatchError, match=said):
        compare_runs([str(packed / "llama" / "llama")], str(packed / "gpt2" / "gpt2"), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_counts_of_runs_made_apart_are_those_beside_the_reference(place, tmp_path):
    """As far as every run reaches. Labels of another text do not count, nor does an index that is gone."""
    index = shutil.copytree(place / "index", tmp_path / "index")
    chosen = spec(place, packing="document", seq_len=400)
    long = {name: str(save_long(place, tmp_path, name)) for name in ("gpt2", "llama")}
    score_models([], long["gpt2"], tmp_path / "gpt2", ScoreConfig(text=chosen, index=str(index), threshold=2))
    score_models(
        [], long["llama"], tmp_path / "llama", ScoreConfig(text=msgspec.structs.replace(chosen, limit_tokens=60))
    )
    shutil.rmtree(index)
    runs = [str(tmp_path / "llama" / "llama")], str(tmp_path / "gpt2" / "gpt2")
    counted = compare_runs(*runs, tmp_path / "counted", threshold=2)
    assert counted.index is not None
    score_models([], long["gpt2"], tmp_path / "other", ScoreConfig(text=spec(place), index=str(place / "index")))
    shutil.rmtree(tmp_path / "gpt2" / "labels")
    shutil.copytree(tmp_path / "other" / "labels", tmp_path / "gpt2" / "labels")
    assert compare_runs(*runs, tmp_path / "without").index is None
    assert numbers(label_result(tmp_path / "without", str(place / "index"), threshold=2)) == numbers(counted)


@pytest.mark.parametrize("limit", [None, 24])
def test_runs_made_together_end_each_document_at_its_last_common_end(place, tmp_path, limit):
    """GPT-2 has tokens for the white space at the end of a document, BERT none."""
    texts = ["the cat sat on the mat" + 7 * " ", "hello world", "the cat on the mat" + 3 * "\n", "the hat sat"]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts * 2))
    chosen = spec(place, data=(str(tmp_path / "text.jsonl"),), packing="document", limit_tokens=limit)
    together = score_models([str(place / "bert")], str(place / "gpt2"), tmp_path / "together", ScoreConfig(text=chosen))
    own = tmp_path / "together" / OWN
    compared = compare_runs([str(own / "bert")], str(own / "gpt2"), tmp_path / "compared")
    with_run = score_models([str(place / "bert")], str(own / "gpt2"), tmp_path / "with-run")
    for gap in (compared, with_run):
        assert gap.fingerprint == together.fingerprint
        assert numbers(gap) == numbers(together)
    with pytest.raises(MismatchError, match="score the checkpoints together"):  # BERT's ends are not Llama's
        score_models([str(place / "llama")], str(own / "gpt2"), tmp_path / "refused")


@pytest.mark.parametrize(
    ("first", "packing", "limits"),
    [
        ("gpt2", "packed", {}),
        ("gpt2", "document", {"limit_tokens": 90}),
        ("gpt2", "packed", {"limit_document_tokens": 25}),
        ("llama", "document", {}),
        ("llama", "packed", {"limit_tokens": 90}),
        ("llama", "document", {"limit_document_tokens": 25}),
    ],
)
def test_reference_and_model_may_be_exchanged(place, tmp_path, capsys, packing, limits, first):
    """Limits count the tokens of the reference that was scored, the coarser or the finer ones."""
    second = "llama" if first == "gpt2" else "gpt2"
    chosen = ScoreConfig(
        text=spec(place, packing=packing, **limits), index=str(place / "index") if first == "gpt2" else None
    )
    together = score_models([str(place / second)], str(place / first), tmp_path / "out", chosen)
    runs = {name: str(tmp_path / "out" / OWN / name) for name in (first, second)}
    exchanged = compare_runs([runs[first]], runs[second], tmp_path / "exchanged")
    assert exchanged.reference == second
    if first == "llama":  # without an index
        with_run = score_models([str(place / first)], runs[second], tmp_path / "with-run")
        assert with_run.on_all[first].n == exchanged.on_all[first].n
    for name in (first, second):
        own, other = together.on_all[name], exchanged.on_all[name]
        assert other.n == own.n
        assert other.nll == pytest.approx(own.nll, rel=1e-9)
    assert exchanged.on_all[first].delta == pytest.approx(-together.on_all[second].delta, rel=1e-9)
    assert ("counts tokens of" in capsys.readouterr().err) == (first == "gpt2")


def test_runs_that_cannot_be_compared_are_refused_before_anything_is_written(place, scored, tmp_path):
    chosen, runs = spec(place, packing="document", seq_len=400), {}
    long = {name: save_long(place, tmp_path, name) for name in ("gpt2", "llama")}
    for name, source, limit in (
        ("gpt2", "gpt2", None),
        ("again", "gpt2", None),
        ("short", "gpt2", 60),
        ("llama", "llama", None),
    ):
        limited = msgspec.structs.replace(chosen, limit_tokens=limit)
        score_models([], f"{name}={long[source]}", tmp_path / name, ScoreConfig(text=limited))
        runs[name] = str(tmp_path / name / name)
    other = save_long(place, tmp_path / "other", "llama", seed=1)
    score_models([], f"llama={other}", tmp_path / "another", ScoreConfig(text=chosen))
    with pytest.raises(MismatchError, match=r"short holds evaluation set .*gpt2 holds"):
        compare_runs([runs["short"], runs["llama"]], runs["gpt2"], tmp_path / "out")
    with pytest.raises(ArgapError, match=r"gpt2: holds sums over the segments of one comparison"):
        compare_runs([runs["llama"]], str(scored[0] / "gpt2"), tmp_path / "out")
    with pytest.raises(ArgapError, match=r"llama: holds sums over the segments .*; use the run of its tokens"):
        compare_runs([str(scored[0] / "llama")], runs["gpt2"], tmp_path / "out")
    compare_runs([runs["llama"]], runs["gpt2"], tmp_path / "out")
    assert load_tokenizer(tmp_path / "out" / "labels").fingerprint == load_tokenizer(place / "gpt2").fingerprint
    with pytest.raises(MismatchError, match=r"llama: holds a run with checkpoint"):
        compare_runs([runs["again"], str(tmp_path / "another" / "llama")], runs["gpt2"], tmp_path / "out")
    assert not (tmp_path / "out" / "again").exists()
    shutil.rmtree(shutil.copytree(tmp_path / "out", tmp_path / "runs") / "labels")
    with pytest.raises(MismatchError, match=r"llama: holds a run with evaluation set"):
        compare_runs([runs["gpt2"]], runs["llama"], tmp_path / "runs")
    for name in ("gpt2", "llama"):
        shutil.rmtree(tmp_path / "out" / name)
    with pytest.raises(MismatchError, match=r"labels: labels of another comparison; choose another `out`"):
        compare_runs([runs["gpt2"]], runs["llama"], tmp_path / "out")


def test_windows_that_were_cut_for_other_lengths_are_refused(place, tmp_path):
    for seq_len in (16, 48):
        chosen = spec(place, packing="document", seq_len=seq_len)
        score_models([str(place / "llama")], str(place / "gpt2"), tmp_path / str(seq_len), ScoreConfig(text=chosen))
    with pytest.raises(MismatchError, match=r"llama: its windows do not hold .*\(others than those of .*gpt2\)"):
        compare_runs([str(tmp_path / "16" / OWN / "llama")], str(tmp_path / "48" / OWN / "gpt2"), tmp_path / "out")


def test_runs_of_other_texts_are_refused_with_both(place, tmp_path):
    texts, folders = {}, {}
    for name, text in (("gpt2", "the cat sat"), ("llama", "hello world")):
        texts[name] = tmp_path / f"{name}.jsonl"
        texts[name].write_text(json.dumps({"text": text}))
        chosen = spec(place, data=(str(texts[name]),), packing="document", seq_len=400)
        score_models([], str(save_long(place, tmp_path, name)), tmp_path / name, ScoreConfig(text=chosen))
        folders[name] = tmp_path / name / name
    both = "; ".join(f"{folders[name]} scored {text}" for name, text in texts.items())
    with pytest.raises(MismatchError, match=re.escape(f"({both}); expected the text that was scored")):
        compare_runs([str(folders["llama"])], str(folders["gpt2"]), tmp_path / "out")


@pytest.mark.parametrize("packing", ["packed", "document"])
def test_text_that_has_changed_since_is_refused_in_its_own_words(place, tmp_path, packing):
    path = tmp_path / "text.jsonl"
    texts = ["the cat sat", "hello world", "the hat sat"]

    def write(*texts: str) -> None:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    write(*texts)
    chosen = spec(place, data=(str(path),), packing=packing, seq_len=400)
    for name in ("gpt2", "llama"):
        score_models([], str(save_long(place, tmp_path, name)), tmp_path / name, ScoreConfig(text=chosen))
    runs = [str(tmp_path / "llama" / "llama")], str(tmp_path / "gpt2" / "gpt2")
    before = numbers(compare_runs(*runs, tmp_path / "before"))
    end = "; expected the text that was scored"
    end += ", its documents cut for the same tokenizers; score" if packing == "document" else "; score"
    first = r"gpt2: other tokens than those of the text as it is now, first in .*text\.jsonl:"
    for changed, message in (
        ((*texts[:2], "the mat sat"), f"{first}3{end}"),  # as many tokens
        ((texts[0], "hello, my old world", texts[2]), f"{first}2{end}"),
        (("world",), f"{first}1{end}"),
        (texts[:2], f"gpt2: [0-9]+ tokens, and the text as it is now has [0-9]+{end}"),
    ):
        write(*changed)
        with pytest.raises(MismatchError, match=message):
            compare_runs(*runs, tmp_path / "out")
    write(*texts, "the cat on the mat")  # what the runs do not reach
    assert numbers(compare_runs(*runs, tmp_path / "out")) == before


def test_a_limit_below_that_of_the_reference_run_holds(place, scored, tmp_path):
    limited = spec(place, limit_tokens=30)
    score_models([str(place / "llama")], str(scored[0] / OWN / "gpt2"), tmp_path, ScoreConfig(text=limited))
    assert 20 < read_labels(tmp_path / "labels").record.evaluation.tokens <= 30
