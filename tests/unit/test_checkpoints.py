"""Checkpoints beside plain folders: GGUF files, quantised ones, revisions, several devices, and settings per model."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import argap
from argap.checkpoints import find as checkpoint
from argap.checkpoints.classes import auto_class
from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import check_loadable, load_model, runs_native
from argap.cli import main
from argap.corpus import open_corpus
from argap.errors import ArgapError, FormatError, MismatchError
from argap.evaluation.windows import build_evaluation_set
from argap.files.weight_files import INDEX, indexed_files
from argap.models.describe import describe_checkpoint
from argap.models.hub.registry import fla_models, runs_by_fla
from argap.scoring import scorer
from argap.scoring.batches import Batches
from argap.scoring.heads import find_head
from argap.text.tokenizer import load_tokenizer
from argap.tokens.runs import open_run, read_logprobs
from tests.builders.gguf_files import small_llama, write_gguf
from tests.unit.models.hub.families import by_hand, tiny, windows

METHODS = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, "optimum|gptqmodel"),
    "awq": ({"quant_method": "awq", "bits": 4}, "gptqmodel|autoawq"),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
    "compressed-tensors": ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    "nothing": ({"quant_method": "nothing"}, "Unknown quantization type"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, tokenizer) -> Path:
    """``full``, a Llama, ``f32.gguf`` of the same weights, ``full/q8.gguf`` beside its tokenizer, and ``other``."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = small_llama()
    model.save_pretrained(folder / "full")
    tokenizer.save(folder / "full")
    small_llama(seed=5).save_pretrained(folder / "other")
    tokenizer.save(folder / "other")
    for name, eight_bits in (("f32", False), ("full/q8", True)):
        write_gguf(folder / f"{name}.gguf", model, folder / "full", add_bos=False, eight_bits=eight_bits)
    texts = ["the cat sat on the mat. " * 9, "a dog saw the cat and the cat saw a dog. " * 5]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def score(place: Path, out: Path, model: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"data": place / "text.jsonl", "seq_len": 32, "device": "cpu"}
    return argap.score(model, place / "full", out=out, **given | options)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an adapter": (
        {"adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": "org/base"}},
        r"an adapter \(LORA\) of org/base, not a model; merge .* peft, AutoPeftModelForCausalLM\.from_pretrained\("
        r"'.*'\)\.merge_and_unload\(\)\.save_pretrained\('OUT'\), and use OUT with `tokenizer=org/base`",
    ),
    "another adapter": ({"adapter_config.json": {}}, r"an adapter \(of peft\) of another model, not a model"),
    "DeepSpeed": ({"zero_to_fp32.py": {}}, "shards of DeepSpeed; run the zero_to_fp32.py in it"),
    "shards": ({".metadata": {}}, "a distributed checkpoint of torch; `argap convert .* OUT --config FILE` joins it"),
    "T5": ({"config.json": {"model_type": "t5"}}, "model type t5 is an encoder-decoder; expected a causal language"),
    "BART": (
        {"config.json": {"model_type": "bart", "is_encoder_decoder": True}},
        "bart is an encoder-decoder; expected",
    ),
    "CLIP": ({"config.json": {"model_type": "clip"}}, "model type clip is not a language model; expected a causal"),
    "DeBERTa": (
        {"config.json": {"model_type": "deberta-v2"}},
        "model type deberta-v2 is an encoder; expected a causal",
    ),
    "a newer type": (
        {"config.json": {"model_type": "llama9"}},
        r"transformers [\d.]+ does not know its model type 'llama9'; run `pip install -U transformers`",
    ),
    "no type": ({"config.json": {}}, "its config.json has no model_type, and its keys match no known layout"),
    "a type of fla": (
        {"config.json": {"model_type": "mamba3"}},
        "runs model type mamba3, and only on a GPU; `device` is",
    ),
}
"""Folders by the JSON files in them, beside empty weights, and the line that refuses them before any work."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_cannot_be_scored_is_one_line_before_any_work(tmp_path, name: str) -> None:
    """QwenLM/Qwen3-VL#157 is one of many reports of a list of 100 class names instead."""
    files, said = REFUSED[name]
    if "mamba3" in said:
        pytest.importorskip("fla")
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    if name == "shards":
        (tmp_path / "model.safetensors").unlink()
    for file, content in files.items():
        (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ArgapError, match=said) as refused:
        check_loadable(find_checkpoint(tmp_path))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_every_type_of_fla_is_known() -> None:
    fla = pytest.importorskip("fla")
    assert {"mamba3", "moba", "raven", "yoco", "deltaformer", "cat", "stickbreaking_attn"} <= fla_models()
    assert len(fla_models()) == len(list(Path(fla.__file__).parent.glob("models/*/configuration_*.py")))
    assert [runs_by_fla(each) for each in ("rwkv7", "gla", "mamba2", "llama", None)] == [True, *[False] * 4]


