"""JSON over HTTP to an inference server: tries are bounded, redirects are not followed, and the key stays in memory.

The key is that of the environment variable `KEY`. It is sent in the ``Authorization`` header to the server that the
user named, and is in no file, message or exception.
"""

import http.client
import json
import os
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from argap.errors import ArgapError
from argap.files.atomic import parse_json

KEY = "ARGAP_API_KEY"
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each further try; each is lengthened by up to a quarter, drawn at random."""
LONGEST_WAIT = 60.0
"""Seconds that a server's ``Retry-After`` is followed at most."""
CONNECT_TIMEOUT = 20.0
TIMEOUT = 600.0
"""Seconds without a byte from the server."""
LARGEST = 2**28
"""Bytes of an answer."""
AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which the same request may succeed."""


class ServerRefusal(ArgapError):
    """The server understood the request and refused it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Stopped(Exception):
    """Another request failed, or the user interrupted."""


class Transient(Exception):
    """A failure after which another try may succeed; ``after``: seconds that the server asks to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class Address(NamedTuple):
    """Where the completions of a server are."""

    secure: bool
    host: str
    port: int | None
    path: str
    """``/v1``, below which are ``completions`` and ``models``."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port else ""
        return f"http{'s' if self.secure else ''}://{host}{port}{self.path}"


def is_address(source: str) -> bool:
    """Whether ``source`` names a server."""
    return source.lower().startswith(("http://", "https://"))


def parse_address(url: str) -> Address:
    """The address of ``http[s]://HOST[:PORT][/v1][/completions]``.

    Raises `ArgapError` for another form, without printing what may be a key: a user name, a query.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if not host or parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ArgapError(
            "the server's address: expected http[s]://HOST[:PORT]/v1, without user name, query or fragment; a key is "
            f"read from the environment variable {KEY}"
        )
    path = parts.path.rstrip("/").removesuffix("/completions") or "/v1"
    if not (path.isascii() and path.isprintable() and " " not in path):
        raise ArgapError(f"the server's address: {path!r} is not the path of an address")
    return Address(parts.scheme.lower() == "https", host, port, path)


class Client:
    """Requests to one server, from any number of threads. ``retries`` counts the tries after the first."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.retries = 0
        self._key = _key()
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if self._key:
            self._headers["Authorization"] = f"Bearer {self._key}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._stopped = threading.Event()
        self.again = AGAIN
        """Statuses after which a request is repeated."""

    def complete(self, body: dict[str, Any]) -> Any:
        """The JSON that the server answers to a request for completions.

        Raises `ServerRefusal` for a status that another try does not change, `ArgapError` after the last try, and
        `Stopped` after `stop`.
        """
        content = json.dumps(body).encode()
        for wait in (*WAITS, None):
            try:
                return self._once(content)
            except Transient as failure:
                if wait is None:
                    raise ArgapError(
                        f"{self.address}: {failure}, {len(WAITS) + 1} times; finished shards are kept, the same "
                        "command resumes there"
                    ) from None
                with self._lock:
                    self.retries += 1
                pause = max(wait * random.uniform(1, 1.25), min(failure.after, LONGEST_WAIT))
            if self._stopped.wait(pause):
                raise Stopped
        raise AssertionError

    def stop(self) -> None:
        """End the waiting and the requests of all threads."""
        self._stopped.set()
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _once(self, content: bytes) -> Any:
        address = self.address
        kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        connection = kind(address.host, address.port, timeout=CONNECT_TIMEOUT)
        if self._stopped.is_set():
            raise Stopped
        try:
            connection.connect()
            connection.sock.settimeout(TIMEOUT)
            with self._stoppable(connection.sock):
                connection.request("POST", f"{address.path}/completions", content, self._headers)
                with connection.getresponse() as response:  # closes its socket, which an exception may keep
                    answer = response.read(LARGEST + 1)
        except ssl.SSLCertVerificationError as error:
            raise ArgapError(f"{address}: its certificate is not valid here ({error.verify_message})") from None
        except (OSError, http.client.HTTPException) as error:
            if self._stopped.is_set():
                raise Stopped from None
            raise Transient(_reason(error)) from None
        finally:
            connection.close()
        return self._read(response, answer)

    @contextmanager
    def _stoppable(self, opened: socket.socket) -> Iterator[None]:
        """`stop` ends what ``opened`` waits for in the ``with`` block. Raises `Stopped` where `stop` came before."""
        with self._lock:
            self._open.add(opened)
        try:
            if self._stopped.is_set():
                raise Stopped
            yield
        finally:
            with self._lock:
                self._open.discard(opened)

    def _read(self, response: http.client.HTTPResponse, answer: bytes) -> Any:
        status = response.status
        if status in self.again:
            after = response.getheader("Retry-After") or ""  # in seconds, or a date
            raise Transient(f"status {status}{self.said(answer)}", float(after) if after.isdecimal() else 0.0)
        if status in (401, 403):  # what the server says may quote the key
            given = "refuses the key of" if self._key else "asks for a key; set"
            raise ServerRefusal(f"{self.address}: status {status}, the server {given} {KEY}", status)
        if 300 <= status < 400:
            raise ServerRefusal(f"{self.address}: status {status}, a redirect; give the address it leads to", status)
        if status != 200:
            raise ServerRefusal(f"{self.address}: status {status}{self.said(answer)}", status)
        if not answer.strip():
            raise Transient("an empty answer")
        if len(answer) > LARGEST:
            raise ArgapError(f"{self.address}: an answer of more than {LARGEST:,} bytes; reduce `batch_size`")
        try:
            return parse_json(answer.decode())
        except ValueError:
            what = "HTML" if answer.lstrip()[:1] == b"<" else "no JSON"
            raise Transient(f"{what} where JSON was expected") from None

    def said(self, answer: bytes) -> str:
        """What an error's body says, in one line and without the key."""
        if answer.lstrip()[:1] == b"<":
            return " (HTML)"
        text = answer.decode(errors="replace")
        with suppress(ValueError):
            body = parse_json(text)
            error = body.get("error", body) if isinstance(body, dict) else body
            text = error.get("message") or error.get("detail") or text if isinstance(error, dict) else error
        line = " ".join(str(text).split())
        if self._key:
            line = line.replace(self._key, "***")
        return f" ({line[:200]})" if line else ""

    def __repr__(self) -> str:
        return f"Client({self.address})"


def _key() -> str | None:
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ArgapError(f"{KEY}: expected printable ASCII characters")
    return key or None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.RemoteDisconnected):
        return "no answer, the server closed the connection"
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
