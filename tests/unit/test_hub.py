"""Indexes, runs and results on a hub: a local server that speaks the endpoints used, and what is refused."""

import base64
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from huggingface_hub import constants
from transformers import GPT2Config
from typer.testing import CliRunner

import argap
from argap.checkpoints.find import find_checkpoint
from argap.cli import app
from argap.errors import ArgapError, FormatError
from argap.files.hub import fetched, listed, parse_address
from argap.integrations.hub import plan, send
from argap.text.tokenizer import load_tokenizer
from tests.builders.tokenizers import byte_level
from tests.conftest import index_of, save_model

COMMIT = "c" * 40
SECRET = "hf_thetokenofthehub"
TEXT = "the cat sat on the mat. hello world, the cat sat on the hat; return 12345 the cat "


@dataclass
class Hub:
    """What the server holds, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """Of the data set ``org/name``."""
    asked: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    private: list[bool] = field(default_factory=list)
    refusing: int | None = None
    endless: bool = False
    """Whether the list of files leads to itself."""


class Handler(BaseHTTPRequestHandler):
    """The hub's endpoints for a data set: its files, its creation, and a commit to it."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        if path.startswith("/api/datasets/org/name/revision"):
            siblings = [{"rfilename": name} for name in self.hub.files]
            self.answer(json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode())
        elif re.match(r"/api/(datasets|models)/org/name/tree", path):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.hub.files.items()
            ]
            following = f'<{self.hub.address}{self.path}>; rel="next"' if self.hub.endless else ""
            self.answer(json.dumps(tree).encode(), Link=following)
        elif (match := re.fullmatch(r"/datasets/org/name/resolve/[^/]+/(.*)", path)) and match[1] in self.hub.files:
            content = self.hub.files[match[1]]
            tag = f'"{hashlib.sha1(content).hexdigest()}"'
            self.answer(content, ETag=tag, X_Repo_Commit=COMMIT, Accept_Ranges="bytes")
        else:
            code = "EntryNotFound" if path.startswith("/datasets/org/name/") else "RepoNotFound"
            self.answer(b"{}", 404, X_Error_Code=code, X_Repo_Commit=COMMIT)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.asked.append(f"POST {self.path.partition('?')[0]}")
        self.hub.tokens.add(self.headers.get("Authorization"))
        if self.hub.refusing is not None:
            self.answer(b'{"error": "no"}', self.hub.refusing)
        elif self.path == "/api/repos/create":
            made = json.loads(content)  # huggingface_hub 2 says visibility
            self.hub.private.append("private" in (made.get("visibility"), made.get("private") and "private"))
            self.answer(json.dumps({"url": f"{self.hub.address}/datasets/org/name"}).encode())
        elif "/preupload/" in self.path:
            files = [each["path"] for each in json.loads(content)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]
            self.answer(json.dumps({"files": modes}).encode())
        elif "/commit/" in self.path:
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "file":
                    self.hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"{self.hub.address}/datasets/org/name/commit/{COMMIT}"
            self.answer(json.dumps({"commitUrl": address, "commitOid": COMMIT, "success": True}).encode())
        else:  # the check of the card's metadata
            self.answer(b'{"errors": [], "warnings": []}')


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[Hub]:
    """A hub in place of the one of ``HF_ENDPOINT``, with an empty data set and an empty cache here."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield hub
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two GPT-2s, a text and an index."""
    place, tokenizer = tmp_path_factory.mktemp("place"), byte_level(0, 40)
    sizes: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    for seed, name in enumerate(("reference", "model")):
        save_model(place / name, GPT2Config(vocab_size=tokenizer.vocab_size, **sizes), tokenizer, seed)
    (place / "text").mkdir()
    for k in range(4):
        (place / "text" / f"{k}.txt").write_text(TEXT[7 * k :] + TEXT[: 9 * k + 20])
    index_of(tokenizer.encode(["the cat sat on the mat " * 3]), place / "index", tokenizer)
    return place


def scored(place: Path, out: Path, reference: str, index: str):
    data = {"data": place / "text", "seq_len": 32, "threshold": 2}
    return argap.score(str(place / "model"), reference, index=index, out=out, short_context=8, **data)


@pytest.fixture(scope="module")
def local(place, tmp_path_factory):
    """A result of the index and the checkpoint on this machine."""
    return scored(place, tmp_path_factory.mktemp("local"), str(place / "reference"), str(place / "index"))