def test_without_fla_an_unknown_type_says_that_it_may_be_one_of_its(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("argap.checkpoints.classes.fla_models", frozenset)
    monkeypatch.setattr("argap.models.hub.registry.fla_models", frozenset)
    with pytest.raises(ArgapError, match=r"its model type 'rwkv9'; .* `pip install 'argap\[fla\]'` if it is one of"):
        auto_class("m", {"model_type": "rwkv9"})


@pytest.mark.parametrize("family", ["llava", "mistral3", "qwen2_5_vl", "mllama", "voxtral"])
def test_a_multimodal_model_is_scored_on_text(tmp_path, family: str) -> None:
    """QwenLM/Qwen3-VL#157: AutoModelForCausalLM does not know the configuration of Qwen2-VL."""
    tiny(family, multimodal=True).save_pretrained(tmp_path)
    checkpoint = find_checkpoint(tmp_path)
    check_loadable(checkpoint)
    model, data = load_model(checkpoint, dtype=torch.float32, device="cpu"), windows(30, 7, 19, 12)
    found = Batches(model, data, "cpu", 4, "m").score(range(4)).arrays()[0]
    np.testing.assert_allclose(found, by_hand(model, data), atol=1e-4)


def test_an_error_in_the_code_of_a_family_names_it_and_the_setting(place, tmp_path, monkeypatch) -> None:
    def fails(*given: Any, **named: Any) -> Any:
        raise NotImplementedError('"rms" not implemented for\n this')

    def run(**options: Any) -> Any:
        return argap.score((), place / "full", data=place / "text.jsonl", seq_len=32, out=tmp_path / "out", **options)

    monkeypatch.setattr("argap.scoring.batches.find_sharing", fails)
    with pytest.raises(NotImplementedError):  # argap's own
        run(device="cpu")
    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaMLP.forward", fails)
    with pytest.raises(ArgapError) as refused:
        run(device="cpu", dtype="bfloat16", overwrite=True)
    assert re.fullmatch(
        r".*full: LlamaForCausalLM of transformers [\d.]+ fails on 32 tokens in bfloat16 on cpu \(NotImplementedError: "
        r'"rms" not implemented for this\); try another `dtype`, `device` or `seq_len`; ARGAP_TRACEBACK=1 shows .*',
        str(refused.value),
    )


def test_an_adapter_beside_a_model_is_refused(place, tmp_path) -> None:
    """transformers would add it where peft is installed, argap's own code never."""
    folder = Path(shutil.copytree(place / "full", tmp_path / "model"))
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "me/other"}))
    with pytest.raises(ArgapError, match=r"model: adapter_config\.json would change the weights .*; merge the adapter"):
        find_checkpoint(folder)


