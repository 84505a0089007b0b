"""Who may speak to the dashboard: names of its own, pages of its own, a password where it has one."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from capacity.service import guard
from capacity.service.guard import ANY_ADDRESS, COOKIE, LOOPBACK, Guard, allowed_names

WORD = "correct horse"


async def _inside(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


def run(work: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own: a browser's test in the same process leaves its loop running."""
    with ThreadPoolExecutor(1) as aside:
        aside.submit(asyncio.run, work).result()


def guarded(*names: str, password: str | None = None) -> Guard:
    return Guard(_inside, names=names or LOOPBACK, password=password)


def asked(
    who: Guard, headers: Mapping[str, str] | list[tuple[str, str]], path: str = "/", kind: str = "http"
) -> tuple[int, str, dict[str, str]]:
    """Status (101 where a WebSocket is accepted, 1008 where it is closed), text and headers."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read before it is decided")

    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    raw = [(key.lower().encode(), value.encode("latin-1")) for key, value in pairs]
    run(who({"type": kind, "path": path, "headers": raw}, receive, send))
    first = sent[0]
    given = {key.decode(): value.decode() for key, value in first.get("headers", ())}
    if kind == "websocket":
        return (
            {"websocket.accept": 101, "websocket.close": 1008}[first["type"]],
            first.get("reason", ""),
            given,
        )
    return first["status"], b"".join(m.get("body", b"") for m in sent).decode(), given


def basic(word: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{word}".encode()).decode()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8501", "127.0.0.1:1", "[::1]:8501", "localhost."])
def test_its_own_names_are_let_in(host: str) -> None:
    assert asked(guarded(), {"Host": host})[0] == 200
    assert asked(guarded(), {"Host": host}, "/_stcore/stream", "websocket")[0] == 101


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example:8501"},
        {"Host": "evil.example", "X-Forwarded-Host": "localhost"},
        {"Host": "10.0.0.1"},
        {"Host": "localhost@evil.example"},
        {"Host": "localhost:99999"},
        {"Host": "localhost/"},
        {"Host": ""},
        {},
        [("Host", "localhost"), ("Host", "evil.example")],
    ],
)
@pytest.mark.parametrize("path", ["/", "/_stcore/health", "/_stcore/stream", "/_stcore/upload_file/x/y"])
def test_names_of_others_are_turned_away(headers: Any, path: str) -> None:
    status, text, _ = asked(guarded(), headers, path)
    assert status == 403
    assert "--allow-host" in text
    assert asked(guarded(), headers, path, "websocket")[0] == 1008


def test_a_name_that_is_no_text_is_not_shown_as_it_is() -> None:
    assert "\x1b" not in asked(guarded(), {"Host": "\x1b[31mred"})[1]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8501", 101),
        ("http://localhost:3000", 1008),  # a page of another program of this machine
        ("http://evil.example", 1008),
        ("null", 1008),
        ("https://plan.example.com", 101),  # a proxy says its own name to the browser and another to us
    ],
)
def test_pages_of_other_origins_are_turned_away(origin: str, status: int) -> None:
    headers = {"Host": "localhost:8501", "Origin": origin}
    who = guarded(*LOOPBACK, "plan.example.com")
    assert asked(who, headers, "/_stcore/stream", "websocket")[0] == status


@pytest.mark.parametrize(
    "path", ["/_stcore/metrics", "/_stcore/metrics/", "/_stcore/script-health-check", "/_stcore/agent/mcp"]
)
def test_what_nobody_needs_is_closed(path: str) -> None:
    assert asked(guarded(), {"Host": "localhost"}, path)[0] == 404


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_every_answer_has_the_headers_that_protect_it(host: str) -> None:
    headers = asked(guarded(), {"Host": host})[2]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert "http" not in headers["content-security-policy"], "pages load nothing from other servers"


def test_on_every_address_figures_are_let_in_and_names_are_not() -> None:
    who = guarded(*allowed_names("0.0.0.0"))
    assert asked(who, {"Host": "192.0.2.7:8501"})[0] == 200
    assert asked(who, {"Host": "[2001:db8::1]:8501"})[0] == 200
    assert asked(who, {"Host": "evil.example"})[0] == 403
    assert asked(who, {"Host": ANY_ADDRESS})[0] == 403


def test_a_password_lets_in_once_and_a_cookie_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PAUSE_S", 0.0)
    who = guarded(password=WORD)
    host = {"Host": "localhost"}
    status, _, headers = asked(who, host)
    assert (status, headers["www-authenticate"][:5]) == (401, "Basic")
    assert asked(who, host, "/_stcore/stream", "websocket")[0] == 1008
    assert asked(who, host, "/_stcore/health")[0] == 200
    for wrong in (basic("correct horsf"), basic(""), "Basic !", "Bearer x", basic(WORD)[:-4]):
        assert asked(who, {**host, "Authorization": wrong})[0] == 401
    status, text, headers = asked(who, {**host, "Authorization": basic(WORD)})
    assert (status, text) == (200, "inside")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    token = cookie.partition(";")[0]
    assert asked(who, {**host, "Cookie": f"a=b; {token}"}, "/_stcore/stream", "websocket")[0] == 101
    assert asked(who, {**host, "Cookie": f"{COOKIE}=guessed"}, "/_stcore/stream", "websocket")[0] == 1008
    assert asked(guarded(password=WORD), {**host, "Cookie": token})[0] == 401  # of another start


def test_guesses_wait_for_each_other_and_the_password_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PAUSE_S", 0.02)
    monkeypatch.setattr(guard, "MAX_WAITING", 5)
    who = guarded(password=WORD)
    statuses: list[int] = []

    async def ask(word: str) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        headers = [(b"host", b"localhost"), (b"authorization", basic(word).encode())]
        await who({"type": "http", "path": "/", "headers": headers}, _inside, send)

    async def rush() -> None:
        await asyncio.gather(*(ask(f"guess {number}") for number in range(9)), ask(WORD))

    run(rush())
    assert statuses[:5] == [429] * 4 + [200]  # at once
    assert statuses[5:] == [401] * 5