def put(hub: Hub, folder: Path, below: str) -> None:
    hub.files |= {
        f"{below}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_an_index_on_the_hub_counts_as_here(hub, place, local, tmp_path):
    put(hub, place / "index", "indexes/idx")
    hub.files["other/large.bin"] = b"x"
    address = "hf://datasets/org/name/indexes/idx"
    assert (
        argap.open_index(address).count([262, 7], [264, 9]).tolist()
        == argap.open_index(place / "index").count([262, 7], [264, 9]).tolist()
    )
    result = scored(place, tmp_path / "out", str(place / "reference"), address)
    assert result.record.on_hits == local.record.on_hits
    assert result.record.on_hits.n > 0
    assert result.record.index.folder == address
    assert json.loads((tmp_path / "out" / "model" / "run.json").read_text())["source"]["index"] == address
    assert not [line for line in hub.asked if "large.bin" in line]


def test_a_result_is_pushed_and_serves_as_a_reference(hub, place, local, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    planned = plan(local.folder, "hf://datasets/org/name")
    assert send(planned) == f"{hub.address}/datasets/org/name/commit/{COMMIT}"
    assert {*hub.files} == {each.name for each in planned.files} | {"README.md"}
    assert {"gap.json", "cells.parquet", "labels/labels.parquet", "reference/short-8/run.json"} <= {*hub.files}
    assert all(hub.files[each.name] == each.path.read_bytes() for each in planned.files)
    assert (hub.tokens, hub.private) == ({f"Bearer {SECRET}"}, [True])
    _, front, body = hub.files["README.md"].decode().split("---\n", 2)
    metadata = yaml.safe_load(front)
    assert metadata["tags"] == ["argap", "perplexity", "evaluation"]
    assert [each["config_name"] for each in metadata["configs"]] == ["cells", "reference", "model"]
    assert "## Associative recall" in body
    monkeypatch.delenv("HF_TOKEN")

    address = "hf://datasets/org/name/reference"
    result = scored(place, tmp_path / "scored", address, str(place / "index"))
    assert result.record.on_all == local.record.on_all
    assert [each.delta for each in result.record.context] == [each.delta for each in local.record.context]
    compared = argap.compare(local.folder / "model", address, out=tmp_path / "compared", threshold=2)
    assert compared.record.on_hits == local.record.on_hits
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetched(address).is_dir()  # from the cache
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_a_link_to_nothing_is_not_pushed(local, tmp_path):
    result = shutil.copytree(local.folder, tmp_path / "result")
    (result / "labels" / "windows.parquet").unlink()
    (result / "labels" / "windows.parquet").symlink_to("gone")
    with pytest.raises(ArgapError, match=r"windows\.parquet: a link to nothing"):
        plan(result, "hf://datasets/org/name")


@pytest.mark.parametrize(("target", "said"), [("/dev/null", "a device; expected"), ("gap.json", "a file; expected")])
@pytest.mark.parametrize("name", ["labels", "model/tokens"])
def test_what_has_the_name_of_a_folder_and_is_none_is_not_left_out(local, tmp_path, name, target, said):
    copied = shutil.copytree(local.folder, tmp_path / "result")
    shutil.rmtree(copied / name)
    (copied / name).symlink_to(Path(target) if target.startswith("/") else copied / target)
    with pytest.raises(ArgapError, match=said):
        plan(copied, "hf://datasets/o/n")


def test_a_push_is_a_dry_run_unless_asked(hub, local, monkeypatch):
    run = CliRunner().invoke(app, ["push", str(local.folder), "hf://datasets/org/name/mine"])
    assert run.exit_code == 0, run.output
    planned = plan(local.folder, "hf://datasets/org/name/mine")
    assert f"{planned.bytes:,} bytes, would go to hf://datasets/org/name/mine." in run.stdout
    assert (
        sum(int(line.split()[0].replace(",", "")) for line in run.stdout.splitlines()[:-1]) + len(planned.card.encode())
        == planned.bytes
    )
    assert hub.asked == []
    figures = plan(local.folder, "hf://datasets/org/name", tokens=False)
    assert not [each.name for each in figures.files if "/" in each.name]

    hub.files["mine/README.md"] = b"their own card"
    monkeypatch.setenv("HF_TOKEN", SECRET)
    sent = CliRunner().invoke(app, ["push", str(local.folder), "hf://datasets/org/name/mine", "--send", "--public"])
    assert sent.exit_code == 0, sent.output
    assert f"/datasets/org/name/commit/{COMMIT}" in sent.stdout
    assert hub.private == [False]
    assert hub.files["mine/README.md"] == b"their own card"
    assert "mine/gap.json" in hub.files


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://org", "hf://org: expected hf://datasets/ORG/NAME/FOLDER"),
        ("hf://datasets/org/name/../..", "expected hf://datasets/ORG/NAME/FOLDER"),
        ("hf://datasets/org/name/a?token=x", "expected hf://datasets/ORG/NAME/FOLDER"),
        ("s3://org/name", "s3://org/name: expected hf://datasets/ORG/NAME/FOLDER"),
        ("hf://org/name/run", "hf://org/name/run: results go to a data set as it is now"),
        ("hf://datasets/org/name@v1", "hf://datasets/org/name@v1: results go to a data set as it is now"),
    ],
)
def test_results_go_to_data_sets_only(local, address, message):
    with pytest.raises(ArgapError, match=re.escape(message)):
        plan(local.folder, address)