@pytest.mark.parametrize("layers", [10**5, 10**30])
def test_more_layers_than_any_model_has_are_refused_at_once(place, tmp_path, layers: int) -> None:
    """Before transformers makes a module for each of them."""
    folder = Path(shutil.copytree(place / "full", tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    with pytest.raises(ArgapError, match=rf"config\.json: num_hidden_layers: expected at most 10,000, found {layers}"):
        score(place, tmp_path / "out", folder)
    with pytest.raises(ArgapError, match="num_hidden_layers"):
        load_model(find_checkpoint(folder), dtype=torch.float32, device="cpu")


def test_a_model_type_is_text(place, tmp_path) -> None:
    folder = Path(shutil.copytree(place / "full", tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": {}}))
    with pytest.raises(FormatError, match=r"config\.json: model_type: expected text, found \{\}"):
        score(place, tmp_path / "out", folder)


def test_a_gguf_file_is_scored_as_its_weights(place, tmp_path) -> None:
    result = score(place, tmp_path / "out", [place / "f32.gguf", place / "full" / "q8.gguf"])
    assert result.models == ["full", "f32.gguf", "q8.gguf"]
    full, exact, eight = (read_logprobs(open_run(tmp_path / "out" / name))[0] for name in result.models)
    np.testing.assert_allclose(exact, full, atol=1e-5)
    assert 1e-4 < np.nanmax(np.abs(eight - full)) < 1
    model = load_model(find_checkpoint(place / "full" / "q8.gguf"), dtype=torch.float32, device="cpu")
    own = small_llama().lm_head.weight.detach()
    assert float((model.lm_head.weight.detach() - own).abs().max()) < float(own.abs().max()) / 127


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{", "not readable as JSON"),
        ("{}", "missing required field `weight_map`"),
        ('{"weight_map": {"x": 3}}', "Expected `str`, got `int`"),
        ('{"weight_map": {}}', "names no file"),
        (
            '{"weight_map": {"x": "../../full/model.safetensors"}}',
            r"names \.\./\.\./full/model\.safetensors; expected safetensors files beside it",
        ),
        (
            '{"weight_map": {"x": "other.safetensors"}}',
            r"names other\.safetensors; expected safetensors",
        ),
        ('{"weight_map": {"x": "weights.bin"}}', r"names weights\.bin; expected safetensors files beside it"),
        ('{"weight_map": {"x": "sub/model.safetensors"}}', r"names sub/model\.safetensors; expected safetensors"),
        ('{"weight_map": {"x": "/etc/model.safetensors"}}', r"names /etc/model\.safetensors; expected safetensors"),
    ],
)
def test_an_index_of_weights_is_believed_in_its_folder_only(tmp_path, index: str, said: str) -> None:
    (tmp_path / INDEX).write_text(index)
    (tmp_path / "sub").mkdir()
    for name in ("model.safetensors", "weights.bin", "sub/model.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(FormatError, match=rf"model\.safetensors\.index\.json: .*{said}"):
        indexed_files(tmp_path / INDEX)


@pytest.mark.parametrize("elsewhere", ["../full/model.safetensors", "/model.safetensors", "weights.bin"])
def test_no_backend_follows_an_index_out_of_the_folder_or_into_a_pickle(place, tmp_path, elsewhere: str) -> None:
    folder = Path(shutil.copytree(place / "full", tmp_path / "full" / "sharded"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(tmp_path / "full" / "model.safetensors")
    torch.save(weights, folder / "weights.bin")
    named = elsewhere if not elsewhere.startswith("/") else str(tmp_path / "full" / "model.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, named)}))
    for options in ({}, {"backend": "hf"}):
        with pytest.raises(FormatError, match=r"model\.safetensors\.index\.json: names .*; expected safetensors"):
            score(place, tmp_path / "out", folder, **options)
    assert not (tmp_path / "out").exists()


def test_the_fingerprint_is_of_what_is_read(place, tmp_path) -> None:
    folder = Path(shutil.copytree(place / "full", tmp_path / "sharded"))
    single = find_checkpoint(folder).fingerprint
    weights = load_file(folder / "model.safetensors")
    save_file(weights, folder / "consolidated.safetensors")  # as Mistral's repositories have
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(weights, "consolidated.safetensors")}))
    assert find_checkpoint(folder).fingerprint == single  # transformers prefers the single file
    (folder / "model.safetensors").unlink()
    found = [find_checkpoint(folder).fingerprint]
    names = sorted(weights)
    save_file({names[0]: weights[names[0]] + 1}, folder / "first.safetensors")
    found.append(find_checkpoint(folder).fingerprint)
    assert found[0] == found[1] != single
    (folder / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "consolidated.safetensors") | {names[0]: "first.safetensors"}})
    )
    found.append(find_checkpoint(folder).fingerprint)
    save_file({names[0]: weights[names[0]] + 2}, folder / "first.safetensors")
    found.append(find_checkpoint(folder).fingerprint)
    assert len(set(found)) == 3


@pytest.mark.parametrize("named", ["../full.safetensors", "sub/x.safetensors", "weights.bin", 3])
def test_a_configuration_names_no_file_elsewhere(place, tmp_path, named: Any) -> None:
    folder = Path(shutil.copytree(place / "full", tmp_path / "full"))
    (folder / "sub").mkdir()
    for other in (tmp_path / "full.safetensors", folder / "sub" / "x.safetensors", folder / "weights.bin"):
        shutil.copy(folder / "model.safetensors", other)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": named}))
    with pytest.raises(FormatError, match=r"config\.json: transformers_weights: found .*, expected a safetensors file"):
        find_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "model.safetensors"}))
    assert find_checkpoint(folder).fingerprint != find_checkpoint(place / "full").fingerprint


