"""Who may read the page, that equal requests share one computation, and that its numbers are those of the tables."""

import errno
import json
import math
import os
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest
import uvicorn
from anyio import to_thread
from starlette.testclient import TestClient

from argap.errors import ArgapError
from argap.records import Estimate
from argap.reports.tables.numbers import loss, loss_name
from argap.result import open_result
from argap.runtime.interrupt import Interrupt
from argap.view.answers import KEPT, Answers, Once
from argap.view.app import PAGE
from argap.view.folder import folder_app, results_in
from argap.view.protocol import Protocol
from argap.view.serve import listen, serve
from tests.conftest import copied, copied_without_tokens
from tests.pages.view.conftest import ORIGIN, PORT, TOKEN, client_of

PARTS = ("overview", "window?window=0&model=ref", "keep/table?format=csv", "nothing")


@pytest.mark.parametrize("part", PARTS)
def test_data_needs_the_token(stranger, part):
    answer = stranger.get(f"/api/{part}")
    assert answer.status_code == 403
    assert "open the address" in answer.json()["error"]
    assert stranger.get(f"/api/{part}", headers={"Cookie": "argap-8717=guess"}).status_code == 403
    assert stranger.get(f"/api/{part}", headers={"Cookie": "argap-9999=the-token"}).status_code == 403


def test_the_token_in_the_address_becomes_a_cookie(stranger):
    answer = stranger.get("/?token=the-token&x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("argap-8717=the-token", "httponly", "samesite=strict", "path=/"))
    assert stranger.get("/api/overview").status_code == 200


def test_a_wrong_token_gives_no_cookie(stranger):
    answer = stranger.get("/?token=guess")
    assert answer.status_code == 303
    assert "set-cookie" not in answer.headers
    assert stranger.get("/api/overview").status_code == 403


@pytest.mark.parametrize("host", ["evil.example:8717", "127.0.0.1", "127.0.0.1:80", "[::1]:8717", ""])
def test_other_hosts_are_refused(client, host):
    for path in ("/", "/view.css", "/api/overview"):
        assert client.get(path, headers={"Host": host}).status_code == 403


def test_localhost_is_this_machine(client):
    assert client.get("/", headers={"Host": "localhost:8717"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(client, method):
    answer = client.request(method, "/api/overview")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_a_slice_is_recorded_by_the_page_alone(token_result, tmp_path):
    client = client_of(copied(token_result, tmp_path / "out"))
    asked = "/api/record?name=rare&where=train_count<2"
    assert client.get(asked).status_code == 405
    assert client.post(asked).status_code == 403
    assert client.post(asked, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client_of(tmp_path / "out", known=False).post(asked, headers={"Origin": ORIGIN}).status_code == 403
    assert [part.about.name for part in open_result(tmp_path / "out").record.named] == []
    assert [each["name"] for each in client.post(asked, headers={"Origin": ORIGIN}).json()] == ["ar_hits", "rare"]
    assert [each["name"] for each in client.get("/api/overview").json()["gap"]["slices"]] == ["ar_hits", "rare"]
    _, part = open_result(tmp_path / "out").record.named
    assert part.n == len(open_result(tmp_path / "out").tokens("train_count < 2"))
    for refused in (asked, asked.replace("rare", "all"), asked.replace("rare", "x/y"), asked.replace("=rare", "=")):
        assert "name" in client.post(refused, headers={"Origin": ORIGIN}).json()["error"]


def test_slices_recorded_at_once_are_all_kept(token_result, tmp_path, monkeypatch):
    out = copied(token_result, tmp_path / "out")
    meeting, slices, refused = threading.Barrier(3), Answers.slices, []

    def together(*arguments):
        meeting.wait(60)  # each knows the slices recorded so far, which are none
        return slices(*arguments)

    monkeypatch.setattr(Answers, "slices", together)
    answers = Answers(open_result(out))

    def record(name: str) -> None:
        try:
            answers.record(name, "train_count < 2", Interrupt())
        except ArgapError as error:
            refused.append(str(error))

    asking = [threading.Thread(target=record, args=[name]) for name in ("rare", "rare", "more")]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert sorted(part.about.name for part in open_result(out).record.named) == ["ar_hits", "more", "rare"]
    assert refused == ["slice rare: the name is the name of two slices; choose another"]


def test_a_slice_that_the_disk_refuses_is_one_line_and_loses_no_report(token_result, tmp_path, monkeypatch):
    out = copied(token_result, tmp_path / "out")
    (out / "table.md").write_text("a table")
    for place in (
        "argap.results.compare.save_gap",
        "argap.results.compare.read_gap",
    ):  # while writing, and at any other time

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out / "gap.json"))

        with monkeypatch.context() as patched:
            patched.setattr(place, full)
            answer = client_of(out).post("/api/record?name=rare&where=train_count<2", headers={"Origin": ORIGIN})
        assert answer.status_code == 200
        assert re.match(rf"{out}/gap\.json: (could not be written \()?No space left", answer.json()["error"])
        assert (out / "table.md").read_text() == "a table"
        assert open_result(out).record.named == []


def test_what_is_discovered_is_what_the_command_finds(client, result):
    found = client.get("/api/discover?model=m2").json()
    expected = result.discover("m2")
    assert [part["where"] for part in found["parts"]] == expected["where"].tolist()[1:]
    assert "hypothesis" in found["note"]
    assert "m-1" in client.get("/api/discover?model=m2&reference=m-1").json()["error"]


def test_a_folder_lists_its_results(token_result, tmp_path):
    copied(token_result, tmp_path / "runs" / "one")
    copied_without_tokens(token_result, tmp_path / "two")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "gap.json").write_text("{}")
    found = results_in(tmp_path)
    assert [each.relative_to(tmp_path).as_posix() for each in found] == ["runs/broken", "runs/one", "two"]
    client = TestClient(folder_app(tmp_path, found, token=TOKEN, port=PORT), base_url=ORIGIN, follow_redirects=False)
    assert client.get("/").status_code == 200
    for path in ("/api/results", "/r/1/api/overview"):
        assert client.get(path).status_code == 403
    client.get("/", params={"token": TOKEN})
    broken, one, two = client.get("/api/results").json()
    assert "gap.json" in broken["error"]
    assert "gap.json" in client.get("/r/0/api/overview").json()["error"]
    assert {**one, "path": "two"} == two
    gap = open_result(token_result).record
    assert one["models"][1]["delta"] == gap.deltas["m2"]
    assert client.get("/r/1/api/overview").json()["no_tokens"] is None
    assert "not here" in client.get("/r/2/api/overview").json()["no_tokens"]
    assert client.get("/r/1/main.js").status_code == client.get("/page/view.css").status_code == 200
    with pytest.raises(ArgapError, match="part of the result"):
        serve(tmp_path / "runs" / "one" / "labels", browser=False, ready=print)


def test_bytes_that_are_no_request_end_the_connection_in_silence(caplog):
    """Also where the request before them, whose body they would be, is being answered."""
    begun, answered = threading.Event(), threading.Event()

    async def app(scope, receive, send):
        begun.set()
        await to_thread.run_sync(answered.wait, 60)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    server = uvicorn.Server(uvicorn.Config(app, http=Protocol, lifespan="off", timeout_graceful_shutdown=1))
    with listen(0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        with socket.create_connection(listening.getsockname()) as connection:
            connection.settimeout(60)
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert begun.wait(60)
            answered.set()
            said = connection.recv(1000)
            connection.sendall(b"no chunk\r\n\r\n")
            while more := connection.recv(1000):
                said += more
        server.should_exit = True
        thread.join()
    assert said.startswith(b"HTTP/1.1 200 OK")
    assert said.endswith(b"ok")
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


def test_the_page_itself_has_no_data_and_a_strict_policy(stranger):
    answer = stranger.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    for text in ("m-1", "token-result"):
        assert text not in answer.text


def test_headers_stand_on_every_answer(client, stranger):
    for answer in (client.get("/api/overview"), stranger.get("/api/overview"), client.get("/gone"), client.post("/")):
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path", ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "//etc/passwd", "/main.js/../../app.py"]
)
def test_only_the_pages_files_are_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "starlette" not in answer.text


def test_two_that_ask_at_once_share_one_computation():
    once, computed = Once(), []

    def slow() -> int:
        computed.append(1)
        time.sleep(0.05)
        return 7

    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(once.get("key", slow))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, len(computed)) == ([7] * 4, 1)


