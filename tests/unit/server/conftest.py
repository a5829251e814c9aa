"""A small completions server in this process, with the log-probs of a real model, and a text to score."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from argap.scoring.server import client

DOCUMENTS = [
    "the cat sat on the mat. " * 9,
    "a dog saw the cat and the cat saw a dog. " * 5,
    "the end of the mat",
    "the dog sat on the cat. " * 8,
]
Answer = tuple[int, str, str]
"""Status, content type, body."""


class Completions:
    """OpenAI's completions of one model, in one of the dialects.

    ``fault``, given the number of the request and the good answer, may return another one.
    """

    def __init__(self, model: GPT2LMHeadModel, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.dialect = "prompt_logprobs"
        self.bos: int | None = None
        """A token that it puts before each prompt by itself."""
        self.special: int | None = None
        """Where prompts are text: a token whose text at the start of a prompt is that token, and is not echoed."""
        self.shift = 0
        self.fault: Callable[[int, dict[str, Any], Answer], Answer | None] = lambda number, body, good: None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    def __call__(self, path: str, body: dict[str, Any], authorization: str | None) -> Answer:
        with self.lock:
            self.requests.append(body)
            self.headers.append(authorization)
            number = len(self.requests)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            good = self.answer(path, body)
            return self.fault(number, body, good) or good
        finally:
            with self.lock:
                self.at_once -= 1

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        if path != "/v1/completions":
            return 404, "application/json", '{"error": {"message": "no such path"}}'
        if body["model"] != "tiny":
            return 404, "application/json", '{"error": {"message": "The model does not exist"}}'
        prompt = body["prompt"]
        if self.dialect == "text" and not isinstance(prompt, str):
            return 422, "application/json", '{"detail": "prompt: expected a string"}'
        windows = [self.read(prompt)] if isinstance(prompt, str) else prompt
        windows = [[int(i) for i in window] for window in windows]
        choices = [{"index": k, "text": "", **self.choice(ids, body)} for k, ids in enumerate(windows)]
        read = sum(map(len, windows)) + (self.bos is not None) * len(windows)
        return 200, "application/json", json.dumps({"choices": choices[::-1], "usage": {"prompt_tokens": read}})

    def read(self, prompt: str) -> list[int]:
        start = "" if self.special is None else self.tokenizer.token_text(self.special)
        text = prompt.removeprefix(start)
        before = [] if text == prompt or self.special is None else [self.special]
        return [*before, *self.tokenizer.encode([text])[0]]

    def choice(self, ids: list[int], body: dict[str, Any]) -> dict[str, Any]:
        before = [] if self.bos is None else [self.bos]
        with torch.inference_mode(), self.lock:
            logits = self.model(torch.tensor([[*before, *ids]])).logits[0]
        rows = logits.log_softmax(-1)[len(before) - 1 + self.shift if before else self.shift :]
        if before:
            rows = rows[1:]
        pieces = self.tokenizer.pieces
        entries: list[Any] = [None]
        for token, row in zip(ids[1:], rows, strict=False):
            top = int(row.argmax())
            entries.append({"token": token, "logprob": float(row[token]), "top": top, "best": float(row[top])})
        if self.dialect == "prompt_logprobs":
            if "prompt_logprobs" not in body:
                return {"logprobs": None}
            given: list[Any] = [None]
            for entry in entries[1:]:
                rank = 1 if entry["top"] == entry["token"] else 2
                own = {"logprob": entry["logprob"], "rank": rank, "decoded_token": pieces[entry["token"]]}
                top = {"logprob": entry["best"], "rank": 1, "decoded_token": pieces[entry["top"]]}
                given.append({str(entry["top"]): top} | {str(entry["token"]): own})
            return {"prompt_logprobs": given}
        if not body.get("echo"):
            return {"logprobs": None}
        new = int(rows[-1].argmax())
        lists = {
            "tokens": [pieces[i].replace("\ufffd", "") for i in [*ids, new]],
            "token_logprobs": [None, *(entry["logprob"] for entry in entries[1:]), -1.0],
            "top_logprobs": [None, *({pieces[e["top"]]: e["best"]} for e in entries[1:]), {pieces[new]: -1.0}],
        }
        echoed = 1 if ids[0] == self.special else 0
        return {"logprobs": {name: values[echoed:] for name, values in lists.items()}}


class Running:
    """The address of a running server, and the server."""

    def __init__(self, port: int, completions: Completions) -> None:
        self.url, self.completions = f"http://127.0.0.1:{port}/v1", completions


@pytest.fixture
def server(tmp_path_factory, tokenizer, monkeypatch) -> Iterator[Running]:
    """A server of ``tiny``, and short waits between tries."""
    monkeypatch.setattr(client, "WAITS", (0.01, 0.02))
    completions = Completions(tiny(), tokenizer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content_type, text = completions(self.path, body, self.headers["Authorization"])
            if status == 0:  # nothing at all
                return
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            if status in (301, 302, 307):
                self.send_header("Location", text)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 64
        """Connections that wait until this process has time; a client's next try would count as a retry."""

        def handle_error(self, request: Any, client_address: Any) -> None:
            """The client has gone."""

    with Quiet(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Running(http.server_port, completions)
        http.shutdown()
        thread.join()


def tiny(seed: int = 1) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=8192, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="session")
def place(tmp_path_factory, tokenizer) -> Path:
    """``text.jsonl``, the checkpoints ``tiny`` and ``reference``, and the tokenizer ``t``."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    for name, seed in (("tiny", 1), ("reference", 2)):
        tiny(seed).save_pretrained(folder / name)
        tokenizer.save(folder / name)
    tokenizer.save(folder / "t")
    return folder