def test_a_gguf_file_that_is_none_and_one_that_is_not_there_are_named(place, tmp_path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"<html>")
    with pytest.raises(FormatError, match=r"x\.gguf: not a GGUF file \(begins with b'<htm'\)"):
        find_checkpoint(tmp_path / "x.gguf")
    with pytest.raises(ArgapError, match=r"expected one, or OWNER/REPOSITORY/NAME\.gguf"):
        find_checkpoint("nowhere.gguf")
    with pytest.raises(ArgapError, match="transformers runs GGUF files"):
        runs_native(find_checkpoint(place / "full" / "q8.gguf"), "native")
    (tmp_path / "cut.gguf").write_bytes((place / "f32.gguf").read_bytes()[:200])
    with pytest.raises(ArgapError, match=r"cut\.gguf: "):
        score(place, tmp_path / "out", tmp_path / "cut.gguf")


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_checkpoint_that_cannot_run_here_is_one_line(place, tmp_path, method: str) -> None:
    given, said = METHODS[method]
    shutil.copytree(place / "full", tmp_path / "quantised")
    config = json.loads((tmp_path / "quantised" / "config.json").read_text())
    (tmp_path / "quantised" / "config.json").write_text(json.dumps(config | {"quantization_config": given}))
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\nbroken: the text was not read so far\n')
    with pytest.raises(ArgapError, match=f"quantised: quantised by {method}, which does not run here .*({said})") as no:
        score(place, tmp_path / "out", tmp_path / "quantised", data=tmp_path / "text.jsonl")
    assert "\n" not in str(no.value)
    with pytest.raises(ArgapError, match="transformers runs GGUF files and quantised checkpoints"):
        runs_native(find_checkpoint(tmp_path / "quantised"), "native")


