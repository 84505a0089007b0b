"""Who may speak to the dashboard: browsers that know it by its own names, and its password where it has one.

Stands before all of streamlit, pages, uploads and WebSocket alike. A page of another site whose name was bound to
this machine's address (DNS rebinding) says that name in `Host`, and is turned away by it.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from capacity.base.foreign import one_line

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS = (
    "*"  # among the names: whatever is an address in figures, which nobody can bind to another machine
)
PASSWORD = "CAPACITY_DASHBOARD_PASSWORD"  # of the environment
COOKIE = "capacity_dashboard"
HEALTH = "/_stcore/health"  # without a password: it says "ok"
CLOSED = ("/_stcore/metrics", "/_stcore/script-health-check", "/_stcore/agent")
PAUSE_S = 1.0  # after a wrong password, one after the other
MOST_WAITING = 20

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """ASGI middleware: `names` are the hosts that browsers may know it by, see `names_of`."""

    def __init__(self, app: App, *, names: Collection[str], password: str | None = None) -> None:
        self._app = app
        self._names = {name.lower() for name in names}
        self._password = password
        self._token = secrets.token_urlsafe(32)
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hand on what is welcome, answer the rest with 401, 403, 404 or 429."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None and self._password is not None and scope["path"] != HEALTH:
            entered = self._entered(scope)
            if entered is None:
                refusal = await self._wrong(scope)
            elif entered == "password":
                send = _with_cookie(send, f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/")
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await _refuse(scope, send, *refusal)

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self._known(hosts[0]):
            return 403, (
                f"{one_line(', '.join(hosts))[:100] or 'No name'} is no name of this dashboard. "
                "Names beside its own: capacity dashboard --allow-host NAME"
            )
        for origin in _values(scope, b"origin"):
            where = urlsplit(origin).netloc
            if where != hosts[0] and _hostname(where) not in self._names - set(LOOPBACK):
                return 403, "The request came from a page of another origin."
        if any(scope["path"] == path or scope["path"].startswith(f"{path}/") for path in CLOSED):
            return 404, "Not found"
        return None

    def _known(self, host: str) -> bool:
        name = _hostname(host)
        return name not in (None, ANY_ADDRESS) and (
            name in self._names or (ANY_ADDRESS in self._names and _is_address(name))
        )

    def _entered(self, scope: Message) -> str | None:
        """How the request shows that it may: by "cookie" or "password"; None where it does not."""
        for cookies in _values(scope, b"cookie"):
            for cookie in cookies.split(";"):
                name, _, value = cookie.strip().partition("=")
                if name == COOKIE and _same(value, self._token):
                    return "cookie"
        given = _given_password(scope)
        return "password" if given is not None and _same(given, self._password or "") else None

    async def _wrong(self, scope: Message) -> tuple[int, str]:
        if _given_password(scope) is not None:
            if self._waiting >= MOST_WAITING:
                return 429, "Too many wrong passwords: try again in a minute"
            self._waiting += 1
            try:
                async with self._one_at_a_time:
                    await asyncio.sleep(PAUSE_S)
            finally:
                self._waiting -= 1
        return 401, "This dashboard has a password"


def names_of(host: str, others: Collection[str] = ()) -> tuple[str, ...]:
    """What browsers may call a dashboard that listens on `host`: that, this machine's loopback, and `others`.

    One that listens on every address is known by any address in figures, and by this machine's name.
    """
    import socket

    own: tuple[str, ...] = (host,)
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        own = (ANY_ADDRESS, socket.gethostname())
    return tuple(dict.fromkeys(name.lower() for name in (*LOOPBACK, *own, *others)))


def guards() -> list[Any]:
    """The middleware of this process: names by streamlit's `server.allowedHosts`, password by the environment."""
    import streamlit as st
    from starlette.middleware import Middleware

    password = os.environ.pop(PASSWORD, None)  # not for the processes that work
    return [Middleware(Guard, names=st.get_option("server.allowedHosts") or LOOPBACK, password=password)]


def _values(scope: Message, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _hostname(netloc: str) -> str | None:
    """The host of `host:port`; None where it is no such thing."""
    try:
        parts = urlsplit(f"//{netloc}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != netloc or "@" in netloc or parts.hostname is None:
        return None
    return parts.hostname.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _given_password(scope: Message) -> str | None:
    """The password of HTTP's basic scheme, whoever's name stands before it."""
    for line in _values(scope, b"authorization"):
        scheme, _, word = line.partition(" ")
        if scheme.lower() == "basic":
            try:
                return base64.b64decode(word, validate=True).decode().partition(":")[2]
            except ValueError:
                return ""
    return None


def _with_cookie(send: Send, cookie: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            message["headers"] = [*message.get("headers", ()), (b"set-cookie", cookie.encode())]
        await send(message)

    return sending


async def _refuse(scope: Message, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="capacity dashboard", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
