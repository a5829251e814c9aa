"""`argap score URL`: the run of the weights behind the server, and one line for everything a server may answer."""

import json
import math
import os
import shutil
import signal
import socket
import ssl
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import argap
from argap.errors import ArgapError
from argap.scoring.server import client
from argap.scoring.server.client import Client, Stopped, parse_address
from argap.scoring.server.probe import check_next_token
from argap.tokens import runs
from argap.tokens.runs import open_run, read_logprobs, token_parts
from tests.builders.processes import begin, said

LISTS = ("tokens", "token_logprobs")
KEY = "sk-not-to-be-seen-0123456789"


def score(server: Any, place: Path, out: Path, **options: Any) -> runs.Run:
    given: dict[str, Any] = {"data": place / "text.jsonl", "seq_len": 32, "tokenizer": str(place / "t")}
    given |= {"model_name": "tiny", "device": "cpu"}
    argap.score(server.url, place / "reference", out=out, **given | options)
    return open_run(out / "tiny")


def asked_with(key: str, server: Any) -> list[list[int]]:
    """The prompts of the requests that a key came with."""
    sent = zip(server.completions.headers, server.completions.requests, strict=True)
    return [ids for header, body in sent if header == f"Bearer {key}" for ids in body["prompt"]]


@pytest.fixture
def expected(place, tmp_path) -> Any:
    """The log-probs that argap's own scorer gives for the weights behind the server."""

    def of(**options: Any) -> tuple[np.ndarray, np.ndarray]:
        out = tmp_path / "expected"
        given: dict[str, Any] = {"data": place / "text.jsonl", "seq_len": 32, "device": "cpu"}
        argap.score(place / "tiny", place / "reference", out=out, **given | options)
        return read_logprobs(open_run(out / "tiny"))

    return of


@pytest.mark.parametrize("dialect", ["prompt_logprobs", "echo", "text"])
def test_the_run_is_that_of_the_checkpoint(server, place, tmp_path, expected, monkeypatch, dialect: str) -> None:
    monkeypatch.setattr(runs, "SHARD_TOKENS", 64)
    server.completions.dialect = dialect
    windows = {"packing": "document", "seq_len": 64} if dialect == "text" else {}
    run = score(server, place, tmp_path / "out", **windows)
    logprob, top1 = read_logprobs(run)
    own, own_top1 = expected(**windows)
    np.testing.assert_allclose(logprob, own, atol=1e-4)
    tokens = runs.read_token_ids(run)
    if dialect == "prompt_logprobs":
        np.testing.assert_array_equal(top1, own_top1)
    else:  # text does not tell which id
        np.testing.assert_array_equal(top1, np.where(own_top1 == tokens, tokens, -1))
    record = run.record.finished.server
    assert record.logprobs == ("prompt_logprobs" if dialect == "prompt_logprobs" else "echo")
    assert record.prompts == ("text" if dialect == "text" else "token ids")
    assert (record.model, record.bos, record.decimals, record.retries) == ("tiny", False, None, 0)
    assert run.record.checkpoint.name == server.url
    assert (run.record.identity.backend, run.record.finished.head) == ("server", "server")
    assert all(body["max_tokens"] == 1 and body["temperature"] == 1 for body in server.completions.requests)


def test_windows_go_several_to_a_request_and_requests_are_bounded(server, place, tmp_path, expected) -> None:
    run = score(server, place, tmp_path / "out", batch_size=2, concurrency=3, seq_len=16)
    scoring = [body["prompt"] for body in server.completions.requests if len(body["prompt"]) == 2]
    assert len(scoring) >= 4
    assert server.completions.most_at_once <= 3
    np.testing.assert_allclose(read_logprobs(run)[0], expected(seq_len=16)[0], atol=1e-4)


