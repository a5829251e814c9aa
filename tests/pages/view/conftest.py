"""A client of the page's server, and results at the edge."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from argap.corpus import open_corpus
from argap.evaluation.windows import build_evaluation_set
from argap.result import open_result
from argap.text.tokenizer import load_tokenizer
from argap.view.answers import Answers
from argap.view.app import view_app
from tests.conftest import write_drawn_result

TOKEN = "the-token"
PORT = 8717
ORIGIN = f"http://127.0.0.1:{PORT}"

HOSTILE = {
    "markup": "<script>alert(1)</script>",
    "entity": "&amp;<b>",
    "right to left": "שלום",
    "override": "a\u202eb",
    "emoji": "👩‍👩‍👧",
    "control": "\x00\x07\x1b[31m",
    "lines": "one\n\ttwo\n",
    "long": "x" * 100_000,
    "formula": '=HYPERLINK("http://x")',
}
"""Tokens that must be shown as text."""


def client_of(folder: Path, *, known: bool = True) -> TestClient:
    """A client of a result's page; ``known``: with the cookie that the token gives."""
    app = view_app(Answers(open_result(folder)), token=TOKEN, port=PORT)
    client = TestClient(app, base_url=ORIGIN, follow_redirects=False)
    if known:
        client.get("/", params={"token": TOKEN})
    return client


@pytest.fixture(scope="module")
def client(token_result):
    return client_of(token_result)


@pytest.fixture
def stranger(token_result):
    """A client without the token."""
    return client_of(token_result, known=False)


def write_result(place: Path, tokenizer, texts: list[str], *, models=("ref", "m-1", "m2"), seq_len: int = 48) -> Path:
    """A result without training counts of some documents."""
    (place / "text").mkdir(parents=True)
    for k, text in enumerate(texts):
        (place / "text" / f"{k:02d}.txt").write_bytes(text.encode())
    data = build_evaluation_set(open_corpus(place / "text"), tokenizer, seq_len=seq_len, packing="document")
    return write_drawn_result(place / "out", data, tokenizer, source=place / "text", models=models)


@pytest.fixture(scope="session")
def hostile_result(tmp_path_factory):
    """Every one of `HOSTILE` as a token of its own, twice."""
    import tokenizers

    place = tmp_path_factory.mktemp("hostile")
    words = ["[UNK]", *HOSTILE.values()]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.decoder = tokenizers.decoders.Fuse()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("§", "removed")
    backend.save(str(place / "tokenizer.json"))
    text = "§".join([*HOSTILE.values(), *HOSTILE.values()])
    return write_result(place, load_tokenizer(place), [text, text])
