"""Send JSON over HTTP to an inference server: limit retries, follow no redirects, keep the key in memory.

The key is read from the environment variable `KEY`. It is sent in the ``Authorization`` header to the server that the
user named, and never appears in a file, message or exception.
"""

import json
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from argap.errors import ArgapError
from argap.files.atomic import parse_json

if TYPE_CHECKING:
    import httpx2

KEY = "ARGAP_API_KEY"
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each retry; a random amount of up to a quarter is added."""
LONGEST_WAIT = 60.0
"""Most seconds to wait for a server's ``Retry-After``."""
CONNECT_TIMEOUT = 20.0
TIMEOUT = 600.0
"""Seconds without a byte from the server."""
ANSWER_TIMEOUT = 300.0
"""Seconds from the first byte of an answer to its last, of whatever it consists."""
LARGEST = 2**28
"""Most bytes of an answer."""
HEAD = 2**20
"""Bytes that a server may send besides, and as many as the answer has: headers, interim answers, frames, trailers."""
LONGEST_HOST = 253
LONGEST_REASON = 200
AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which the same request may succeed."""
CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")
"""Events of a request that open its connection."""


class ServerRefusal(ArgapError):
    """The server understood the request and refused it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Stopped(Exception):
    """Another request failed, or the user interrupted."""


class Transient(Exception):
    """A failure after which a retry may succeed; ``after``: seconds that the server asks to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


def is_address(source: str) -> bool:
    """Return whether ``source`` names a server."""
    return source.lower().startswith(("http://", "https://"))


def parse_address(url: str) -> str:
    """Turn ``http[s]://HOST[:PORT][/v1][/completions]`` into ``http[s]://HOST[:PORT]/v1``.

    Raises `ArgapError` for any other form, without printing a user name or query, which may be a key.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if (
        not host
        or len(host) > LONGEST_HOST
        or max(map(len, host.split("."))) > 63
        or ("%" in host and ":" not in host)  # no name has one, but what stands before %40 may be a password
        or parts.username is not None
        or parts.password is not None
        or parts.query
        or parts.fragment
    ):
        raise ArgapError(
            "the server's address: expected http[s]://HOST[:PORT]/v1, without user name, query or fragment; a key is "
            f"read from the environment variable {KEY}"
        )
    path = parts.path.rstrip("/").removesuffix("/completions") or "/v1"
    if not (path.isascii() and path.isprintable() and " " not in path):
        raise ArgapError(f"the server's address: {path!r} is not the path of an address")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme.lower()}://{host}{f':{port}' if port else ''}{path}"


class Client:
    """A client of one server for any number of threads. ``retries`` counts repeated requests."""

    def __init__(self, address: str) -> None:
        import httpx2  # imported late: half a second

        self.address = address
        self.retries = 0
        self._key = _key()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        headers |= {"Accept-Encoding": "identity", "Connection": "close"}  # no more bytes than are read
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._http = httpx2.Client(
            headers=headers,
            verify=address.startswith("https:") and ssl.create_default_context(),
            trust_env=False,  # no proxy, which would read the key
            timeout=httpx2.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT),
            limits=httpx2.Limits(max_connections=None),
        )
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._stopped = threading.Event()
        self.again = AGAIN
        """Statuses after which a request is repeated."""

    def complete(self, body: Mapping[str, object]) -> Any:
        """Request completions and return the server's JSON.

        Raises `ServerRefusal` for a status that a retry would not change, `ArgapError` after the last try, and
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
        """End all waits and requests, in all threads."""
        self._stopped.set()
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.get_extra_info("socket").shutdown(SHUT_RDWR)

    def _once(self, content: bytes) -> Any:
        import httpx2

        opened: list[Any] = []
        answer = bytearray()

        def watch(event: str, info: Mapping[str, Any]) -> None:
            """Let `stop` close the connection from the moment it is open."""
            if event in CONNECTED:
                opened.append(info["return_value"])
                opened[-1].read = self._bounded(opened[-1].read, answer)
                with self._lock:
                    self._open.add(opened[-1])
                if self._stopped.is_set():
                    opened[-1].close()
                    raise Stopped

        if self._stopped.is_set():
            raise Stopped
        try:
            url, traced = f"{self.address}/completions", {"trace": watch}
            with self._http.stream("POST", url, content=content, extensions=traced) as response:
                if (coding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
                    raise ArgapError(f"{self.address}: answers in {coding[:LONGEST_REASON]!r}, which was not asked for")
                for block in response.iter_raw():
                    answer += block
                    if len(answer) > LARGEST:
                        break
        except (ArgapError, Stopped):
            raise
        except Exception as error:  # the library raises others than its own for what it did not foresee
            raise self._failure(error, known=isinstance(error, httpx2.TransportError | httpx2.InvalidURL)) from None
        finally:
            with self._lock:
                self._open.difference_update(opened)
        return self._read(response, bytes(answer))

    def _failure(self, error: Exception, *, known: bool) -> Exception:
        """Return what to raise for an error of a request; ``known``: one that may pass."""
        if self._stopped.is_set():
            return Stopped()
        cause = _cause(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ArgapError(f"{self.address}: its certificate is not valid here ({cause.verify_message})")
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        reason = " ".join(reason.split())[:LONGEST_REASON].rstrip(".")
        return Transient(reason) if known else ArgapError(f"{self.address}: no valid HTTP ({reason})")

    def _bounded(self, read: Callable[..., bytes], body: bytearray) -> Callable[..., bytes]:
        """Return the ``read`` of a connection with a bound on the bytes around the ``body`` so far, and on its time.

        The library bounds neither interim answers and trailers nor the time of a body that comes byte by byte.
        """
        size, first = 0, 0.0

        def bounded(max_bytes: int, timeout: float | None = None) -> bytes:
            nonlocal size, first
            left = first + ANSWER_TIMEOUT - time.monotonic() if size else TIMEOUT
            endless = ArgapError(f"{self.address}: its answer did not end within {ANSWER_TIMEOUT:.0f} s")
            if left <= 0:
                raise endless
            try:
                got = read(max_bytes, min(left, timeout or left))
            except Exception:
                if size and time.monotonic() >= first + ANSWER_TIMEOUT:  # not one to repeat
                    raise endless from None
                raise
            first = first or time.monotonic()
            size += len(got)
            if size > 2 * len(body) + HEAD:
                raise ArgapError(f"{self.address}: {size:,} bytes, of which {len(body):,} are an answer")
            return got

        return bounded

    def _read(self, response: "httpx2.Response", answer: bytes) -> Any:
        status = response.status_code
        if status in self.again:
            after = response.headers.get("Retry-After", "")  # in seconds, or a date
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
            if len(answer) > HEAD:  # no page of a proxy that is starting
                raise ArgapError(f"{self.address}: {len(answer):,} bytes of {what} where JSON was expected") from None
            raise Transient(f"{what} where JSON was expected") from None

    def said(self, answer: bytes) -> str:
        """Return the message in an error's body, in one line and without the key."""
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


def _cause(error: BaseException) -> BaseException:
    """Return the system or protocol error that caused httpx's."""
    while error.__context__ is not None:
        error = error.__context__
    return error