def test_rounding_and_a_bos_are_recorded(server, place, tmp_path, capsys) -> None:
    def rounded(number: int, body: dict[str, Any], good: Any) -> Any:
        answer = json.loads(good[2], parse_float=lambda text: round(float(text), 2))
        return 200, good[1], json.dumps(answer)

    server.completions.fault, server.completions.bos = rounded, 0
    record = score(server, place, tmp_path / "out").record.finished.server
    assert (record.decimals, record.bos) == (2, True)
    assert "adds a token of its own, a BOS, before each window" in capsys.readouterr().err


@pytest.mark.parametrize("dialect", ["prompt_logprobs", "echo", "text"])
def test_a_bos_that_is_asked_for_is_sent(server, place, tmp_path, expected, tokenizer, dialect: str) -> None:
    server.completions.dialect, server.completions.special = dialect, tokenizer.eos if dialect == "text" else None
    windows = {"packing": "document", "seq_len": 60} if dialect == "text" else {}
    asked: dict[str, Any] = {**windows, "bos": tokenizer.token_text(tokenizer.eos)}
    run = score(server, place, tmp_path / "out", **asked)
    np.testing.assert_allclose(read_logprobs(run)[0], expected(**asked)[0], atol=1e-4)
    assert (run.record.identity.bos, run.record.finished.server.bos) == (tokenizer.eos, True)


def test_a_server_with_a_bos_of_its_own_is_the_scorer_with_one(server, place, tmp_path, expected, tokenizer) -> None:
    server.completions.bos = tokenizer.eos
    bos = tokenizer.token_text(tokenizer.eos)
    run = score(server, place, tmp_path / "out", bos=bos)
    assert max(len(ids) for body in server.completions.requests for ids in body["prompt"]) == 32  # none was sent
    np.testing.assert_allclose(read_logprobs(run)[0], expected(bos=bos)[0], atol=1e-4)


def test_a_bos_read_as_text_is_refused(server, place, tmp_path, tokenizer) -> None:
    server.completions.dialect = "text"
    bos = tokenizer.token_text(tokenizer.eos)
    with pytest.raises(ArgapError, match=r"read \d+ tokens, \d+ were sent in 1 windows"):
        score(server, place, tmp_path / "out", packing="document", seq_len=60, bos=bos)


@pytest.mark.parametrize("zero", [-9999.0, -math.inf])
def test_a_probability_of_0_is_minus_infinity(server, place, tmp_path, zero: float) -> None:
    server.completions.dialect = "echo"
    server.completions.fault = changed(lambda c: c["logprobs"]["token_logprobs"].__setitem__(2, zero))
    logprob = read_logprobs(score(server, place, tmp_path / "out"))[0]
    assert 0 < np.isneginf(logprob).sum() < len(logprob) / 2


def test_a_stopped_run_resumes_at_its_first_missing_shard(server, place, tmp_path, expected, monkeypatch) -> None:
    monkeypatch.setattr(runs, "SHARD_TOKENS", 64)
    server.completions.fault = lambda number, body, good: (500, "text/html", "<html>") if number > 9 else None
    with pytest.raises(ArgapError, match=r"status 500 \(HTML\), 3 times; finished shards are kept") as refused:
        score(server, place, tmp_path / "out", batch_size=1, concurrency=1)
    assert "\n" not in str(refused.value)
    kept = [path.name for path in token_parts(tmp_path / "out" / "tiny")]
    assert 0 < len(kept) < 4
    assert not (tmp_path / "out" / "gap.json").exists()
    server.completions.fault = lambda number, body, good: None
    monkeypatch.setenv("ARGAP_API_KEY", "second")  # the first run's last request may reach the server late
    run = score(server, place, tmp_path / "out", batch_size=1, concurrency=1)
    windows = [ids.tolist() for ids in np.split(runs.read_token_ids(run), runs.read_window_offsets(run)[1:-1])]
    asked = [ids for ids in asked_with("second", server) if ids in windows]  # the others are probes
    assert asked == windows[2 * len(kept) :] != []
    np.testing.assert_allclose(read_logprobs(run)[0], expected()[0], atol=1e-4)
    monkeypatch.setenv("ARGAP_API_KEY", "third")
    score(server, place, tmp_path / "out", batch_size=1)
    assert asked_with("third", server) == []  # a finished run asks nothing