def test_what_fails_is_tried_again():
    once = Once()
    with pytest.raises(ZeroDivisionError):
        once.get("key", lambda: 1 // 0)
    assert once.get("key", lambda: 3) == 3


def test_the_oldest_answer_goes_first():
    once = Once()
    for key in range(KEPT + 1):
        once.get(key, lambda: "old")
    assert once.get(KEPT, lambda: "new") == "old"
    assert once.get(0, lambda: "new") == "new"


FIGURES = [
    *((9, nll, math.exp(nll)) for nll in (0.0, 0.6931, 2.399, 7.2, 20.0)),
    (9, 800.0, None),
    (0, None, None),
    (9, None, None),  # infinite
]
SCORES = [Estimate("m", "all", "all", n, 1.0, nll, ppl) for n, nll, ppl in FIGURES]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("unit", ["token", "byte"])
def test_losses_are_written_as_in_tables(tmp_path, unit):
    (tmp_path / "numbers.mjs").write_text((PAGE / "numbers.js").read_text())
    given = [{"nll": each.nll, "ppl": each.ppl, "n": each.n} for each in SCORES]
    losses = f'{json.dumps(given)}.map((each) => loss(each, "{unit}"))'
    call = f'[extent(3500, 14259, "{unit}"), lossName("{unit}"), ...{losses}]'
    script = f'import {{ extent, loss, lossName }} from "./numbers.mjs"; console.log(JSON.stringify({call}))'
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    read = f"3,500 tokens, 14,259 {'bytes ' if unit == 'byte' else ''}scored"
    assert json.loads(done.stdout) == [read, loss_name(unit), *(loss(each, unit) for each in SCORES)]