def test_a_damaged_file_is_not_sent(local, tmp_path):
    copy = shutil.copytree(local.folder, tmp_path / "copy")
    labels = copy / "labels" / "labels.parquet"
    content = bytearray(labels.read_bytes())
    content[len(content) // 2] ^= 1
    labels.write_bytes(content)
    with pytest.raises(FormatError, match=r"labels\.parquet: damaged between bytes"):
        plan(copy, "hf://datasets/org/name")
    shutil.copy(local.folder / "labels" / "labels.parquet", labels)
    (copy / "labels" / "labels.json").write_bytes(b"")
    with pytest.raises(FormatError, match=r"labels\.json: not readable as JSON"):
        plan(copy, "hf://datasets/org/name")


def test_what_the_hub_lacks_or_refuses_is_one_line(hub, local, place, tmp_path, monkeypatch):
    put(hub, place / "text", "texts")
    planned = plan(local.folder, "hf://datasets/org/name")
    with pytest.raises(ArgapError, match="HF_TOKEN is not set; give a token that may write to org/name"):
        send(planned)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    hub.refusing = 403
    with pytest.raises(ArgapError, match=r"^hf://datasets/org/name: the hub did not take it \(") as refused:
        send(planned)
    assert SECRET not in str(refused.value)
    for address, error, message in (
        ("hf://datasets/org/name/texts", FormatError, "no index there"),
        ("hf://datasets/org/name/none", ArgapError, "hf://datasets/org/name/none: the repository has no such folder"),
        ("hf://datasets/org/other/idx", ArgapError, "hf://datasets/org/other/idx: the hub does not give it"),
    ):
        with pytest.raises(error, match=message):
            argap.open_index(address)
    with pytest.raises(ArgapError, match="hf://org/name/run: the hub does not give it"):
        scored(place, tmp_path / "out", "hf://org/name/run", str(place / "index"))
    with pytest.raises(ArgapError, match=r"no gap\.json there"):
        plan(place / "text", "hf://datasets/org/name")
    assert (parse_address("hf://a/b@refs%2Fpr%2F1/c/").revision, parse_address("hf:/a/b/c").folder) == (
        "refs/pr/1",
        "c",
    )


def test_a_list_of_files_without_end_is_refused(hub: Hub, monkeypatch) -> None:
    hub.endless = True
    monkeypatch.setattr("argap.files.hub.PAGES", 20)
    for find in (lambda: fetched("hf://datasets/org/name/run"), lambda: listed("org/name", None)):
        hub.asked.clear()
        with pytest.raises(ArgapError, match="its list of files has more than 20 pages"):
            find()
        assert sum("/tree/" in each for each in hub.asked) == 20


def test_an_answer_that_the_hubs_library_does_not_foresee_is_one_line(monkeypatch):
    def fetch(*_, **__):
        raise TypeError("quote_from_bytes() expected bytes")  # the commit is a number

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with pytest.raises(ArgapError, match=r"^org/name: no such folder .* \(quote_from_bytes"):
        find_checkpoint("org/name")
    for name in ("huggingface_hub.file_exists", "huggingface_hub.hf_hub_download"):
        monkeypatch.setattr(name, fetch)
    with pytest.raises(ArgapError, match=r"^org/name: no tokenizer there, as a folder or on the hub"):
        load_tokenizer("org/name")