def test_a_request_that_connects_while_the_client_stops_is_not_sent(server, monkeypatch) -> None:
    client, connect = Client(parse_address(server.url)), socket.create_connection

    def stopped_meanwhile(*address: Any, **options: Any) -> socket.socket:
        client.stop()
        return connect(*address, **options)

    monkeypatch.setattr(socket, "create_connection", stopped_meanwhile)
    with pytest.raises(Stopped):
        client.complete({"model": "tiny", "prompt": [[1, 2]]})
    assert server.completions.requests == []


def test_no_proxy_reads_the_key_and_no_file_replaces_it(server, monkeypatch, tmp_path) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password another")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("ARGAP_API_KEY", KEY)
    Client(parse_address(server.url)).complete({"model": "tiny", "prompt": [[1, 2]]})
    monkeypatch.delenv("ARGAP_API_KEY")
    Client(parse_address(server.url)).complete({"model": "tiny", "prompt": [[1, 2]]})
    assert server.completions.headers == [f"Bearer {KEY}", None]


def test_an_answer_is_bounded(server, monkeypatch) -> None:
    monkeypatch.setattr(client, "LARGEST", 100)
    server.completions.fault = answered(200, "application/json", "[" + "1," * 100 + "1]")
    with pytest.raises(ArgapError, match="an answer of more than 100 bytes; reduce `batch_size`"):
        Client(parse_address(server.url)).complete({"model": "tiny", "prompt": [[1, 2]]})
    assert len(server.completions.requests) == 1


def test_a_server_that_is_not_there_or_says_nothing_is_one_line(server, monkeypatch) -> None:
    with socket.socket() as silent:  # it accepts, and never answers
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with pytest.raises(ArgapError, match=r"^http://127.*: Connection refused, 3 times; "):
            Client(address).complete({})
        silent.listen()
        monkeypatch.setattr(client, "TIMEOUT", 0.05)
        with pytest.raises(ArgapError, match=r"^http://127.*: timed out, 3 times; "):
            Client(address).complete({})


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (CHUNKED + b"-5\r\n", b"", "http://127"),
        (CHUNKED + b"5\r\n12345\r\n0\r\n", b"X-More: 1\r\n", "are an answer|header|Header|too"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "bytes, of which 0 are an answer"),
        (CHUNKED, b"1\r\n1\r\n", "are an answer|an answer of more than 262,144 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b"", "did not end within 0 s|timed out"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", b"1", "answers in 'gzip', which was not asked for"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 150000\r\n\r\n" + b"x" * 150_000, b"", "150,000 bytes of no JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n", b"", "http://127"),
    ],
    ids=["chunk size", "trailers", "interim answers", "chunks", "drip", "gzip", "no JSON", "length"],
)
def test_a_hostile_server_is_one_line(monkeypatch, first: bytes, then: bytes, said: str) -> None:
    # Where bytes come without end their number is the bound, however slow the machine; otherwise the time is.
    for name, value in (("LARGEST", 2**18), ("HEAD", 2**17), ("ANSWER_TIMEOUT", 60 if then else 0.2), ("WAITS", ())):
        monkeypatch.setattr(client, name, value)

    def serve() -> None:
        with suppress(OSError):
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall(first)
                while not over.wait(0 if then else 0.05):
                    accepted.sendall(then * 100 or b"1")

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ArgapError, match=said):
            Client(f"http://127.0.0.1:{listening.getsockname()[1]}/v1").complete({})
        over.set()
        thread.join()


def test_what_a_server_says_of_the_next_token_need_not_be_a_number() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for best in ([math.inf, math.inf], [-math.inf, -math.inf], [math.nan, -1.0]):
            check_next_token(np.array(best), "its")  # pyright: ignore[reportArgumentType]
        with pytest.raises(ArgapError, match="its distribution"):
            check_next_token([-math.inf, -1.0], "its")


