"""`capacity serve`: the verbs as an HTTP service, with one worker process for each core.

POST /v1/VERB takes a JSON object of options and returns the answer as JSON, in the format of the command line. GET
/openapi.json describes all verbs, and GET /health is for monitoring. Errors are problem documents (RFC 9457), whose
`detail` is the error line of the command line. With `Accept: text/event-stream`, progress arrives as events
`progress`, and the result as one event `answer` or `problem`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from http import HTTPStatus
from importlib.metadata import version
from typing import ClassVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Send

from capacity.base.errors import InvalidInput, MalformedFile, OverLimit
from capacity.service.addresses import check_secret, display_name, resolve_host
from capacity.service.guard import Guard, allowed_names
from capacity.service.jobs import Job, Runner, Task
from capacity.service.openapi import openapi_document
from capacity.service.quotas import QUOTA
from capacity.service.verb_requests import LISTINGS, served_verbs

TOKEN = "CAPACITY_SERVICE_TOKEN"  # environment variable
MAX_BODY_BYTES = 32 << 20
WATCH_CLIENT_AFTER_S = 0.5  # until a request is checked for a client that has disconnected
EVENT_INTERVAL_S = 0.25
RETRY_AFTER_S = 5
PROBLEM = "application/problem+json"


class TokenGuard(Guard):
    """Access control of the service: allowed host names, and a bearer token if one is set."""

    WHAT = "service"
    HEALTH = "/health"
    BLOCKED_PATHS = ()
    CHALLENGE = 'Bearer realm="capacity serve"'
    SECRET = "token"
    COMMAND = "capacity serve"
    HEADERS: ClassVar[Mapping[str, str]] = {
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
        "referrer-policy": "no-referrer",
    }

    def _read_password(self, asked: HTTPConnection) -> str | None:
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None

    def _remember(self, send: Send) -> Send:
        return send

    def _refusal_response(self, status: int, reason: str, headers: Mapping[str, str]) -> ASGIApp:
        return problem(status, reason, headers)


def problem_document(status: int, detail: str) -> bytes:
    """Return a problem document (RFC 9457); `detail` is one line."""
    fields = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return json.dumps(fields).encode()


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem_document(status, detail), status, headers, PROBLEM)


class Service:
    """The routes of the service; `runner` runs the verbs."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._description: bytes | None = None

    async def health(self, _: Request) -> Response:
        """Return the status of the service and its version."""
        content = {"status": "ok", "version": version("llm-capacity")}
        return Response(json.dumps(content), media_type="application/json")

    async def openapi(self, _: Request) -> Response:
        """Return the OpenAPI document, which is cached because building it takes a second."""
        if self._description is None:
            document = await asyncio.to_thread(openapi_document)
            self._description = json.dumps(document).encode()
        return Response(self._description, media_type="application/json")

    async def answer(self, request: Request) -> Response:
        """Run the verb of a request and return its answer. Quotas apply to each client address."""
        verb, client = request.path_params["verb"], request.client.host if request.client else ""
        if verb not in served_verbs():
            return problem(404, f"no verb {verb!r}: use one of {', '.join(served_verbs())}"[:1000])
        if request.method == "GET" and verb not in LISTINGS:
            return problem(405, f"{verb} needs options: send them as JSON with POST", {"allow": "POST"})
        body = await read_body(request)
        if body is None:
            return problem(413, f"the request has more than {MAX_BODY_BYTES:,} bytes; send less")
        events = "text/event-stream" in request.headers.get("accept", "")
        arguments = {"verb": verb, "body": body}
        task = Task(
            function="capacity.service.verb_requests:answer_json", arguments=arguments, reports=events
        )
        try:
            job = self._runner.submit(task, client)
        except OverLimit as error:
            return problem(429, str(error), {"retry-after": str(RETRY_AFTER_S)})
        if events:
            return StreamingResponse(self._events(job, client), media_type="text/event-stream")
        if not await self._wait_until_ended(job, client, request):
            return Response(status_code=499)  # the client has disconnected
        status, content = job_answer(job)
        return Response(content, status, media_type="application/json" if status == 200 else PROBLEM)

    async def _wait_until_ended(self, job: Job, client: str, request: Request) -> bool:
        """Wait for a job to end. If the client disconnects first, return False, and cancel the job if no other client
        waits for it."""
        ended = _event_of(job)
        try:
            await asyncio.wait_for(ended.wait(), WATCH_CLIENT_AFTER_S)
        except TimeoutError:
            gone = asyncio.create_task(_wait_for_disconnect(request))
            waiting = asyncio.create_task(ended.wait())
            try:
                await asyncio.wait((gone, waiting), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel(), waiting.cancel()
        if not job.finished:
            self._runner.leave(job, client)
        return job.finished and job.status != "cancelled"

    async def _events(self, job: Job, client: str) -> AsyncIterator[bytes]:
        """Yield the progress reports and the result of a job as server-sent events."""
        ended, shown = _event_of(job), None
        try:
            while not job.finished:
                if job.progress is not None and job.progress != shown:
                    shown = job.progress
                    yield _event("progress", json.dumps(shown[0]).encode())
                try:
                    await asyncio.wait_for(ended.wait(), EVENT_INTERVAL_S)
                except TimeoutError:
                    continue
            status, content = job_answer(job)
            yield _event("answer" if status == 200 else "problem", content)
        finally:
            if not job.finished:
                self._runner.leave(job, client)


def job_answer(job: Job) -> tuple[int, bytes]:
    """Return the HTTP status and the content for a finished job: its answer as JSON, or a problem document."""
    if job.status == "done":
        return 200, job.value
    if job.error is not None:
        malformed = isinstance(job.error, MalformedFile) and job.error.path == "the request"
        status = 504 if isinstance(job.error, OverLimit) else 400 if malformed else 422
        return status, problem_document(status, str(job.error))
    print(job.crash or f"the job is {job.status}", file=sys.stderr)
    return 500, problem_document(500, "the computation failed; the log of the service has the reason")


async def read_body(request: Request) -> bytes | None:
    """Return the body of a request; None if it has more than `MAX_BODY_BYTES`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event_of(job: Job) -> asyncio.Event:
    """Return an event of the running asyncio loop that is set when the job ends."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    job.call_when_ended(lambda: loop.call_soon_threadsafe(ended.set))
    return ended


def _event(name: str, content: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + content + b"\n\n"


async def _as_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, f"{error.detail}: see /openapi.json", error.headers)


def make_app(runner: Runner, *, names: Collection[str], token: str | None = None) -> Starlette:
    """Return the ASGI app. `names`: the allowed host names (`allowed_names`)."""
    service = Service(runner)
    return Starlette(
        routes=[
            Route("/health", service.health),
            Route("/openapi.json", service.openapi),
            Route("/v1/{verb}", service.answer, methods=["GET", "POST"]),
        ],
        middleware=[Middleware(TokenGuard, names=names, password=token)],
        exception_handlers={HTTPException: _as_problem},
    )


def serve(*, port: int, host: str, token: str | None = None, allow_hosts: Collection[str] = ()) -> None:
    """Run the service until it is interrupted. With port 0, it uses and prints a free port.

    Raises InvalidInput for a host that is not an address of this machine, a port in use, or a public host without a
    token.
    """
    import uvicorn

    resolve_host(host)
    check_secret(host, token, flag="--token", variable=TOKEN, port=port)
    os.environ.pop(TOKEN, None)  # workers do not get it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    listening = listen(host, port)
    # with one slot more, because the last free slot is for other clients
    quota = replace(
        QUOTA, session_running=cores, session_waiting=64, session_cpu_s=QUOTA.window_s * cores / 2
    )
    runner = Runner(cores + 1, waiting=256, idle=cores + 1, quota=quota)
    app = make_app(runner, names=allowed_names(host, allow_hosts), token=token)
    settings = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
    address = f"http://{display_name(host)}:{listening.getsockname()[1]}"
    print(f"the service is at {address} (press Ctrl-C to stop it)", flush=True)
    try:
        uvicorn.Server(settings).run(sockets=[listening])
    finally:
        runner.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Its connections send at once (TCP_NODELAY): asyncio sets this only
    for sockets with a protocol number, and answers of two packets wait 40 ms without it. Raises InvalidInput."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InvalidInput(
            f"--port {port} of {host} cannot be opened: {error.strerror}; use another port, or 0 for a free one"
        ) from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
