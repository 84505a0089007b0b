"""The HTTP service: a real server process, asked by a real client."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="the serve extra is not installed")

import uvicorn
from jsonschema import Draft202012Validator

import capacity
from capacity.base.registry import BY_NAME
from capacity.cli.main import main
from capacity.report.tables import render
from capacity.service.http_service import MAX_BODY_BYTES, listen, make_app
from capacity.service.jobs import Runner
from capacity.service.quotas import PROC, Quota
from capacity.service.verb_requests import served_verbs

WAIT_S = 120.0
TOKEN = "a long enough token"
ESTIMATE = {"gpu": "h100", "batch_size": 8, "input_len": 1000, "output_len": 100}
MODEL = "llama-3.1-8b"
LONG = {
    "model": MODEL, "gpu": "h100", "input_len": 1000, "output_len": 100, "request_rate": 10.0,
    "num_prompts": 500_000, "engine_loop": "events",
}  # fmt: skip


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    address: str,
    path: str,
    body: Mapping[str, Any] | bytes | None = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=WAIT_S)
    content = json.dumps(body).encode() if isinstance(body, Mapping) else body
    connection.request(method or ("GET" if body is None else "POST"), path, content, dict(headers or {}))
    try:
        return Answer(connection.getresponse())
    finally:
        connection.close()


@contextmanager
def service(*words: str) -> Iterator[str]:
    """The address of a service in its own process."""
    command = [sys.executable, "-m", "capacity", "serve", "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[4]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with service("--token", TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def allowed() -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}"}


def test_answer_is_the_json_of_the_command_line(address: str, allowed: dict[str, str]) -> None:
    got = ask(address, "/v1/estimate", {"model": MODEL, **ESTIMATE}, headers=allowed)
    assert got.status == 200
    assert got.json == json.loads(render(capacity.estimate(MODEL, **ESTIMATE), "json"))
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in got.headers["content-security-policy"]
    assert "server" not in got.headers
    assert [row["name"] for row in ask(address, "/v1/gpus", headers=allowed).json][:1] == ["a10-24gb"]


def test_openapi_describes_requests_and_answers(address: str, allowed: dict[str, str]) -> None:
    document = ask(address, "/openapi.json", headers=allowed).json
    assert set(document["paths"]) == {f"/v1/{verb}" for verb in served_verbs()}
    assert {"estimate", "plan", "models"} <= BY_NAME.keys() & set(served_verbs())
    components = document["components"]["schemas"]
    names = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert names <= components.keys()
    assert "#/$defs" not in json.dumps(document)
    operation = document["paths"]["/v1/estimate"]["post"]
    body = {"model": MODEL, **ESTIMATE}
    request = operation["requestBody"]["content"]["application/json"]["schema"]
    Draft202012Validator(request).validate(body)
    assert not Draft202012Validator(request).is_valid({**body, "bogus": 1})
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    got = ask(address, "/v1/estimate", body, headers=allowed).json
    whole = {**answer, "components": {"schemas": components}}
    Draft202012Validator(whole).validate(got)
    assert not Draft202012Validator(whole).is_valid({**got, "fits": "yes"})


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/estimate", b'{"model": ', 400, "not JSON"),
        ("/v1/estimate", b"\xff", 400, "not UTF-8 text"),
        ("/v1/estimate", b"[1]", 422, "must be an object of options"),
        (
            "/v1/fit",
            {"model": MODEL, "gpu": "h1000"},
            422,
            "no hardware profile 'h1000'. Did you mean 'h100'",
        ),
        ("/v1/estimate", {"model": "llama-3.1-405b", **ESTIMATE}, 422, "Use --tensor-parallel-size 16"),
        ("/v1/fit", {"model": "/etc/passwd", "gpu": "h100"}, 422, "no model '/etc/passwd'"),
        ("/v1/nonesuch", {}, 404, "no verb 'nonesuch'"),
        ("/v1/fit", None, 405, "send them as JSON with POST"),
        ("/nowhere", None, 404, "see /openapi.json"),
        ("/v1/fit", b" " * (MAX_BODY_BYTES + 1), 413, f"more than {MAX_BODY_BYTES:,} bytes"),
    ],
)
def test_error_is_a_problem_document(
    address: str, allowed: dict[str, str], path: str, body: Any, status: int, words: str
) -> None:
    got = ask(address, path, body, headers=allowed)
    assert got.status == status == got.json["status"]
    assert got.headers["content-type"] == "application/problem+json"
    assert got.json.keys() == {"type", "title", "status", "detail"}
    assert words in got.json["detail"]
    assert "\n" not in got.json["detail"]


def test_token_and_host_name_are_checked(address: str, allowed: dict[str, str]) -> None:
    assert ask(address, "/health").json["status"] == "ok"
    assert ask(address, "/v1/gpus", headers=allowed).status == 200
    refused = ask(address, "/v1/gpus")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, 'Bearer realm="capacity serve"')
    for wrong in (f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}"):
        assert ask(address, "/v1/gpus", headers={"Authorization": wrong}).status == 401
    assert ask(address, "/health", headers={"Host": "evil.example"}).status == 403
    page = {**allowed, "Origin": "http://evil.example"}
    assert (
        ask(address, "/v1/gpus", headers=page).json["detail"]
        == "The request came from a page of another origin, which is not allowed. To allow that origin: "
        "capacity serve --allow-host NAME"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "no token is set; set CAPACITY_SERVICE_TOKEN or --token"),
        (("--token", "short"), "--token has 5 characters, must have at least 8"),
        (("--host", "nowhere.invalid"), "not an address of this machine"),
    ],
)
def test_unsafe_start_is_refused(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CAPACITY_SERVICE_TOKEN", raising=False)
    monkeypatch.setattr(sys, "argv", ["capacity", "serve", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def events(address: str, path: str, body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the server-sent events of a request: name and content."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=WAIT_S)
    connection.request("POST", path, json.dumps(body), {"Accept": "text/event-stream"})
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    name = ""
    try:
        while line := response.readline().decode():
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])
    finally:
        response.close()
        connection.close()


@pytest.fixture(scope="module")
def limited() -> Iterator[tuple[str, Runner]]:
    """A service in this process with small limits, and its runner."""
    runner = Runner(2, quota=Quota(session_waiting=1, session_running=1, job_cpu_s=4.0, grace_s=0.1))
    listening = socket.create_server(("127.0.0.1", 0))
    app = make_app(runner, names=("127.0.0.1",))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", runner
    server.should_exit = True
    thread.join()
    listening.close()
    runner.close()


def test_progress_arrives_as_events(limited: tuple[str, Runner]) -> None:
    body = {**LONG, "engine_loop": "core", "num_prompts": 60_000}
    found = list(events(limited[0], "/v1/simulate", body))
    assert [name for name, _ in found if name != "progress"] == ["answer"]
    assert found[-1][1]["schema"].startswith("capacity/simulation/")
    done = [content["done"] for name, content in found if name == "progress"]
    assert done
    assert done == sorted(done)


@pytest.mark.skipif(not PROC.exists(), reason="no account of processes here")
def test_limits_of_queue_and_time(limited: tuple[str, Runner]) -> None:
    address, runner = limited
    running = events(address, "/v1/simulate", LONG)
    assert next(running)[0] == "progress"
    waiting = threading.Thread(target=lambda: ask(address, "/v1/simulate", {**LONG, "seed": 1}))
    waiting.start()
    until_s = time.monotonic() + WAIT_S
    while not runner._waiting and time.monotonic() < until_s:
        time.sleep(0.02)
    full = ask(address, "/v1/fit", {"model": MODEL, "gpu": "h100"})
    assert (full.status, full.headers["retry-after"]) == (429, "5")
    assert "computations are already waiting" in full.json["detail"]
    name, content = list(running)[-1]
    assert (name, content["status"]) == ("problem", 504)
    assert "CPU time (limit 4 s)" in content["detail"]
    waiting.join()


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_disconnects_cancels_its_job(limited: tuple[str, Runner], stream: bool) -> None:
    address, runner = limited
    body = json.dumps({**LONG, "seed": 2 + stream})
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("POST", "/v1/simulate", body, {"Accept": "text/event-stream"} if stream else {})
    until_s = time.monotonic() + WAIT_S
    while (
        not (jobs := [job for job in runner._jobs.values() if not job.finished])
        and time.monotonic() < until_s
    ):
        time.sleep(0.02)
    connection.close()
    assert jobs[0].ended.wait(WAIT_S)
    assert jobs[0].status == "cancelled"


def test_answers_are_sent_without_waiting_for_an_acknowledgement() -> None:
    """With Nagle's algorithm, the second packet of an answer waits 40 ms on the loopback interface."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
