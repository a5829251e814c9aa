"""Who may read the page, that equal requests share one computation, and that its numbers are those of the tables."""

import json
import math
import shutil
import subprocess
import threading
import time

import pytest

from argap.records import Estimate
from argap.reports.tables.numbers import loss, loss_name
from argap.view.app import PAGE
from argap.view.once import KEPT, Once

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
