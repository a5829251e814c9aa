"""Make the material that the campaign alters: one file or folder of every kind that argap reads, from toy models.

The tokenizer has one token for each of 60 words and the models have a width of 16, so that a command takes a fraction
of a second.
"""

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
SERIES = {
    "reference": "attention",
    "series": {
        "attention": {"tokens_per_step": 384, "checkpoints": {3: "ref", 6: "ref"}},
        "base_conv": {"tokens_per_step": 384, "checkpoint": "model{step}", "steps": [3, 6]},
    },
    "evaluation": {"data": ["text/val.jsonl"], "seq_len": 32},
    "index": "index",
}
MAMBA_LAYER = {
    "norm.weight": (16,), "mixer.A_log": (32, 16), "mixer.D": (32,), "mixer.conv1d.weight": (32, 1, 4),
    "mixer.conv1d.bias": (32,), "mixer.in_proj.weight": (64, 16), "mixer.x_proj.weight": (33, 32),
    "mixer.dt_proj.weight": (32, 1), "mixer.dt_proj.bias": (32,), "mixer.out_proj.weight": (16, 32),
}  # fmt: skip
"""Of a width of 16: an inner width of 32, a state of 16, and steps of rank 1."""
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
    _write_gpt2(folder / "gpt2", folder / "tokenizer")
    _write_pickles(folder)
    run("index", "build", "text/train.jsonl", "--tokenizer", "tokenizer", "--out", "index")
    run("index", "build", "text/val.jsonl", "--tokenizer", "tokenizer", "--out", "index2")
    run("score", "model", "--ref", "ref", *SCORE, "--index", "index", "--out", "out")
    run("synthetics", "sweep", "sweep.yaml", "--out", "sweep", "--device", "cpu")
    run("suite", "run", "suite.yaml", "--work", "work", "--out", "result", "--device", "cpu")
    _write_questions(folder / "questions.jsonl")
    run("recall", "model", "--ref", "ref", "--tasks", "swde", "--data", "questions.jsonl", "--out", "recall")
    _write_logprobs(folder)
    _write_segments(folder)
    _write_yaml(folder / "series.yaml", SERIES)
    os.environ["ARGAP_HOME"] = str(folder / "home")
    run("ref", "add", "mine", "ref", "--data", "text/val.jsonl", "--index", "index", "--seq-len", "32")
    _write_counts(folder)


def _write_counts(folder: Path) -> None:
    """Write counts, n-gram models, packed tokens and published figures as other tools write them."""
    (folder / "counts.csv").write_text(
        "first,second,count\n" + "".join(f"{k},{k + 1},{k * k + 1}\n" for k in range(40))
    )
    words = [f"-1.5\tw{k}\t-0.3" for k in range(20)]
    pairs = [f"-0.7\tw{k} w{k + 1}" for k in range(19)]
    sizes = ["\\data\\", f"ngram 1={len(words)}", f"ngram 2={len(pairs)}"]
    lines = [*sizes, "", "\\1-grams:", *words, "", "\\2-grams:", *pairs, "", "\\end\\", ""]
    (folder / "model.arpa").write_text("\n".join(lines))
    (folder / "paper.csv").write_text("Model,SWDE,FDA\nattention,72.5,61.0\nbase_conv,30.1,12.9\n")
    _write_packed(folder / "packed")


def _write_packed(folder: Path) -> None:
    """Documents of text as Parquet and as compressed lines, and the same tokens as a pair of Megatron."""
    folder.mkdir()
    rng = random.Random(3)
    texts = [_sentence(rng, 30) for _ in range(8)]
    pq.write_table(pa.table({"text": texts}), folder / "text.parquet")
    with gzip.open(folder / "text.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    sequences = [np.array([int(word[1:]) for word in text.split()], "<u2") for text in texts]
    np.concatenate(sequences).tofile(folder / "tokens.bin")
    sizes = np.array([len(each) for each in sequences], "<i4")
    starts = (np.cumsum([0, *sizes[:-1]]) * 2).astype("<i8")
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1)
    bounds = np.arange(len(sizes) + 1, dtype="<i8")
    (folder / "tokens.idx").write_bytes(header + sizes.tobytes() + starts.tobytes() + bounds.tobytes())


def _sentence(rng: random.Random, words: int) -> str:
    return " ".join(f"w{min(int(rng.expovariate(0.08)), WORDS - 1)}" for _ in range(words))


def _write_texts(folder: Path) -> None:
    rng = random.Random(0)
    (folder / "text").mkdir()
    for name, documents in (("train", 30), ("val", 12)):
        lines = [json.dumps({"text": _sentence(rng, rng.randint(20, 60))}) for _ in range(documents)]
        (folder / "text" / f"{name}.jsonl").write_text("\n".join([*lines, ""]))


def _write_tokenizer(folder: Path, *, backwards: bool = False) -> None:
    """Write a tokenizer with one token per word; ``backwards``: with other ids, for argap another tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"w{i}": WORDS - 1 - i if backwards else i for i in range(WORDS)} | {"<eos>": WORDS}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))


def _write_gpt2(folder: Path, tokenizer: Path) -> None:
    """Write a model of a family that transformers runs."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS + 1, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(folder)
    for path in tokenizer.iterdir():
        shutil.copy(path, folder)


def _write_pickles(folder: Path) -> None:
    """Pickled weights: of a model of transformers, and of mamba_ssm's layout, which has no model type."""
    import torch
    from safetensors.torch import load_file

    shutil.copytree(folder / "gpt2", folder / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(folder / "gpt2" / "model.safetensors"), folder / "pickled" / "pytorch_model.bin")
    shapes = {f"backbone.layers.0.{name}": shape for name, shape in MAMBA_LAYER.items()}
    shapes |= dict.fromkeys(("backbone.embedding.weight", "lm_head.weight"), (64, 16))
    torch.manual_seed(0)
    weights = {name: torch.rand(shape) for name, shape in (shapes | {"backbone.norm_f.weight": (16,)}).items()}
    (folder / "published").mkdir()
    torch.save(weights, folder / "published" / "pytorch_model.bin")
    config = {"d_model": 16, "n_layer": 1, "vocab_size": WORDS + 1, "ssm_cfg": {}, "rms_norm": True}
    config |= {"residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8}
    (folder / "published" / "config.json").write_text(json.dumps(config))


def _write_segments(folder: Path) -> None:
    """Write a result of two tokenizers, compared by segments."""
    _write_tokenizer(folder / "other-tokenizer", backwards=True)
    _write_gpt2(folder / "other", folder / "other-tokenizer")
    run("score", "other", "--ref", "ref", *SCORE, "--index", "index", "--out", "segments")


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
    """Write the log-probs of a run as another tool would."""
    from argap.text.tokenizer import load_tokenizer

    tokenizer, rng = load_tokenizer(folder / "tokenizer"), random.Random(2)
    rows = []
    for line in (folder / "text" / "val.jsonl").read_text().splitlines():
        (ids,) = tokenizer.encode([json.loads(line)["text"]])
        rows.append({"tokens": [int(i) for i in ids], "logprobs": [None, *(-rng.random() * 4 for _ in ids[1:])]})
    (folder / "logprobs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "logprobs.parquet")