@pytest.mark.filterwarnings("ignore")  # torchao's own
def test_torchao_weights_of_8_bits_are_scored_as_transformers_runs_them(place, tmp_path, tokenizer) -> None:
    quantization = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    from transformers import AutoModelForCausalLM, TorchAoConfig

    settings: Any = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    model: Any = AutoModelForCausalLM.from_pretrained(place / "full", quantization_config=settings, dtype=torch.float32)
    model.save_pretrained(tmp_path / "int8")
    tokenizer.save(tmp_path / "int8")
    score(place, tmp_path / "out", tmp_path / "int8")
    logprob, full = (read_logprobs(open_run(tmp_path / "out" / name))[0] for name in ("int8", "full"))
    data = build_evaluation_set(open_corpus(place / "text.jsonl"), tokenizer, seq_len=32)
    for first, last in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        ids = torch.from_numpy(data.tokens[first:last].astype(np.int64))
        with torch.inference_mode():
            rows = model(ids[None]).logits[0, :-1].log_softmax(-1)
        np.testing.assert_allclose(logprob[first + 1 : last], rows.gather(1, ids[1:, None])[:, 0], atol=1e-4)
    assert np.nanmax(np.abs(logprob - full)) > 1e-3


@torch.inference_mode()
def test_a_quantised_head_is_not_taken_apart() -> None:
    model = small_llama()
    ids = torch.arange(1, 9)[None]
    assert find_head(model, ids) is not None

    class Quantised(torch.Tensor):
        """As torchao's weights are: a subclass."""

    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.data.as_subclass(Quantised))
    assert find_head(model, ids) is None


