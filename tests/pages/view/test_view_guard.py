"""Who may read the page."""

import pytest

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