def test_a_host_without_end_is_no_address() -> None:
    for host in ("a" * 300, ".".join(["a" * 60] * 9)):
        with pytest.raises(ArgapError, match="the server's address: expected"):
            parse_address(f"http://{host}/v1")


def test_what_passes_is_tried_again(server, place, tmp_path) -> None:
    bad = {3: (503, "text/plain", "busy"), 5: (0, "", ""), 8: (200, "text/html", "<html>"), 11: (200, "", "")}
    server.completions.fault = lambda number, body, good: bad.get(number)
    assert score(server, place, tmp_path / "out", batch_size=1).record.finished.server.retries == len(bad)


def changed(edit: Any) -> Any:
    """A fault that edits the first choice of every answer after the probes."""

    def fault(number: int, body: dict[str, Any], good: Any) -> Any:
        if number <= 5:
            return None
        answer = json.loads(good[2])
        edit(answer["choices"][0])
        return 200, good[1], json.dumps(answer)

    return fault


def answered(status: int, kind: str, text: str) -> Any:
    """A fault that answers everything alike."""
    return lambda number, body, good: (status, kind, text)


OF_IDS = {
    "HTML where JSON was expected, 3 times": answered(200, "text/html", "<html>hi"),
    "Server disconnected without sending a response, 3 times": answered(0, "", ""),
    "an empty answer, 3 times": answered(200, "", ""),
    "no log-probs of the prompt in its answer;": answered(200, "", '{"choices": [{}]}'),
    "the answer does not have the choices": answered(200, "", "[]"),
    r"`\$\.choices\[0\]\.index`": answered(200, "", '{"choices": [{"index": "a"}]}'),
    r"Expected `object.*`\$\.usage`": answered(200, "", '{"choices": [], "usage": []}'),
    "no JSON where JSON was expected, 3 times": answered(200, "", "[" * 10**5),
    "Expected `int`": changed(lambda c: c["prompt_logprobs"][3].update({"x": {"rank": 1}})),
    "Expected `int": changed(lambda c: c["prompt_logprobs"][3].update({str(2**31): {"rank": 1}})),
    r"status 400 \(x\); expected a": answered(400, "", '{"error": {"message": "x" }}'),
    "status 302, a redirect": answered(302, "", "http://127.0.0.1:1/"),
    "status 404": answered(404, "", "{}"),
    "log-probs for .* tokens": changed(lambda c: c["prompt_logprobs"].pop()),
    "found 7": changed(lambda c: c["prompt_logprobs"].__setitem__(3, {"7": {}})),
    "no prompt_logprobs": changed(lambda c: c.pop("prompt_logprobs")),
}
"""What is said of each fault of a server that takes token ids."""
ECHOED = {
    "`float.*got `bool`": changed(lambda c: c["logprobs"]["token_logprobs"].__setitem__(2, True)),
    "found ' zebra'; is .* its token": changed(lambda c: c["logprobs"]["tokens"].__setitem__(2, " zebra")),
    "position 2: log-prob None": changed(lambda c: c["logprobs"]["token_logprobs"].__setitem__(2, None)),
    "position 2: log-prob 0.5": changed(lambda c: c["logprobs"]["token_logprobs"].__setitem__(2, 0.5)),
    "tokens and one or more new": changed(lambda c: [c["logprobs"][k].pop(n) for k in LISTS for n in (0, 0)]),
}
"""The same of a server that echoes the prompt."""