def test_a_revision_of_the_hub_is_asked_for(place, tmp_path, monkeypatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def snapshot(name: str, repo_type: str, revision: str | None = None, allow_patterns: Any = None) -> str:
        asked.append((name, revision))
        return str(place if "x.gguf" in allow_patterns or "f32.gguf" in allow_patterns else place / "full")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert find_checkpoint("EleutherAI/pythia-70m@step1000").folder == place / "full"
    assert find_checkpoint("EleutherAI/pythia-70m").name == "EleutherAI/pythia-70m"
    assert find_checkpoint("owner/repository/f32.gguf@main").gguf == place / "f32.gguf"
    with pytest.raises(ArgapError, match=r"the hub's owner/repository has no x\.gguf"):
        find_checkpoint("owner/repository/x.gguf")
    names = ["EleutherAI/pythia-70m"] * 2 + ["owner/repository"] * 2
    assert asked == list(zip(names, ["step1000", None, "main", None], strict=True))
    out = tmp_path / "out"
    assert score(place, out, "EleutherAI/pythia-70m@step1000", tokenizer=str(place / "full")).models[0] == "full"


def test_a_checkpoint_takes_the_tokenizer_that_it_lacks_or_that_is_named(place, tmp_path) -> None:
    bare, wrong = tmp_path / "bare", tmp_path / "wrong"
    for folder in (bare, wrong):
        small_llama(seed=len(folder.name)).save_pretrained(folder)
    state = json.loads((place / "full" / "tokenizer.json").read_text())
    state["model"]["merges"] = state["model"]["merges"][:100]
    (wrong / "tokenizer.json").write_text(json.dumps(state))
    (wrong / "tokenizer_config.json").write_text((place / "full" / "tokenizer_config.json").read_text())
    right = str(place / "full")
    with pytest.raises(ArgapError):
        score(place, tmp_path / "out", bare)
    assert score(place, tmp_path / "out", bare, tokenizer=right).models == ["full", "bare"]
    assert score(place, tmp_path / "out", wrong, tokenizer={"wrong": right}).models == ["full", "wrong"]
    run = open_run(tmp_path / "out" / "wrong").record.evaluation
    assert run.tokenizer_fingerprint == load_tokenizer(right).fingerprint
    with pytest.raises(ArgapError, match=r"`tokenizer` x=.*: no model x; expected full, wrong"):
        score(place, tmp_path / "out", wrong, tokenizer={"x": right})


def test_a_dtype_may_be_one_models_own(place, tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "out"
    command = f"score {place}/other --ref {place}/full --data {place}/text.jsonl --seq-len 32 --device cpu --out {out}"
    for flags, dtypes in (("--dtype other=bfloat16", ("bfloat16", "float32")), ("--dtype fp16 --dtype fp16", ())):
        monkeypatch.setattr("sys.argv", ["argap", *command.split(), *flags.split()])
        with pytest.raises(SystemExit, match="0" if dtypes else "1"):
            main()
        if dtypes:
            assert tuple(open_run(out / name).record.identity.dtype for name in ("other", "full")) == dtypes
    assert "--dtype fp16: given twice for all models" in capsys.readouterr().err


def test_a_checkpoint_in_two_dtypes_is_two_models(place, tmp_path, capsys) -> None:
    """What bfloat16 costs, and what 8 bits do, in one command; without a setting of its own it is one model."""
    out, full = tmp_path / "out", str(place / "full")
    models = {"bf16": full, "again": full, "eight bits": place / "full" / "q8.gguf"}
    result = score(place, out, models, dtype={"bf16": "bfloat16"})
    assert result.models == ["full", "bf16", "again", "eight bits"]
    own, bf16, again = (read_logprobs(open_run(out / name))[0] for name in ("full", "bf16", "again"))
    np.testing.assert_array_equal(again, own)
    assert 1e-4 < np.nanmax(np.abs(bf16 - own)) < 0.5
    assert open_run(out / "bf16").record.checkpoint == open_run(out / "full").record.checkpoint
    overall = result.record.on_all
    assert overall["again"].delta == 0 != overall["bf16"].delta
    shutil.copytree(place / "full", tmp_path / "copy")  # a copy is the same model, unless a setting differs
    assert score(place, out, [full, tmp_path / "copy"]).models == ["full"]
    assert "copy: the same model as full, scored once; NAME=CKPT gives it a row" in capsys.readouterr().err
    assert score(place, out, tmp_path / "copy", dtype={"copy": "bfloat16"}).models == ["full", "copy"]
    score(place, tmp_path / "again", full)
    with pytest.raises(ArgapError, match=r"are both named full; give one of them as NAME=RUN"):
        argap.compare(tmp_path / "again" / "full", out / "full", out=tmp_path / "compared")
    with pytest.raises(ArgapError, match=r"both named FULL \(case aside: full\); give one of them as NAME=RUN"):
        argap.compare(f"FULL={tmp_path / 'again' / 'full'}", out / "full", out=tmp_path / "compared")
    with pytest.raises(ArgapError, match="two models have this name"):
        score(place, out, ["m=" + full, "m=" + str(place / "other")])


def test_a_bos_is_context_alone(place, tmp_path, tokenizer) -> None:
    """Against the model run on each window behind a BOS, of windows of several lengths."""
    out, full, eos = tmp_path / "out", place / "full", tokenizer.token_text(tokenizer.eos)
    result = score(place, out, {"bos": full}, bos={"bos": eos})
    assert result.models == ["full", "bos"]
    assert open_run(out / "bos").record.identity.bos == tokenizer.eos
    assert open_run(out / "full").record.identity.bos is None
    model, data = small_llama(), build_evaluation_set(open_corpus(place / "text.jsonl"), tokenizer, seq_len=32)
    logprob, top1 = read_logprobs(open_run(out / "bos"))
    for first, last in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        ids = torch.from_numpy(data.tokens[first:last].astype(np.int64))
        with torch.inference_mode():
            rows = model(torch.cat([torch.tensor([tokenizer.eos]), ids])[None]).logits[0, 1:-1].log_softmax(-1)
        assert np.isnan(logprob[first])
        assert top1[first] == -1
        np.testing.assert_allclose(logprob[first + 1 : last], rows.gather(1, ids[1:, None])[:, 0], atol=1e-4)
        likeliest = torch.from_numpy(top1[first + 1 : last].astype(np.int64))[:, None]
        np.testing.assert_allclose(rows.gather(1, likeliest)[:, 0], rows.amax(-1), atol=1e-4)
    assert np.nanmax(np.abs(logprob - read_logprobs(open_run(out / "full"))[0])) > 1e-3


def test_a_bos_must_be_there_and_fit(place, tmp_path, tokenizer) -> None:
    out, bare, eos = tmp_path / "out", tmp_path / "bare", tokenizer.token_text(tokenizer.eos)
    full, text = find_checkpoint(place / "full"), tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 99)
    windows = build_evaluation_set(open_corpus(text), tokenizer, seq_len=128)
    shutil.copytree(place / "other", bare)
    (bare / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    with pytest.raises(ArgapError, match="bare: `bos` own: its tokenizer has no BOS; expected own, none or"):
        score(place, out, bare, bos={"bare": "own"})
    with pytest.raises(ArgapError, match="full: `bos` <s>: not in its vocabulary"):
        score(place, out, bare, bos="<s>")
    with pytest.raises(ArgapError, match=r"full: takes at most 128 tokens, .* 128 and a BOS; use `seq_len=127`"):
        scorer.check_length("full", full.longest, windows, bos=0)
    scorer.check_length("full", full.longest, windows, bos=None)
    assert not out.exists()
    (bare / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, "bos_token": {"content": eos}}))
    score(place, out, bare, bos={"bare": "own"})
    assert open_run(out / "bare").record.identity.bos == tokenizer.eos
    (tmp_path / "again").mkdir()
    load_tokenizer(bare).save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").bos == tokenizer.eos


