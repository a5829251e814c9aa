"""``argap convert``: what it accepts of pickles and distributed shards, what it writes, and that the result scores."""

import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.distributed.checkpoint import state_dict_saver
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from argap.checkpoints import convert as convert_module
from argap.checkpoints import find as checkpoint_module
from argap.checkpoints.convert import convert
from argap.checkpoints.distributed import read_distributed
from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.cli import app
from argap.errors import ArgapError, MismatchError
from tests.conftest import exchanging
from tests.unit.models.hub.families import tiny

SMALL: dict[str, Any] = {"vocab_size": 8192, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}


class Malicious:
    """A pickle of it calls ``os.system``."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        import os

        return os.system, (self.command,)


@pytest.fixture
def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**SMALL)).eval()


def pickled(folder: Path, model: Any) -> Path:
    folder.mkdir()
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


@torch.no_grad()
def test_a_model_of_transformers_keeps_its_configuration_and_logits(gpt2, tokenizer, tmp_path) -> None:
    source = pickled(tmp_path / "source", gpt2)
    tokenizer.save(tmp_path / "t")
    record = convert(str(source), tmp_path / "out", tokenizer=str(tmp_path / "t"))
    assert not record.native
    ids = torch.arange(20)[None]
    model = load_model(find_checkpoint(tmp_path / "out"), dtype=torch.float32, device="cpu")
    torch.testing.assert_close(model(ids).logits, gpt2(ids).logits, rtol=0, atol=1e-6)
    written = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert written["source"] == str(source)
    assert len(written["files"]["pytorch_model.bin"]) == 64
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_a_pickle_that_is_exchanged_while_it_is_read_is_refused(gpt2, tmp_path, monkeypatch) -> None:
    source = pickled(tmp_path / "source", gpt2)
    exchanging(convert_module, "_write_model", source / "pytorch_model.bin", monkeypatch)
    with pytest.raises(MismatchError, match=r"pytorch_model\.bin: written again or removed while it was read; run the"):
        convert(str(source), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.usefixtures("pickles_read_here")
def test_shards_become_shards(gpt2, tmp_path) -> None:
    source = pickled(tmp_path / "source", gpt2)
    (source / "pytorch_model.bin").unlink()
    state = gpt2.state_dict()
    halves = {"a.bin": dict(list(state.items())[:5]), "b.bin": dict(list(state.items())[5:])}
    for name, part in halves.items():
        torch.save(part, source / name)
    where = {key: name for name, part in halves.items() for key in part}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    convert(str(source), tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == state.keys()
    for name in set(index.values()):
        with safe_open(tmp_path / "out" / name, "pt") as file:
            for key in file.keys():  # noqa: SIM118
                torch.testing.assert_close(file.get_tensor(key), state[key], rtol=0, atol=0)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_imports_anything_is_refused_by_name_and_not_run(
    gpt2, tmp_path, run_command, zipped: bool
) -> None:
    source = pickled(tmp_path / "source", gpt2)
    evil = {"weight": torch.ones(2), "x": Malicious(f"touch {tmp_path / 'ran'}")}
    if zipped:
        torch.save(evil, source / "pytorch_model.bin")
    else:
        (source / "pytorch_model.bin").write_bytes(pickle.dumps(evil["x"], protocol=2))
    code, _, said = run_command("convert", str(source), str(tmp_path / "out"))
    assert code == 1
    assert "pytorch_model.bin: the pickle imports posix.system; expected tensors only" in said
    assert len(said.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["source"]  # neither the file that it touches nor ours


@pytest.mark.usefixtures("pickles_read_here")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no pickle at all", "pytorch_model.bin: not a"),
        (b"", "pytorch_model.bin: not a whole pickle"),
        ({"state_dict": {"a": torch.ones(1)}, "epoch": 3}, "'state_dict' is a dict; expected tensors only"),
        ({"a": torch.ones(1), "epoch": 3}, "'epoch' is a int; expected tensors only"),
        ([torch.ones(1)], "holds a list; expected a state dict of tensors"),
        ({"a": torch.ones(2).to_sparse()}, "a is sparse or quantised"),
        ({"a": torch.ones(2, device="meta")}, "a is on the meta device, without values"),
        ({"a": torch.ones(1).expand(10**6)}, "a repeats 4 stored bytes to 4,000,000"),
        (dict.fromkeys(map(str, range(99)), torch.ones(10**4)), "its tensors would take 3,960,000 bytes"),
        ({3: torch.ones(1)}, "a key is a int; expected names of tensors"),
        ({"a" * 1001: torch.ones(1)}, "a name of 1,001 characters; expected at most 1,000"),
    ],
)
def test_anything_but_a_state_dict_is_refused_in_one_line(gpt2, tmp_path, content: Any, said: str) -> None:
    source = pickled(tmp_path / "source", gpt2)
    if isinstance(content, bytes):
        (source / "pytorch_model.bin").write_bytes(content)
    else:
        torch.save(content, source / "pytorch_model.bin")
    with pytest.raises(ArgapError, match=said) as refused:
        convert(str(source), tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_long_reads(monkeypatch) -> None:
    """Whatever is refused is neither hashed nor copied first."""
    for name in ("argap.checkpoints.convert.sha256_of", "shutil.copyfile"):
        monkeypatch.setattr(name, lambda path, *_: pytest.fail(f"read all of {path}"))


@pytest.mark.usefixtures("no_long_reads")
@pytest.mark.parametrize("before", ["", "PK\3\4", "zip", "legacy"])
def test_a_sparse_file_is_refused_before_it_is_read_whole(gpt2, tmp_path, before: str, request) -> None:
    """A terabyte without content, alone (read in a child, with limits by its size) or behind what torch may write."""
    if before:
        request.getfixturevalue("pickles_read_here")
    source = pickled(tmp_path / "source", gpt2)
    weights = source / "pytorch_model.bin"
    if before == "legacy":
        torch.save(gpt2.state_dict(), weights, _use_new_zipfile_serialization=False)
    elif before != "zip":
        weights.write_text(before)
    os.truncate(weights, 2**40)
    said = (
        "1,099,511,627,776 bytes, of which its tensors take"
        if before == "legacy"
        else r"not a whole pickle \([^()]+\); fetch it again$"
    )
    with pytest.raises(ArgapError, match=rf"pytorch_model\.bin: {said}"):
        convert(str(source), tmp_path / "out")


@pytest.mark.usefixtures("no_long_reads")
def test_sparse_safetensors_of_mamba_2_are_refused_before_they_are_copied(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"ssm_cfg": {"layer": "Mamba2"}}))
    (tmp_path / "model.safetensors").touch()
    os.truncate(tmp_path / "model.safetensors", 2**40)
    with pytest.raises(ArgapError, match=r"model\.safetensors: not a whole safetensors file"):
        convert(str(tmp_path), tmp_path / "out")


@pytest.fixture
def llama() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


TITAN = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers": "layers",
    **{f"self_attn.{part}_proj": f"attention.w{part}" for part in "qkvo"},
    **{f"self_attn.{part}_norm": f"attention.{part}_norm" for part in "qk"},
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def in_titan(model: Any) -> dict[str, torch.Tensor]:
    """The weights in torchtitan's names; a Llama's queries and keys turn neighbouring components together."""
    renamed = {}
    for name, weight in model.state_dict().items():
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads and model.config.model_type == "llama":
            weight = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        for own, theirs in TITAN.items():
            name = name.replace(f"{own}.", f"{theirs}.")
        renamed[name] = weight
    return renamed


def save_distributed(folder: Path, state: dict[str, Any]) -> Path:
    """As a trainer saves it, with its own state, some of which only a pickle without checks would open."""
    trainer = {"optimizer": {"exp_avg": torch.ones(64, 32)}, "train_state": {"step": Malicious("touch opened")}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        state_dict_saver.save(state | trainer, checkpoint_id=folder, no_dist=True)
    return folder


@torch.no_grad()
@pytest.mark.usefixtures("pickles_read_here")
@pytest.mark.parametrize("layout", ["transformers", "titan", "titan's Qwen3", "beside"])
def test_a_distributed_checkpoint_is_joined(llama, tmp_path, layout: str) -> None:
    """pytorch/torchtitan#1291: converted without reordering queries and keys, a Llama writes nonsense."""
    own = tiny("qwen3", num_key_value_heads=2) if "Qwen3" in layout else llama
    compiled = {f"_orig_mod.{name}": weight for name, weight in own.state_dict().items()}
    state = in_titan(own) if "titan" in layout else {"app": {"model": compiled}}
    source = tmp_path / "source"
    own.config.save_pretrained(source if layout == "beside" else tmp_path)
    shards = save_distributed(source / "pytorch_model_fsdp_0" if layout == "beside" else source, state)
    if layout == "beside":
        save_distributed(source / "optimizer_0", {})
    with pytest.raises(ArgapError, match=f"a distributed checkpoint of torch; `argap convert {shards} OUT --config"):
        find_checkpoint(source)
    convert(str(source), tmp_path / "out", config=None if layout == "beside" else str(tmp_path / "config.json"))
    model = load_model(find_checkpoint(tmp_path / "out"), dtype=torch.float32, device="cpu")
    ids = torch.arange(20)[None]
    torch.testing.assert_close(model(ids).logits, own(ids).logits, rtol=0, atol=1e-5)
    assert len(read_distributed(shards)) == len(state if "titan" in layout else compiled)  # nothing of the trainer
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert record["files"].keys() == {".metadata", "__0_0.distcp"}


