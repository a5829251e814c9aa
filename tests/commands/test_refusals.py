"""What commands refuse: one line on stderr says why, nothing is printed or written, and the exit code is 1."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from argap.view.serve import listen
from tests.conftest import RunCommand, save_model

REFUSALS: dict[str, dict[str, str]] = {
    "score m --ref ref --data text.txt --out out": {
        "--seq-len 48 --limit-tokens 0": "--limit-tokens 0: expected at least 2, one of context and one to score",
        "--seq-len 48 --threshold many": "--threshold many: expected a whole number of occurrences below 10¹⁸, or …",
        "--seq-len 48 --dtype int8": "--dtype int8: expected auto, float32, bfloat16, float16",
        "--seq-len 48 --dtype fp16 --dtype fp16": "--dtype fp16: given twice for all models",
        "--seq-len 48 --device tpu": "--device tpu: expected auto, cpu, cuda or cuda:N",
        "--seq-len 48 --batch-size none": "--batch-size none: expected a positive whole number up to 1,048,576, or …",
        "--seq-len 48 --index nowhere": "nowhere: no index there (no index.json); build one with `argap index build`",
        "--seq-len 100": "ref: takes at most 64 tokens, the windows have 100; use --seq-len 64, or --max-length …",
    },
    "index build text.txt --out out --tokenizer": {
        "t/regex": "t/regex/tokenizer.json: not a usable tokenizer (Onig: Regex search error: retry-…",
        "t/prefix": "t/prefix/tokenizer.json: not a usable tokenizer (range end index …",
        "t/grows": "t/grows/tokenizer.json: its replacements make up to 1,000,000,000,000 characters of one; …",
        "t/words": "t/words/tokenizer.json: max_input_chars_per_word: expected at most 1,000, found 1,000,000",
        "t/dropout": "t/dropout/tokenizer.json: dropout 0.5, which cuts words at random; expected none",
        "t/nested": "t/nested/tokenizer.json: not a readable tokenizer (…",
        "t/template": "t/template: its post-processor puts 'x' before a text, which it does not define",
        "t/types": "t/types: no tokenizer there, as a folder or on the hub (…",
        "pipe": "pipe: a pipe; expected a file, which can be read twice",
    },
    "index": {
        "build pipe --tokenizer m --out out": "pipe: a pipe; expected a file, which can be read twice",
        "build /dev/zero --tokenizer m --out out": "/dev/zero: a device; expected a file, which can be read twice",
        "from-counts pipe --tokenizer m --out out": "pipe: a pipe; expected a file, which can be read twice",
        "from-arpa pipe --tokenizer m --tokens 9 --out out": "pipe: a pipe; expected a file, which can be read twice",
        "info piped": "piped: no index there (no index.json); build one with `argap index build`",
    },
    "convert": {
        "dir out": "dir/pytorch_model.bin: a folder; expected a file, which can be read twice",
        "pipe.gguf out": "pipe.gguf: a pipe; expected a file, which can be read twice",
        "piped out": "piped: no config.json there; expected a checkpoint folder or a hub id",
    },
    "slice result --where": {
        "\"len(repeat('a', 1500000000)) > 3\"": "condition …: holds the function repeat; docs/slices.md lists those …",
        "\"sleep_ms(100000) IS NULL\"": "condition …: holds the function sleep_ms; docs/slices.md lists those that …",
    },
    "ref": {
        "remove mine": "mine: no reference of that name is recorded; recorded: none",
        "add x m --seq-len 0": "--seq-len 0: expected at least 2, one token of context and one to score",
        "add x m --data nowhere": "nowhere: no such file or folder; expected text, …",
        "add x m --index nowhere": "nowhere: no index there (no index.json); build one with `argap index build`",
        "add x nowhere/at/all": "nowhere/at/all: no such folder or reference, and the hub does not have it …",
    },
    "paper": {
        "--latex --markdown": "--json, --latex and --markdown: expected one of them at most",
        "--json --latex": "--json, --latex and --markdown: expected one of them at most",
    },
    "view": {
        "runs": "runs: no gap.json there; expected a folder that `argap score` or `argap compare` wrote",
        "result --port PORT": "--port PORT: Address already in use on 127.0.0.1; use --port 0 for one that is …",
    },
    "slice result": {
        '--where repeated --where "pos < 9" --name a': "--where given 2 times, --name 1; expected a name for each or …",
        "--name a": "--where given 0 times, --name 1; expected a name for each or for none",
        "--where nothing --name a": 'condition "nothing": Referenced column "nothing" not found; known columns are …',
        "--threshold -1": "--threshold -1: expected a whole number of occurrences below 10¹⁸, or scaled",
        "--where repeated --name a --where repeated --name a": "slice a: the name is the name of two slices; choose …",
        "--by piece": "--by piece: expected one of …",
        "--by a --where b --name c": "--by is a partition of all tokens; give it without --where, --name and --slices",
    },
    "discover result --model m2": {
        "--min-share much": "--min-share much: expected a share such as 0.5% or 0.005",
    },
    "models": {
        "show gla --size 13m": "size '13m': unknown; known are 70m, 125m, 360m, 1.4b",
        "list --size 70m --layers 3": "--size 70m: sets width, layers and vocabulary; leave out --size or the others",
        "list --layers 10001": "num_hidden_layers: expected 1 to 10,000, found 10001",
        "show attention --seq-len 99999999": "--seq-len: expected 1 to 16,777,216, found 99999999",
        "show hyena!": "hyena!: no such folder or reference, and the hub does not have it …",
        "show somewhere --size 70m": "--size 70m: somewhere is not a named architecture; known are …",
        "bench atention --out out": "architecture 'atention': unknown; known are …",
        "bench attention --train 64 --out out": "64: expected LENGTHxBATCH, two positive integers, such as 1024x4",
        "bench attention --generate 0x4 --out out": "0x4: expected LENGTHxBATCH, two positive integers, such as 1024x4",
        "bench attention --device tpu --out out": "--device tpu: expected auto, cpu, cuda or cuda:N",
    },
    "train": {
        "pipe": "pipe: a pipe; expected a file, which can be read twice",
        "/dev/zero": "/dev/zero: a device; expected a file, which can be read twice",
        "m": "m: a folder; expected a file, which can be read twice",
    },
    "train toy.yaml": {
        "--set lerning_rate=1": "--set lerning_rate: unknown key; known are …",
        "--set lr=fast": "--set lr: expected a number, found 'fast'",
        "--set betas=[0.9]": "--set betas: expected a list of length 2, found [0.9]",
        "--set warmup_steps=-1": "--set warmup_steps: expected 0 to 1,000,000,000, found -1",
        "--batch-size 0": "--batch-size: expected 1 to 1,048,576, found 0",
        "--architecture atention": "architecture 'atention': unknown; known are …",
        '--set "model={heads: 2}"': "model: unknown option 'heads'; known are …",
        "--data absent": "absent: no such file or folder; expected text, …",
        "--tokenizer toy.yaml": "toy.yaml: no tokenizer there, as a folder or on the hub (It looks like the config …",
        "--device tpu": "--device tpu: expected auto, cpu, cuda or cuda:N",
        "--seq-len 99999 --device cpu": "the data have 4040 tokens; expected more than --seq-len, 99999: use more …",
    },
    "suite": {
        "run suite.yaml --address auto": "--address: has no effect with --engine local; leave it out",
        "run suite.yaml --member nobody": "--member nobody: not in the suite; its models are attention, base_conv",
        "table suite.yaml": "results/suite: no result there; `argap suite run` writes one for each size",
    },
    "index build body.jsonl --tokenizer m --out out": {
        "": "body.jsonl, line 1: no text in column 'text'; its columns are 'body': name one with --text-column",
        "--engine ray --device cuda": "--device: has no effect with --engine ray; leave it out",
        "--engine ray --shard 1/2": "--shard: has no effect with --engine ray; leave it out",
        "--engine ray --keep-tokens": "--keep-tokens: has no effect with --engine ray; leave it out",
        "--engine local --work x": "--work: has no effect with --engine local; leave it out",
        "--shards 4": "--shards: has no effect with --engine local; leave it out",
    },
    "synthetics": {
        "generate --out mine": "mine.npz: already exists; choose another --out, or use --overwrite",
        "score nobody --device tpu": "--device tpu: expected auto, cpu, cuda or cuda:N",
        "sweep sweep.yaml --device tpu": "--device tpu: expected auto, cpu, cuda or cuda:N",
    },
    "synthetics train attention": {
        "--device tpu": "--device tpu: expected auto, cpu, cuda or cuda:N",
        "--set task=induction": "--set task: use --task instead",
        "--set lr=1": "--set lr: use --lr instead",
        "--set length=8": "--set length: use --length instead",
        "--set member=hyena": "--set member: use MODEL, with --mlp instead",
        "--set lerning_rate=1": "--set lerning_rate: unknown key; known are …",
        "--set epochs=fast": "--set epochs: expected a whole number, found 'fast'",
        "--set warmup=1": "--set warmup: expected at least 0, below 1, found 1",
    },
    "recall no/such/model --fixture --out out": {
        "--tasks ,": "--tasks (none): expected some of swde, fda, squad, needle, or names of lm-eval's tasks",
        "--tasks swde,evil.yaml": "--tasks swde, evil.yaml: expected some of swde, fda, squad, needle, or …",
        "--gap nowhere": "--gap nowhere: the recall gap needs a reference; name it with --ref",
        "--fewshot 2": "--fewshot, --task-path and --metadata are for lm-eval's own tasks: leave them out",
        "--metadata {": "--fewshot, --task-path and --metadata are for lm-eval's own tasks: leave them out",
        "--protocol upstream": "--fixture: has no effect with lm-eval's own tasks; leave it out",
        "--ref copy --gap nowhere": "nowhere: no gap.json there; expected a folder that `argap score` or `argap …",
        "--paper nowhere.csv": "--paper nowhere.csv: no such file; expected a CSV of published figures with a header",
    },
    "recall m": {
        "--tasks mmlu --index idx --out out": "--index: has no effect with lm-eval's own tasks; leave it out",
        "--tasks fda,mmlu --out out": "--tasks fda: run by argap's own protocol, the others by lm-eval; run them …",
    },
    "": {
        "slice --list --where repeated": "--where: has no effect with --list; leave it out",
        "slice result --fidelity --threshold 2": "--threshold: has no effect with --fidelity; leave it out",
        "report result --card --png": "--png: has no effect with --card; leave it out",
        "view result --bundle page --port 0": "--port: has no effect with --bundle; leave it out",
        "demo --copy copies --out mine": "--out: has no effect with --copy; leave it out",
    },
}  # fmt: skip
"""Commands, the flags that they refuse, and the line that says why; … stands for any text."""


SETTINGS = {"seq_len": 16, "batch_size": 8, "steps": 2, "lr": 0.01}
SUITE = {
    "reference": "attention",
    "members": {"attention": {}, "base_conv": {}},
    "sizes": {"tiny": {"hidden_size": 16, "num_layers": 2}},
}
SWEEP = {"members": {"attention": None}, "lengths": [16], "widths": [8], "pairs": [2], "lrs": [0.01]}


@pytest.fixture(scope="module")
def place(tmp_path_factory, tokenizer, token_result, toy_tokenizer, toy_corpus) -> Path:
    """What the commands name: checkpoints of 64 positions, texts, a result, and files of settings."""
    from transformers import GPT2Config

    place = tmp_path_factory.mktemp("refusals")
    config = GPT2Config(vocab_size=8192, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    for seed, name in enumerate(["m", "ref"]):
        save_model(place / name, config, tokenizer, seed)
    (place / "text.txt").write_text("to be or not to be " * 200)
    (place / "body.jsonl").write_text('{"body": "to be"}\n')
    (place / "mine.npz").write_text("mine")
    (place / "result").symlink_to(token_result)
    for name in ("pipe", "pipe.gguf", "piped/index.json", "piped/config.json"):
        (place / name).parent.mkdir(exist_ok=True)
        os.mkfifo(place / name)
    (place / "dir" / "pytorch_model.bin").mkdir(parents=True)
    (place / "dir" / "config.json").write_text('{"model_type": "gpt2"}')
    for name, parts in hostile_tokenizers().items():
        (place / "t" / name).mkdir(parents=True)
        (place / "t" / name / "tokenizer.json").write_text(parts if isinstance(parts, str) else json.dumps(parts))
    (place / "t" / "types").mkdir()
    (place / "t" / "types" / "vocab.txt").write_text("a\n")
    (place / "t" / "types" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "eos_token": ["a"]}'
    )
    of_text = {"tokenizer": str(toy_tokenizer), "data": [str(toy_corpus)]}
    toy = {**of_text, **SETTINGS, "architecture": "attention", "hidden_size": 32, "num_layers": 2}
    evaluation = {"data": [str(toy_corpus)], "seq_len": 16}
    suite = {**SUITE, "train": {**of_text, **SETTINGS}, "evaluation": evaluation}
    for name, values in (("toy", toy), ("suite", suite), ("sweep", SWEEP)):
        (place / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return place


def hostile_tokenizers() -> dict[str, Any]:
    """Files of tokenizers that make the Rust library panic, abort or take all memory."""
    vocab = {sign: k for k, sign in enumerate("abcdefghijklmnopqrstuvwxyz ")} | {"ab": 27}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    split = {"type": "Split", "pattern": {"Regex": "^(a+)+$"}, "behavior": "Isolated", "invert": False}
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    words = {"type": "WordPiece", "vocab": vocab, "unk_token": "a", "continuing_subword_prefix": "##"}
    whole = {"version": "1.0", "added_tokens": [], "model": model}
    token = {"SpecialToken": {"id": "x", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [token], "pair": [], "special_tokens": {}}
    return {
        "regex": whole | {"pre_tokenizer": split},
        "prefix": whole | {"model": model | {"continuing_subword_prefix": "abcdefgh", "merges": ["a b"]}},
        "grows": whole | {"normalizer": {"type": "Sequence", "normalizers": [replace] * 12}},
        "words": whole | {"model": words | {"max_input_chars_per_word": 10**6}},
        "dropout": whole | {"model": model | {"dropout": 0.5}},
        "template": whole | {"post_processor": template},
        "nested": '{"model": {"type": "BPE"}, "normalizer": ' + "[" * 100_000,
    }


def files(place: Path) -> set[Path]:
    return {path for path in place.rglob("*") if "tokens" not in path.parts}  # `argap train` keeps the text it read


@pytest.mark.parametrize(
    ("command", "said"),
    [(f"{command} {flags}", said) for command, table in REFUSALS.items() for flags, said in table.items()],
)
def test_refusals_are_one_line(place: Path, run_command: RunCommand, monkeypatch, command: str, said: str) -> None:
    monkeypatch.chdir(place)
    (place / "runs" / "toy").mkdir(parents=True, exist_ok=True)
    before = files(place)
    with listen(0) as taken:
        port = str(taken.getsockname()[1])
        code, printed, error = run_command(*shlex.split(command.replace("PORT", port)))
    assert (code, printed) == (1, "")
    expected = re.escape(f"argap: {said}\n".replace("PORT", port)).replace("…", ".*")
    assert re.fullmatch(expected, error), error
    assert files(place) == before


def test_a_removed_working_directory_is_refused(run_command: RunCommand, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    said = "argap: the working directory has been removed; run the command in another\n"
    assert run_command("slice", str(tmp_path)) == (1, "", said)


def test_a_refusal_is_no_longer_than_a_screen(run_command: RunCommand) -> None:
    code, printed, error = run_command("index", "info", "a" * 5000)
    assert (code, printed, error.count("\n")) == (1, "", 1)
    assert len(error) < 2020
    assert error.startswith("argap: aaaa")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("score", "Missing argument '[NAME=]CKPT'."),
        ("score x --ref y --no-such-flag", "No such option: --no-such-flag"),
        ("score x --ref y --backend jax", "'jax' is not one of 'auto', 'native', 'hf', 'vllm', 'sglang'."),
        ("train toy.yaml --save-dtype int8", "'int8' is not one of 'float32', 'bfloat16', 'float16'."),
        ("suite run suite.yaml --engine slurm", "'slurm' is not one of 'local', 'ray'."),
    ],
)
def test_usage_errors_exit_with_2(run_command: RunCommand, command: str, said: str) -> None:
    code, printed, error = run_command(*command.split())
    assert (code, printed) == (2, "")
    assert said in " ".join(error.split())
