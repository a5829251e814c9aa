"""What the campaign alters: one file or folder of every kind that argap reads, made by argap on toy models.

The tokenizer has a token for each of 60 words, the models have a width of 16, so that a command takes a fraction of
a second.
"""

import contextlib
import io
import json
import random
import sys
from pathlib import Path

import yaml

WORDS = 60
TRAIN = {
    "tokenizer": "tokenizer",
    "data": ["text/train.jsonl"],
    "hidden_size": 16,
    "num_layers": 2,
    "seq_len": 96,
    "batch_size": 4,
    "steps": 6,
    "warmup_steps": 1,
    "log_every": 1,
    "checkpoint_every": 2,
    "keep_checkpoints": 2,
}
SWEEP = {
    "members": {"attention": None, "hyena": None},
    "lengths": [16],
    "widths": [8],
    "pairs": [2],
    "lrs": [0.01, 0.001],
    "run": {
        "vocab_size": 32,
        "train_examples": 32,
        "validation_examples": 8,
        "test_examples": 8,
        "batch_size": 8,
        "epochs": 3,
    },
}
SUITE = {
    "reference": "attention",
    "base": "base_conv",
    "members": {"attention": None, "base_conv": None},
    "sizes": {"tiny": {"hidden_size": 16, "num_layers": 2}},
    "train": {key: value for key, value in TRAIN.items() if key not in ("hidden_size", "num_layers")},
    "evaluation": {"data": ["text/val.jsonl"], "seq_len": 32},
    "mqar": {"pairs": [2, 4], "examples": 2, "length": 32},
}
SLICES = [
    {"name": "rare", "where": "repeated AND train_count < 10", "title": "Rare", "note": "A note."},
    {"name": "near", "where": "repeated AND distance < 8"},
]
SCORE = ("--data", "text/val.jsonl", "--seq-len", "32", "--device", "cpu")


def run(*command: str) -> None:
    """One command of argap in this process. Raises `RuntimeError` with what it said where it fails."""
    from argap.cli import main

    said = io.StringIO()
    sys.argv = ["argap", *command]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as left:
            if left.code:
                raise RuntimeError(f"{' '.join(command)}: {said.getvalue()}") from None


def make(folder: Path) -> None:
    """Write everything to ``folder``, which must be the working directory."""
    _write_texts(folder)
    _write_tokenizer(folder / "tokenizer")
    _write_yaml(folder / "train.yaml", TRAIN | {"architecture": "base_conv"})
    _write_yaml(folder / "ref.yaml", TRAIN | {"architecture": "attention"})
    _write_yaml(folder / "sweep.yaml", SWEEP)
    _write_yaml(folder / "suite.yaml", SUITE)
    _write_yaml(folder / "slices.yaml", {"slices": SLICES})
    run("train", "train.yaml", "--out", "model", "--device", "cpu")
    run("train", "ref.yaml", "--out", "ref", "--device", "cpu")
    _write_gpt2(folder)
    run("index", "build", "text/train.jsonl", "--tokenizer", "tokenizer", "--out", "index", "--stats")
    run("index", "build", "text/val.jsonl", "--tokenizer", "tokenizer", "--out", "index2")
    run("score", "model", "--ref", "ref", *SCORE, "--index", "index", "--out", "out")
    run("synthetics", "sweep", "sweep.yaml", "--out", "sweep", "--device", "cpu")
    run("suite", "run", "suite.yaml", "--work", "work", "--out", "result", "--device", "cpu")
    _write_questions(folder / "questions.jsonl")
    run("recall", "model", "--ref", "ref", "--tasks", "swde", "--data", "questions.jsonl", "--out", "recall")
    _write_logprobs(folder)
    (folder / "counts.csv").write_text(
        "first,second,count\n" + "".join(f"{k},{k + 1},{k * k + 1}\n" for k in range(40))
    )


def _sentence(rng: random.Random, words: int) -> str:
    return " ".join(f"w{min(int(rng.expovariate(0.08)), WORDS - 1)}" for _ in range(words))


def _write_texts(folder: Path) -> None:
    rng = random.Random(0)
    (folder / "text").mkdir()
    for name, documents in (("train", 30), ("val", 12)):
        lines = [json.dumps({"text": _sentence(rng, rng.randint(20, 60))}) for _ in range(documents)]
        (folder / "text" / f"{name}.jsonl").write_text("\n".join([*lines, ""]))


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"w{i}": i for i in range(WORDS)} | {"<eos>": WORDS}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))


def _write_gpt2(folder: Path) -> None:
    """A model of a family that transformers runs."""
    import shutil

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS + 1, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
    for path in (folder / "tokenizer").iterdir():
        shutil.copy(path, folder / "gpt2")


def _write_yaml(path: Path, values: object) -> None:
    path.write_text(yaml.safe_dump(values))


def _write_questions(path: Path) -> None:
    rng = random.Random(1)
    rows = []
    for k in range(4):
        text = f"{_sentence(rng, 8)} w{k} w{k + 7} {_sentence(rng, 8)}\nw{k}"
        rows.append({"text": text, "key": f"w{k}", "value": f"w{k + 7}", "doc_id": f"d{k}"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_logprobs(folder: Path) -> None:
    """The log-probs of a run as another program would give them."""
    from argap.tokenizer import load_tokenizer

    tokenizer, rng = load_tokenizer(folder / "tokenizer"), random.Random(2)
    rows = []
    for line in (folder / "text" / "val.jsonl").read_text().splitlines():
        (ids,) = tokenizer.encode([json.loads(line)["text"]])
        rows.append({"tokens": [int(i) for i in ids], "logprobs": [None, *(-rng.random() * 4 for _ in ids[1:])]})
    (folder / "logprobs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