@torch.no_grad()
@pytest.mark.usefixtures("pickles_read_here")
def test_distributed_shards_of_a_family_of_fla_are_joined(tmp_path) -> None:
    """As flame writes them, with torchtitan; its models are not built to know their names."""
    sizes = {"hidden_size": 32, "num_heads": 2, "num_hidden_layers": 2, "vocab_size": 64, "intermediate_size": 48}
    config = {"model_type": "gla", **sizes}
    shapes = {"model.embeddings.weight": (64, 32), "model.norm.weight": (32,), "lm_head.weight": (64, 32)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.attn_norm.weight": (32,),
            f"{at}.mlp_norm.weight": (32,),
            f"{at}.attn.o_proj.weight": (32, 32),
        }
        shapes |= {f"{at}.attn.{part}_proj.weight": (16 if part in "qk" else 32, 32) for part in "qkvg"}
        shapes |= {f"{at}.attn.gk_proj.0.weight": (16, 32), f"{at}.attn.gk_proj.1.weight": (16, 16)}
        shapes |= {f"{at}.attn.gk_proj.1.bias": (16,), f"{at}.attn.g_norm_swish_gate.weight": (16,)}
        shapes |= {f"{at}.mlp.gate_proj.weight": (48, 32), f"{at}.mlp.up_proj.weight": (48, 32)}
        shapes |= {f"{at}.mlp.down_proj.weight": (32, 48)}
    state = {name: torch.randn(shape) for name, shape in shapes.items()}
    for name, prefixed in (("plain", state), ("behind", {f"model.{key}": value for key, value in state.items()})):
        source = save_distributed(tmp_path / name, prefixed)
        (source / "config.json").write_text(json.dumps(config))
        convert(str(source), tmp_path / f"{name}-out")
    plain, behind = (
        load_model(find_checkpoint(tmp_path / f"{name}-out"), dtype=torch.float32, device="cpu")
        for name in ("plain", "behind")
    )
    ids = torch.arange(20)[None]
    torch.testing.assert_close(plain(ids).logits, behind(ids).logits, rtol=0, atol=0)
    state.pop("lm_head.weight")
    source = save_distributed(tmp_path / "headless", state)
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArgapError, match=r"model type gla: 1 are missing, the first is lm_head\.weight"):
        convert(str(source), tmp_path / "out")