@pytest.mark.parametrize(
    ("dialect", "said", "fault"),
    [("prompt_logprobs", *each) for each in OF_IDS.items()] + [("echo", *each) for each in ECHOED.items()],
)
def test_a_bad_answer_is_one_line(server, place, tmp_path, dialect: str, fault: Any, said: str) -> None:
    server.completions.dialect, server.completions.fault = dialect, fault
    with pytest.raises(ArgapError, match=said) as refused:
        score(server, place, tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out" / "gap.json").exists()


def test_a_cut_prompt_is_refused(server, place, tmp_path) -> None:
    def cut(number: int, body: dict[str, Any], good: Any) -> Any:
        answer = json.loads(good[2])
        answer["usage"]["prompt_tokens"] -= 5 * (number > 5)
        return 200, good[1], json.dumps(answer)

    server.completions.fault = cut
    with pytest.raises(ArgapError, match=r"were sent in .* windows; does it cut the prompt"):
        score(server, place, tmp_path / "out")


def test_log_probs_of_the_token_itself_are_refused(server, place, tmp_path) -> None:
    server.completions.shift = 1
    with pytest.raises(ArgapError, match="changes with that token, so it is not that of the next token"):
        score(server, place, tmp_path / "out")


def test_text_prompts_need_windows_of_whole_text(server, place, tmp_path) -> None:
    server.completions.dialect = "text"
    with pytest.raises(ArgapError, match=r"that of window \d does not tokenize to .* use `packing=document`"):
        score(server, place, tmp_path / "out")


def test_another_tokenizer_is_noticed(server, place, tmp_path, tokenizer) -> None:
    state = json.loads((place / "t" / "tokenizer.json").read_text())
    vocabulary = state["model"]["vocab"]
    words = [piece for piece in vocabulary if piece.startswith("Ġ") and len(piece) == 4][:200]
    for first, second in zip(words, words[1:] + words[:1], strict=True):
        state["model"]["vocab"][first] = tokenizer.vocabulary[second]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(state))
    (tmp_path / "other" / "tokenizer_config.json").write_text((place / "t" / "tokenizer_config.json").read_text())
    other = str(tmp_path / "other")
    with pytest.raises(ArgapError, match=r"expected token \d+ .*, found .*; is .*other its tokenizer\?"):
        score(server, place, tmp_path / "out", tokenizer={"tiny": other, "reference": other})


def test_the_key_is_sent_and_never_written(server, place, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ARGAP_API_KEY", KEY)
    monkeypatch.setattr(runs, "SHARD_TOKENS", 64)
    score(server, place, tmp_path / "out")
    assert set(server.completions.headers) == {f"Bearer {KEY}"}
    errors = []
    for answer in (401, 400, 500):
        quoted = (answer, "application/json", json.dumps({"error": {"message": f"Incorrect API key {KEY} provided"}}))
        server.completions.fault = answered(*quoted)
        with pytest.raises(ArgapError) as refused:
            score(server, place, tmp_path / f"out{answer}")
        errors.append(f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}")
    assert "the server refuses the key of ARGAP_API_KEY" in errors[0]
    assert "Incorrect API key *** provided" in errors[1]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = capsys.readouterr()
    assert KEY not in "".join([*errors, said.out, said.err, repr(Client(parse_address(server.url)))])
    assert not any(KEY.encode() in content for content in written)


def test_a_server_that_asks_for_a_key_names_the_variable(server, place, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("ARGAP_API_KEY", raising=False)
    server.completions.fault = answered(401, "", "{}")
    with pytest.raises(ArgapError, match="asks for a key; set ARGAP_API_KEY"):
        score(server, place, tmp_path / "out")
    monkeypatch.setenv("ARGAP_API_KEY", "a\nb")
    with pytest.raises(ArgapError, match="ARGAP_API_KEY: expected printable ASCII"):
        score(server, place, tmp_path / "out")


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:secret@host/v1", "http://host/v1?key=secret", "https://host/#secret", "http://secret%40host/v1"),
        *("http://", "http://host:x/v1"),
    ],
)
def test_an_address_with_more_than_a_host_and_a_path_is_refused_unprinted(place, tmp_path, url: str) -> None:
    with pytest.raises(ArgapError, match=r"expected http\[s\]://HOST\[:PORT\]/v1") as refused:
        argap.score(url, place / "reference", model_name="tiny", tokenizer=str(place / "t"), out=tmp_path / "out")
    assert "secret" not in str(refused.value)


