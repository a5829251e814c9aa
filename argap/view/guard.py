"""Let only a browser on this machine that was given the token read the page.

The server listens on 127.0.0.1. The ``Host`` header must name that address, which stops DNS rebinding (an attacker's
name that resolves to 127.0.0.1). Data needs the token, which is in the first address only; after that it is in a
cookie that scripts cannot read and other sites cannot send. GET and HEAD read; a POST, which records a slice, must
also come from the page itself, by its ``Origin`` header.
"""

import secrets
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from argap.view import POLICY

CLOSED = "open the address that `argap view` printed: this one lacks its token, or the server was started again"
RECORD = "/api/record"
"""The one address that changes something: it stores a slice in the result."""
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-src 'self'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware that admits only the user's own browser and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"argap-{port}"  # cookies are not kept apart by port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, sealed)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return an error, or a redirect that removes the token from the address; None lets the request pass."""
        headers = Headers(scope=scope)
        if headers.get("host") not in self._hosts:
            return PlainTextResponse("this server answers to 127.0.0.1 and localhost alone\n", 403)
        allowed = ("POST",) if scope["path"].endswith(RECORD) else ("GET", "HEAD")
        if scope["method"] not in allowed:
            allow = ", ".join(allowed)
            return PlainTextResponse(f"only {allow}: a result is read, apart from {RECORD}\n", 405, {"Allow": allow})
        if allowed == ("POST",) and headers.get("origin") not in {f"http://{host}" for host in self._hosts}:
            return JSONResponse({"error": "a request from another page"}, 403)
        given = QueryParams(scope["query_string"])
        if scope["path"] == "/" and "token" in given:
            return self._welcome(given)
        if "/api/" in scope["path"] and not self._known(headers):
            return JSONResponse({"error": CLOSED}, 403)
        return None

    def _welcome(self, given: QueryParams) -> Response:
        """Redirect to the same page without the token in its address; a wrong token sets no cookie."""
        rest = urlencode([pair for pair in given.multi_items() if pair[0] != "token"])
        answer = RedirectResponse(f"/?{rest}" if rest else "/", 303)
        if secrets.compare_digest(given["token"].encode(), self._token.encode()):
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer

    def _known(self, headers: Headers) -> bool:
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        own = [value for name, _, value in cookies if name == self._cookie]
        return any(secrets.compare_digest(value.encode(), self._token.encode()) for value in own)