@pytest.mark.usefixtures("pickles_read_here")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "a distributed checkpoint, which says nothing of the architecture; give `config=FILE`"),
        (
            {"config": {"num_hidden_layers": 3}},
            "are not those of model type llama: 9 are missing, the first is model.layers",
        ),
        ({"config": {"intermediate_size": 40}}, r"has shape \[48, 32\], the config.json says \[40, 32\]"),
        ({"config": {"model_type": "t5", "is_encoder_decoder": True}}, "model type t5 is an encoder-decoder"),
        ({"config": {"model_type": "mistral"}}, "not those of model type mistral: 21 are missing"),
        ({"config": {"model_type": "lama"}}, "does not know its model type 'lama'"),
        ({"config": {}, "lost": "__0_0.distcp"}, "names '__0_0.distcp', expected a file beside it"),
        ({"config": {}, ".metadata": b"none"}, "not the metadata of a distributed checkpoint"),
        ({"config": {}, ".metadata": pickle.dumps(Malicious("touch opened"))}, "imports posix.system; .* was run"),
        ({"config": {}, ".metadata": pickle.dumps({"a": 1})}, "holds a dict, expected torch's metadata"),
        ({"config": {}, "__0_0.distcp": b"none"}, "tensors would take 86,656 bytes, from 4"),
    ],
)
def test_a_distributed_checkpoint_that_cannot_be_joined_is_one_line(
    llama, tmp_path, monkeypatch, change: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = save_distributed(tmp_path / "source", in_titan(llama))
    config = None
    if "config" in change:
        config = str(tmp_path / "config.json")
        (tmp_path / "config.json").write_text(json.dumps(llama.config.to_dict() | change["config"]))
    for name in change.keys() - {"config", "lost"}:
        (source / name).write_bytes(change[name])
    if "lost" in change:
        (source / change["lost"]).unlink()
    with pytest.raises(ArgapError, match=said) as refused:
        convert(str(source), tmp_path / "out", config=config)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "opened").exists()