def test_an_address_is_completed() -> None:
    given = ("http://h:8000", "HTTP://h:8000/", "http://h:8000/v1/", "http://h:8000/v1/completions")
    assert {parse_address(url) for url in given} == {"http://h:8000/v1"}
    assert parse_address("https://[::1]/proxy/v1") == "https://[::1]/proxy/v1"


def test_certificates_are_checked_where_there_are_any(monkeypatch) -> None:
    made, default = [], ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(default()) or made[-1])
    for scheme in ("http", "https"):
        Client(parse_address(f"{scheme}://host/v1"))
    assert [context.verify_mode for context in made] == [ssl.CERT_REQUIRED]


def test_models_and_servers_are_counted(server, place, tmp_path) -> None:
    with pytest.raises(ArgapError, match="1 servers and 0 names of their models"):
        argap.score(server.url, place / "reference", out=tmp_path / "out")
    with pytest.raises(ArgapError, match="a server does not report its tokenizer"):
        argap.score(server.url, place / "reference", model_name="tiny", out=tmp_path / "out")
    with pytest.raises(ArgapError, match=r"status 404 \(The model does not exist\)"):
        score(server, place, tmp_path / "out", model_name="other")


def test_a_server_is_a_reference_too(server, place, tmp_path) -> None:
    given: dict[str, Any] = {"data": place / "text.jsonl", "seq_len": 32, "tokenizer": str(place / "t")}
    result = argap.score(
        place / "reference", server.url, model_name="tiny", device="cpu", out=tmp_path / "out", **given
    )
    assert (result.reference, result.models) == ("tiny", ["tiny", "reference"])


def test_ctrl_c_ends_the_requests_and_keeps_shards(server, place, tmp_path, monkeypatch) -> None:
    release = threading.Event()

    def slow(number: int, body: dict[str, Any], good: Any) -> None:
        if number > 9:
            release.wait(600)

    server.completions.fault = slow
    code = (
        "import argap.tokens.runs, signal, sys; argap.tokens.runs.SHARD_TOKENS = 64\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "from argap.cli import main; main()"
    )
    command = f"score {server.url} --model tiny --tokenizer {place}/t --ref {place}/reference --data {place}/text.jsonl"
    command += f" --seq-len 32 --device cpu --batch-size 1 --concurrency 1 --out {tmp_path}/out"
    process = begin(code, *command.split(), folder=tmp_path)
    try:
        while len(server.completions.requests) < 10 and process.is_alive():
            threading.Event().wait(0.05)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join(120)
    finally:
        process.kill()
        release.set()
    _, err = said(tmp_path)
    assert process.exitcode == 130, err
    assert "interrupted; finished shards are kept" in err
    assert token_parts(tmp_path / "out" / "tiny")


def test_a_server_gets_the_bos_of_its_tokenizers_rule(server, place, tmp_path, expected, tokenizer) -> None:
    own = Path(shutil.copytree(place / "t", tmp_path / "t"))
    config = json.loads((own / "tokenizer_config.json").read_text())
    (own / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": True}))
    run = score(server, place, tmp_path / "out", tokenizer=str(own))
    assert run.record.identity.bos == tokenizer.bos
    np.testing.assert_allclose(read_logprobs(run)[0], expected(bos="own")[0], atol=1e-4)


def test_an_answer_that_trickles_past_its_time_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_TIMEOUT", 0.5)
    asked, over = [], threading.Event()

    def serve(server: socket.socket) -> None:
        while not over.is_set():
            with suppress(OSError), server.accept()[0] as connection:
                asked.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not over.wait(0.3):  # so that the last wait for a byte ends with the time of the answer
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        serving = threading.Thread(target=serve, args=(server,))
        serving.start()
        asking = Client(f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        try:
            with pytest.raises(ArgapError, match="did not end within"):
                asking.complete({})
        finally:
            over.set()
            serving.join()
            asking._http.close()
    assert len(asked) == 1
