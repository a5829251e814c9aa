"""KL and entropies of a run against full softmaxes in float64, their columns, resuming, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

import argap
from argap.checkpoints.live import LiveModel
from argap.errors import ArgapError, MismatchError
from argap.records.columns import optional_types, schema_of
from argap.reports.pages.write import write_report
from argap.scoring import batches
from argap.slices.conditions import check_condition
from argap.tokens import runs
from argap.view.windows import WindowReader
from tests.builders.processes import COMMAND, said, torchrun
from tests.conftest import save_model
from tests.unit.scoring.test_scorer import CONFIGS

PADDED = GPT2Config(vocab_size=8192 + 60, n_embd=24, n_layer=1, n_head=2, n_positions=128)
TEXT: dict[str, Any] = {
    "data": "stdlib:heldout",
    "seq_len": 64,
    "limit_tokens": 2 * 64 + 30,
    "limit_document_tokens": 50,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer) -> dict[str, Path]:
    configs = {name: CONFIGS[name] for name in ("gpt2", "gemma2", "granite")} | {"padded": PADDED}
    return {
        name: save_model(tmp_path_factory.mktemp(name), config, tokenizer, seed=k)
        for k, (name, config) in enumerate(configs.items())
    }


def columns(folder: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(folder / "tokens")
    return {name: table[name].to_numpy() for name in table.column_names}


def exact(folder: Path, rows: dict[str, np.ndarray], before: tuple[int, ...] = ()) -> torch.Tensor:
    """Log-probs of the whole vocabulary before each token, float64; padding of the vocabulary left out."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = torch.zeros(len(rows["token"]), 8192, dtype=torch.float64)
    for window in np.unique(rows["window"]):
        at = np.flatnonzero(rows["window"] == window)
        ids = torch.tensor([*before, *rows["token"][at].tolist()])
        with torch.no_grad():
            logits = model(ids[None]).logits[0, len(before) : -1, :8192].double()
        found[at[1:]] = logits.log_softmax(-1)
    return found


@pytest.mark.parametrize(
    ("model", "reference", "headless", "bos"),
    [
        ("gemma2", "gpt2", (), None),
        ("gpt2", "granite", (), 3),
        ("padded", "gpt2", ("padded",), None),
        ("gpt2", "padded", ("padded",), 3),
    ],
)
def test_kl_and_entropies_are_those_of_full_softmaxes(
    folders, tokenizer, tmp_path, monkeypatch, model, reference, headless, bos
):
    """Also with a BOS for one of the two, a padded vocabulary, and a model that gives its own logits."""
    find = batches.find_head
    width = 24 if headless else None  # the padded model's
    monkeypatch.setattr(batches, "find_head", lambda m, ids: None if m.config.hidden_size == width else find(m, ids))
    options: dict[str, Any] = {} if bos is None else {"bos": {model: tokenizer.token_text(bos)}}
    out = tmp_path / "out"
    result = argap.score({model: folders[model]}, str(folders[reference]), kl=True, out=out, **TEXT, **options)
    rows, theirs = columns(out / model), columns(out / result.reference)
    assert "kl" not in theirs
    scored = np.flatnonzero(~np.isnan(rows["logprob"]))
    p = exact(folders[reference], rows)[scored]
    q = exact(folders[model], rows, () if bos is None else (bos,))[scored]
    kl = (p.exp() * (p - q)).sum(-1)
    assert kl.mean() > 1e-4
    np.testing.assert_allclose(rows["kl"][scored], kl, atol=1e-4, rtol=0)
    if not headless:
        np.testing.assert_allclose(rows["entropy"][scored], -(q.exp() * q).sum(-1), atol=1e-4, rtol=0)
        np.testing.assert_allclose(theirs["entropy"][scored], -(p.exp() * p).sum(-1), atol=1e-4, rtol=0)
    unscored = np.isnan(rows["logprob"])
    assert np.isnan(rows["kl"][unscored]).all()
    assert not np.isnan(rows["kl"][scored]).any()


@pytest.fixture(scope="module")
def scored(folders, tmp_path_factory) -> argap.Result:
    asked = {"padded": folders["padded"], "gemma2": folders["gemma2"]}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "SHARD_TOKENS", 64)
        return argap.score(asked, str(folders["gpt2"]), kl=True, out=tmp_path_factory.mktemp("kl"), **TEXT)


def test_kl_is_a_column_of_the_tokens(scored):
    rows = columns(scored.folder / "gemma2")
    reference = scored.reference
    found = scored.gap({"far": "kl.gemma2 > 0.003", "apart": f'entropy."{reference}" < entropy.padded - 0.1'})
    n = found.drop_duplicates("slice").set_index("slice")["n"]
    assert n["far"] == (rows["kl"] > np.float32(0.003)).sum() > 0
    tokens = scored.tokens("kl.gemma2 > 0.003", columns=["kl", "entropy"])
    fields = {name: [field.name for field in tokens.schema.field(name).type] for name in ("kl", "entropy")}
    assert fields == {"kl": ["padded", "gemma2"], "entropy": [reference, "padded", "gemma2"]}
    with pytest.raises(ArgapError, match=f'condition "kl.{reference} > 1": .*; `argap score --kl` keeps kl'):
        scored.gap({"none": f"kl.{reference} > 1"})