def test_a_module_beside_the_pickle_is_not_imported(gpt2, tmp_path, monkeypatch) -> None:
    """In the checkpoint's own folder: ``python -m`` would look there first."""
    source = pickled(tmp_path / "source", gpt2)
    for name in ("torch", "argap", "safetensors"):
        (source / f"{name}.py").write_text(f"open({str(tmp_path / 'created')!r}, 'w')")
    monkeypatch.chdir(source)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    convert(".", tmp_path / "out")
    assert not (tmp_path / "created").exists()
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_an_adapter_is_named_for_what_it_is(tmp_path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base"}')
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(ArgapError, match=r"an adapter \(LORA\) of org/base, not a model; merge them once"):
        convert(str(tmp_path), tmp_path / "out")


def test_a_broken_generation_config_is_named_before_the_weights_are_read(gpt2, tmp_path) -> None:
    source = pickled(tmp_path / "source", gpt2)
    (source / "generation_config.json").write_bytes(b'{"bos_token_id": \xe9}')
    with pytest.raises(ArgapError, match=r"generation_config\.json: not readable as JSON"):
        convert(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("pickles_read_here")
def test_what_is_there_is_replaced_only_when_asked(gpt2, tmp_path) -> None:
    source = pickled(tmp_path / "source", gpt2)
    convert(str(source), tmp_path / "out")
    with pytest.raises(ArgapError, match="not empty; choose another `out`, or `overwrite=True`"):
        convert(str(source), tmp_path / "out")
    convert(str(source), tmp_path / "out", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    for other in (tmp_path / "mine", tmp_path / "mine" / "notes.txt", source):
        with pytest.raises(ArgapError, match=r"not empty, and not a converted checkpoint; choose another `out`$"):
            convert(str(source), other, overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").is_file()
    (source / "model.safetensors").write_bytes(b"")
    (source / "pytorch_model.bin").unlink()
    with pytest.raises(ArgapError, match="already has safetensors"):
        convert(str(source), tmp_path / "other")


def test_a_hub_repository_of_pickles_names_the_command(gpt2, tmp_path, monkeypatch) -> None:
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    (fetched / "config.json").write_text("{}")
    monkeypatch.setattr(checkpoint_module, "download", lambda name: fetched)
    files = ["config.json", "training_args.bin", "pytorch_model.bin"]
    monkeypatch.setattr(checkpoint_module, "listed", lambda name, revision: files)
    with pytest.raises(ArgapError, match=r"someone/model: only pickled .*pytorch_model\.bin.* `argap convert someone/"):
        find_checkpoint("someone/model")


@pytest.mark.usefixtures("pickles_read_here")
def test_a_converted_checkpoint_scores(gpt2, tokenizer, tmp_path) -> None:
    text, folder = tmp_path / "text.txt", str(tmp_path)
    tokenizer.save(tmp_path / "t")
    text.write_text("the cat sat on the mat and the cat sat on the mat again. " * 20)
    pickled(tmp_path / "one-pickled", gpt2)
    pickled(tmp_path / "two-pickled", GPT2LMHeadModel(GPT2Config(**SMALL)))
    for command in (
        f"convert {folder}/one-pickled {folder}/one --tokenizer {folder}/t",
        f"convert {folder}/two-pickled {folder}/two --tokenizer {folder}/t",
        f"index build {text} --tokenizer {folder}/t --out {folder}/i",
        f"score {folder}/one --ref {folder}/two --data {text} --index {folder}/i --seq-len 64 --out {folder}/runs "
        "--device cpu",
    ):
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == 0, (done.output, done.exception)
    rows = json.loads((tmp_path / "runs" / "gap.json").read_text())["models"]
    assert [row["model"] for row in rows] == ["two", "one"]
