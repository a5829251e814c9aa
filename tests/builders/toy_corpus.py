"""A toy corpus that a tiny model learns in seconds, with a tokenizer and a configuration."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import word_tokenizer

WORDS = 60


@pytest.fixture(scope="session")
def toy_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder with one token per word, ``w0 … w59``, and ``<eos>`` (60)."""
    folder = tmp_path_factory.mktemp("tokenizer")
    word_tokenizer([*(f"w{i}" for i in range(WORDS)), "<eos>"], unknown="<eos>", eos="<eos>").save(folder)
    return folder


@pytest.fixture(scope="session")
def toy_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 documents of 100 words; seven of eight words are determined by the previous word."""
    random = np.random.default_rng(0)
    successor = random.permutation(WORDS)
    path = tmp_path_factory.mktemp("corpus") / "toy.jsonl"
    with open(path, "w") as file:
        for _ in range(40):
            word, words = int(random.integers(WORDS)), []
            for _ in range(100):
                words.append(f"w{word}")
                word = int(random.integers(WORDS)) if random.random() < 1 / 8 else int(successor[word])
            file.write(json.dumps({"text": " ".join(words)}) + "\n")
    return path


@pytest.fixture
def toy_values(toy_tokenizer: Path, toy_corpus: Path) -> dict:
    """Fields of a configuration that trains in a second."""
    return {
        "tokenizer": str(toy_tokenizer),
        "data": [str(toy_corpus)],
        "architecture": "attention",
        "hidden_size": 32,
        "num_layers": 2,
        "seq_len": 16,
        "batch_size": 8,
        "steps": 40,
        "warmup_steps": 5,
        "lr": 1e-2,
        "log_every": 4,
        "checkpoint_every": 10,
        "seed": 7,
    }