def test_a_run_with_kl_resumes_with_the_same_reference_only(folders, scored, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "SHARD_TOKENS", 64)
    out = Path(shutil.copytree(scored.folder, tmp_path / "out"))
    parts = sorted((out / "padded" / "tokens").iterdir())
    assert len(parts) > 1
    before = [part.read_bytes() for part in parts]
    parts[1].unlink()
    ask = lambda reference, **more: argap.score(  # noqa: E731
        {"padded": folders["padded"]}, f"{scored.reference}={folders[reference]}", out=out, **TEXT, **more
    )
    ask("gpt2", kl=True)
    assert [part.read_bytes() for part in parts] == before
    other = r"holds a run with kl checkpoint \w{12}, dtype float32, backend hf, asked for checkpoint \w{12}, "
    with pytest.raises(MismatchError, match=other):
        argap.score({"padded": folders["padded"]}, f"new={folders['granite']}", kl=True, out=out, **TEXT)
    with pytest.raises(MismatchError, match="holds a run with entropy True, asked for False"):
        ask("gpt2")


@pytest.mark.slow
def test_two_processes_share_the_parts_and_write_the_run_of_one(folders, scored, tmp_path):
    asked = [word for name, value in TEXT.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    models = [f"{name}={folders[name]}" for name in ("padded", "gemma2")]
    command = ["score", *models, "--ref", str(folders["gpt2"]), "--kl", "--device", "cpu", "--out", "out", *asked]
    code = f"from argap.tokens import runs; runs.SHARD_TOKENS = 64; {COMMAND}"
    assert torchrun(code, *command, folder=tmp_path) == [0, 0], said(tmp_path)[1]
    for name in ("padded", "gemma2"):
        assert runs.open_run(tmp_path / "out" / name).record.finished.processes == 2
        assert sorted(path.name for path in (tmp_path / "out" / name / "tokens").iterdir()) == [
            path.name for path in sorted((scored.folder / name / "tokens").iterdir())
        ]
        rows, expected = columns(tmp_path / "out" / name), columns(scored.folder / name)
        for column in ("kl", "entropy", "logprob"):
            np.testing.assert_allclose(rows[column], expected[column], atol=1e-5, err_msg=column)


def test_what_cannot_be_compared_is_refused_before_any_work(folders, scored, tmp_path, tokenizer):
    plain, out = str(folders["gpt2"]), tmp_path / "out"
    other = save_model(tmp_path / "other", CONFIGS["gpt2"], tokenizer, seed=9)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"vocab":{"', '"vocab":{"<unused>":8192,"', 1))
    run = str(scored.folder / scored.reference)
    cases = [
        ((plain, run), {}, "`kl`: a finished run keeps no distributions; name the reference's checkpoint"),
        (
            ("http://127.0.0.1:1/v1", plain),
            {"model_name": "tiny", "tokenizer": plain},
            "tiny: `kl`: a server returns no logits; leave `kl` out",
        ),
        ((str(other), plain), {}, "other and .*: `kl`: their tokenizers differ"),
    ]
    for (model, reference), options, refusal in cases:
        with pytest.raises(ArgapError, match=refusal):
            argap.score(model, reference, kl=True, out=out, **TEXT, **options)
    assert not list(out.glob("*/run.json"))


def test_models_in_memory_are_compared_on_one_device(folders, scored, tmp_path, monkeypatch):
    names = ("gpt2", "padded")
    reference, model = (AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float32) for name in names)
    live = argap.score({"m": model}, reference, kl=True, tokenizer=str(folders["gpt2"]), out=tmp_path / "live", **TEXT)
    found, expected = (columns(folder)["kl"] for folder in (live.folder / "m", scored.folder / "padded"))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # The only model with KL needs no name.
    short = live.gap({"short": "kl > 0.001 AND repeated", "long": "kl.m > 0.001 AND repeated"})
    n = dict(zip(short["slice"], short["n"], strict=True))
    assert n["short"] == n["long"] > 0
    monkeypatch.setattr(LiveModel, "device", torch.device("cuda", 1))
    with pytest.raises(MismatchError, match=r"m is on cuda:1, .* on cpu: `kl`: expected both on one device"):
        argap.score(
            {"m": model}, str(folders["gpt2"]), kl=True, tokenizer=str(folders["gpt2"]), out=tmp_path / "no", **TEXT
        )


def test_fidelity_is_computed_from_the_columns_of_two_runs(scored):
    rows, theirs = columns(scored.folder / "padded"), columns(scored.folder / scored.reference)
    some = ~np.isnan(rows["logprob"])
    delta = (rows["logprob"].astype(np.float64) - theirs["logprob"])[some]
    same = (rows["top1"] == theirs["top1"])[some]
    frame = scored.fidelity({"early": "pos < 20"}, by="position").set_index(["model", "slice"])
    every = frame.loc["padded"]
    one = every.loc["overall"]
    expected = {
        "n": some.sum(), "delta": -delta.mean(), "absolute": np.abs(delta).mean(), "rms": (delta**2).mean() ** 0.5,
        "moved": (np.abs(delta) > 0.05).mean(), "agreement": same.mean(), "kl": rows["kl"][some].mean(),
        "share_of_kl": 1.0, "entropy": rows["entropy"][some].mean(), "largest": np.abs(delta).max(),
        "reference_entropy": theirs["entropy"][some].mean(), "share_of_tokens": 1.0,
    }  # fmt: skip
    for name, value in expected.items():
        assert one[name] == pytest.approx(value, rel=1e-5), name
    for name, q in {"median": 0.5, "q90": 0.9, "q99": 0.99}.items():
        assert one[name] == pytest.approx(np.quantile(np.abs(delta), q, method="inverted_cdf"), rel=1e-3), name
    assert 0 < one["absolute_low"] < one["absolute"] < one["absolute_high"]
    early = (rows["pos"] < 20)[some]
    assert every.loc["early", "kl"] == pytest.approx(rows["kl"][some][early].mean(), rel=1e-5)
    assert every.loc["early", "agreement"] == pytest.approx(same[early].mean())
    bins = every[every.index.isin([each.label for each in scored.record.bins.position])]
    assert bins["n"].sum() == some.sum()
    assert bins["share_of_kl"].sum() == pytest.approx(1)
    kept = scored.record.fidelity
    assert [each.model for each in kept] == ["padded", "gemma2"]
    assert (kept[0].kl, kept[0].agreement) == (pytest.approx(one["kl"]), one["agreement"])


def test_kl_of_another_reference_is_not_taken_for_its_own(scored, tmp_path):
    """Compared with a model that the KL is not from, runs keep agreement and entropy."""
    other = argap.compare(str(scored.folder / "padded"), str(scored.folder / "gemma2"), out=tmp_path / "other")
    (found,) = other.record.fidelity
    assert (found.kl, found.kl_ci95) == (None, None)
    assert found.entropy is not None
    assert found.agreement is not None


def test_bins_and_columns_break_fidelity_down(scored):
    for by in ("slice", "distance", "copy", "domain", "repeated"):
        frame = scored.fidelity(by=by)
        parts = frame[
            (frame["model"] == "padded") & ~frame["slice"].isin(["overall", *(["ar_hits"] * (by != "slice"))])
        ]
        assert parts["n"].sum() == frame["n"].max(), by
        assert parts["share_of_kl"].sum() == pytest.approx(1), by
    with pytest.raises(ArgapError, match="`by` colour: expected slice, frequency, distance"):
        scored.fidelity(by="colour")


def test_tables_report_and_json_say_how_closely(scored, run_command, tmp_path):
    code, out, _ = run_command("compare", *(str(scored.folder / m) for m in ("padded", "gemma2")), "--ref",
                               str(scored.folder / scored.reference), "--out", str(tmp_path / "c"))  # fmt: skip
    assert code == 0
    lines = [line for line in out.splitlines() if line.strip()]
    heading = " ".join(" ".join(lines[:4]).split())
    assert all(word in heading for word in ("mean |Δ", "Agreement", "mean KL"))
    code, out, _ = run_command("slice", str(scored.folder), "--fidelity", "--by", "position", "--json")
    assert code == 0
    rows = json.loads(out)["fidelity"]
    assert {"model", "name", "kl", "agreement", "absolute_ci95"} < rows[0].keys()
    code, out, _ = run_command("slice", str(scored.folder), "--fidelity", "--where", "kl.padded > 0.001")
    assert code == 0
    assert "% of KL" in " ".join(out.split())
    assert "How closely the reference is followed" in write_report(scored.folder, tmp_path / "report").read_text()
    window = WindowReader(scored.token_table).read(0, ["padded", scored.reference])
    kl, theirs = (each.kl for each in window.models)
    assert theirs is None
    assert kl is not None
    assert kl[1] == pytest.approx(columns(scored.folder / "padded")["kl"][1])


@pytest.mark.parametrize(
    ("where", "sql"),
    [
        ("kl > 1 AND repeated", 'kl."m-1" > 1 AND repeated'),
        ("domain = 'ü' AND \"kl\" > 1 OR KL < 2", 'domain = \'ü\' AND "kl"."m-1" > 1 OR KL."m-1" < 2'),
        ("piece = 'ü kl' AND sqrt(kl) > kl / 2", 'piece = \'ü kl\' AND sqrt(kl."m-1") > kl."m-1" / 2'),
        ('kl."m-1" > 2', 'kl."m-1" > 2'),
    ],
)
def test_a_column_of_one_model_stands_for_its_field(where, sql):
    schema = schema_of(["ref", "m-1"], optional_types({"kl": ["m-1"], "entropy": ["ref", "m-1"]}))
    found = check_condition(where, schema)
    assert (found.sql, found.models) == (sql, ("m-1",))
    with pytest.raises(ArgapError, match=r"STRUCT\(.ref. FLOAT, .m-1. FLOAT\)"):
        check_condition("entropy > 1", schema)
