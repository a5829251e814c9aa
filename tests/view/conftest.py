"""A client of the page's server."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from argap.result import open_result
from argap.view.answers import Answers
from argap.view.app import view_app

TOKEN = "the-token"
PORT = 8717
ORIGIN = f"http://127.0.0.1:{PORT}"


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
