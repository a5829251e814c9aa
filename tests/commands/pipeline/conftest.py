"""Two checkpoints, a text and an index, and what scoring them gives."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config

from argap.corpus import open_corpus
from argap.corpus.tokenize import token_documents
from argap.records import EvaluationSpec, Gap
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from tests import conftest
from tests.conftest import index_of

TRAIN = ["def add(a, b):\n    return a + b\n" * 3, "class Stack:\n    def push(self, item):\n        self.items = []\n"]


@dataclass(frozen=True)
class Place:
    """A folder with the checkpoints ``good`` and ``bad``, a text in two domains, and the index of a small training
    text."""

    folder: Path
    good: str
    bad: str
    text: str
    index: str

    def spec(self, **changed: Any) -> EvaluationSpec:
        return EvaluationSpec(
            **{"data": (self.text,), "seq_len": 48, "limit_tokens": 1500, "packing": "packed", **changed}
        )

    def on(self, **changed: Any) -> dict[str, Any]:
        """Text and index, as `ScoreConfig` takes them."""
        return {"text": self.spec(**changed), "index": self.index}

    def score(self, out: Path, **options: Any) -> Gap:
        """The bad model compared with the good one."""
        return score_models([self.bad], self.good, out, ScoreConfig(**{**self.on(), **options}))


@pytest.fixture(scope="session")
def save_model(tokenizer) -> Callable[[Path, int], Path]:
    config = GPT2Config(vocab_size=8192, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    return lambda folder, seed: conftest.save_model(folder, config, tokenizer, seed)


@pytest.fixture(scope="session")
def place(tmp_path_factory, tokenizer, save_model) -> Place:
    folder = tmp_path_factory.mktemp("place")
    for seed, name in enumerate(["good", "bad"]):
        save_model(folder / name, seed)
    source = Path(json.__file__).parent
    for domain, file in (("decode", "decoder.py"), ("encode", "encoder.py")):
        (folder / "text" / domain).mkdir(parents=True)
        (folder / "text" / domain / file).write_text((source / file).read_text()[:4000])
    (folder / "train").mkdir()
    for i, text in enumerate(TRAIN):
        (folder / "train" / f"{i}.py").write_text(text)
    documents = (document.ids for document in token_documents(open_corpus(folder / "train"), tokenizer))
    index_of(documents, folder / "index", tokenizer)
    return Place(folder, *(str(folder / name) for name in ("good", "bad", "text", "index")))


@pytest.fixture(scope="session")
def scored(place) -> tuple[Path, Gap]:
    """A result, which tests leave as it is."""
    out = place.folder / "out"
    return out, place.score(out, threshold=3)
