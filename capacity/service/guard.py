"""Access control of the dashboard and the service: allowed host names, and an optional password or token.

It covers every path, also uploads and WebSockets. It prevents DNS rebinding: if the name of another site
resolves to this machine's address, the browser sends that name in the `Host` header, and the request is rejected.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from capacity.base.untrusted_text import one_line

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS = "*"  # among the names: any numeric address, because DNS rebinding needs a name
COOKIE = "capacity_dashboard"
HEALTH = "/_stcore/health"  # needs no password, because it only answers "ok"
BLOCKED_PATHS = ("/_stcore/metrics", "/_stcore/script-health-check", "/_stcore/agent")
CONTENT_POLICY = {  # what a page may load: all from this server; streamlit needs inline styles and scripts of its own
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval' blob: data:",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self' data: blob:",
    "worker-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'self'",
}
PAUSE_S = 1.0  # after each wrong password, one at a time
MAX_WAITING = 20


class Guard:
    """ASGI middleware that checks host name and password; `names` are the allowed host names (`allowed_names`).

    The class attributes are those of the dashboard. A subclass overrides them for another server.
    """

    WHAT = "dashboard"
    HEALTH = HEALTH
    BLOCKED_PATHS: ClassVar[tuple[str, ...]] = BLOCKED_PATHS
    CHALLENGE = 'Basic realm="capacity dashboard", charset="UTF-8"'
    SECRET = "password"
    COMMAND = "capacity dashboard"
    HEADERS: ClassVar[Mapping[str, str]] = {
        "x-content-type-options": "nosniff",
        "x-frame-options": "SAMEORIGIN",
        "referrer-policy": "same-origin",
        "content-security-policy": "; ".join(f"{kind} {sources}" for kind, sources in CONTENT_POLICY.items()),
    }

    def __init__(self, app: ASGIApp, *, names: Collection[str], password: str | None = None) -> None:
        self._app = app
        self._names = {name.lower() for name in names}
        self._password = password
        self._token = secrets.token_urlsafe(32)
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on allowed requests, and answer all others with status 401, 403, 404 or 429."""
        from starlette.requests import HTTPConnection
        from starlette.websockets import WebSocketClose

        refusal = None
        send = _add_headers(send, self.HEADERS)
        if scope["type"] in ("http", "websocket"):
            asked = HTTPConnection(scope)
            refusal = self._find_refusal(asked)
            if refusal is None and self._password is not None and scope["path"] != self.HEALTH:
                password = self._read_password(asked)
                if password is not None and _are_equal(password, self._password):
                    send = self._remember(send)
                elif not _are_equal(asked.cookies.get(COOKIE, ""), self._token):
                    refusal = await self._reject_password(password)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(1008, refusal[1])(scope, receive, send)
        else:
            status, reason = refusal
            headers = {"www-authenticate": self.CHALLENGE} if status == 401 else {}
            await self._refusal_response(status, reason, headers)(scope, receive, send)

    def _read_password(self, asked: HTTPConnection) -> str | None:
        """Return the password of HTTP basic authentication; the user name is ignored."""
        scheme, _, word = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        with suppress(ValueError):
            return base64.b64decode(word, validate=True).decode().partition(":")[2]
        return ""

    def _remember(self, send: Send) -> Send:
        cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        return _add_headers(send, {"set-cookie": cookie})

    def _refusal_response(self, status: int, reason: str, headers: Mapping[str, str]) -> ASGIApp:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(reason, status, headers)

    def _find_refusal(self, asked: HTTPConnection) -> tuple[int, str] | None:
        hosts = asked.headers.getlist("host")
        if len(hosts) != 1 or not self._is_known_host(hosts[0]):
            return 403, (
                f"{one_line(', '.join(hosts))[:100] or 'No name'} is not an allowed host name of this {self.WHAT}. "
                f"To allow another name: {self.COMMAND} --allow-host NAME"
            )
        for origin in asked.headers.getlist("origin"):
            where = urlsplit(origin).netloc
            if where != hosts[0] and _hostname(where) not in self._names - set(LOOPBACK):
                return 403, (
                    "The request came from a page of another origin, which is not allowed. "
                    f"To allow that origin: {self.COMMAND} --allow-host NAME"
                )
        if any(f"{asked.scope['path']}/".startswith(f"{path}/") for path in self.BLOCKED_PATHS):
            return 404, "Not found"
        return None

    def _is_known_host(self, host: str) -> bool:
        name = _hostname(host)
        return name not in (None, ANY_ADDRESS) and (
            name in self._names or (ANY_ADDRESS in self._names and _is_address(name))
        )

    async def _reject_password(self, password: str | None) -> tuple[int, str]:
        if password is not None:
            if self._waiting >= MAX_WAITING:
                return 429, f"Too many wrong {self.SECRET}s; try again in a minute"
            self._waiting += 1
            try:
                async with self._one_at_a_time:
                    await asyncio.sleep(PAUSE_S)
            finally:
                self._waiting -= 1
        return 401, f"This {self.WHAT} requires a {self.SECRET}"


def allowed_names(host: str, others: Collection[str] = ()) -> tuple[str, ...]:
    """Return the allowed host names of a server that listens on `host`: the host, the loopback names, and `others`.

    A server that listens on every address accepts any numeric address and this machine's name.
    """
    import socket

    own: tuple[str, ...] = (host,)
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        own = (ANY_ADDRESS, socket.gethostname())
    return tuple(dict.fromkeys(name.lower() for name in (*LOOPBACK, *own, *others)))


def _hostname(netloc: str) -> str | None:
    """Return the host of `host:port`, or None if malformed."""
    try:
        parts = urlsplit(f"//{netloc}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != netloc or "@" in netloc or parts.hostname is None:
        return None
    return parts.hostname.rstrip(".")


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def _are_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _add_headers(send: Send, headers: Mapping[str, str]) -> Send:
    added = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def send_with_headers(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            message["headers"] = [*message.get("headers", ()), *added]
        await send(message)

    return send_with_headers