def test_a_model_on_several_devices_gives_the_same_log_probs(place, tmp_path, tokenizer, capsys) -> None:
    accelerate = pytest.importorskip("accelerate")
    score(place, tmp_path / "out", place / "other", device_map=True)  # one device here: all on the CPU
    data = build_evaluation_set(open_corpus(place / "text.jsonl"), tokenizer, seq_len=32)
    places = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.norm": "cpu"}
    places |= {"lm_head": "cpu", "model.rotary_emb": "cpu"}
    spread: Any = accelerate.dispatch_model(small_llama(), places, offload_dir=tmp_path / "disk", main_device="cpu")
    logprob, top1 = Batches(spread, data, "cpu", 2, "spread").score(range(data.windows)).arrays()
    assert "spread: spread over several devices" in capsys.readouterr().err
    own = Batches(small_llama(), data, "cpu", 2, "own").score(range(data.windows)).arrays()
    np.testing.assert_allclose(logprob, own[0], atol=1e-5)
    np.testing.assert_array_equal(top1, own[1])


@pytest.mark.parametrize("name", ["full", "full/q8.gguf"])
def test_a_model_that_is_exchanged_before_it_is_loaded_is_refused(place, tmp_path, name) -> None:
    own, taken = tmp_path / "full", tmp_path / "taken"
    shutil.copytree(place / "full", own)
    shutil.copytree(place / "full", taken)
    found = find_checkpoint(tmp_path / name)
    load_model(found, dtype=torch.float32, device="cpu")
    own.rename(tmp_path / "before")
    taken.rename(own)
    with pytest.raises(MismatchError, match=r"written again or removed while it was read; run the command again"):
        load_model(found, dtype=torch.float32, device="cpu")


def test_native_models_are_not_spread(tmp_path) -> None:
    with pytest.raises(ArgapError, match="argap's own code runs it on one device; `device_map` needs"):
        argap.score("attention", "attention", device_map=True, device="cpu", out=tmp_path / "out")
    assert checkpoint.Checkpoint("x", Path(), "x").gguf is None


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("gap.json", "a result; the folder of a model in it is a run"),
        ("run.json", "a run; `argap compare` takes runs"),
        ("train.json", "a training that has not finished"),
        ("other.json", "no config.json there"),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_named_for_what_it_is(tmp_path, file, what) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(ArgapError, match=f"{re.escape(f'{tmp_path}: {what}')}.*; expected a checkpoint folder"):
        find_checkpoint(tmp_path)


def test_parameters_are_counted_in_the_files_that_are_loaded(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt_neox"}')
    save_file({"a": torch.zeros(3, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 64)
    assert describe_checkpoint("x", tmp_path).params == 12
