"""`capacity mcp`: an MCP server on stdin and stdout, whose tools are verbs of the registry.

A tool returns the answer as JSON (with intervals, bases and sources) and as a text table, and reports progress while
it runs. The server runs on the user's machine with the user's rights, so its requests may name files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.metadata import version

import anyio
from mcp import MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.record import AnswerRecord
from capacity.base.registry import BY_NAME
from capacity.report.schemas import Schema
from capacity.report.tables import null_infinities, render
from capacity.service.verb_requests import answer_json, ask, request_schema

TOOLS = ("fit", "estimate", "plan", "cost", "compare", "explain")
RESOURCES = {"models": "Model presets", "gpus": "GPU profiles", "engines": "Inference engines"}
PROGRESS_S = 0.2
SCHEME = "capacity://"
INSTRUCTIONS = (
    "Capacity planning for LLM inference. Start with fit and estimate; plan searches for the cheapest deployment. "
    "Report the interval next to each number. Names of models, GPUs and engines are in the resources."
)
MORE = "Further options have the names of the command's flags, which `capacity VERB --help-all` lists."

Context = ServerRequestContext[Schema]


async def list_tools(_: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:  # noqa: ARG001
    """Return the tools, with the most important options of each verb."""
    return types.ListToolsResult(
        tools=[
            types.Tool(
                name=name,
                description=f"{BY_NAME[name].help}\n\n{MORE}",
                input_schema=request_schema(name, local=True, short=True),
                annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True),
            )
            for name in TOOLS
        ]
    )


async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Return a verb's answer as JSON and as a table, or its error as one line."""
    try:
        if params.name not in TOOLS:
            raise InvalidInput(f"no tool {params.name!r}: use one of {', '.join(TOOLS)}")
        body = json.dumps(params.arguments or {}).encode()
        report = _progress_reporter(context)
        answer = await anyio.to_thread.run_sync(lambda: ask(params.name, body, local=True, progress=report))
    except CapacityError as error:
        text = f"{type(error).__name__}: {error}"
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
    assert isinstance(answer, AnswerRecord)
    table = types.TextContent(text=render(answer, "table", detail=False))
    return types.CallToolResult(content=[table], structured_content=null_infinities(answer.to_dict()))


def _progress_reporter(context: Context) -> Callable[[Schema], None]:
    """Return a function that sends a verb's progress to the client, at most once in `PROGRESS_S` seconds.

    MCP requires a progress number that only increases. For a search (`plan`), it is the number of engines simulated
    so far in all stages.
    """
    sent, next_s = 0, 0.0

    def report(values: Schema) -> None:
        nonlocal sent, next_s
        stage = values.get("stage")
        done = values["simulated"] if stage else values["done"]
        if done > sent and time.monotonic() >= next_s:
            sent, next_s = done, time.monotonic() + PROGRESS_S
            text = f"{stage}: {values['settled']} of {values['engines']}" if stage else None
            anyio.from_thread.run(context.session.report_progress, done, values.get("total"), text)

    return report


async def list_resources(
    _: Context,
    params: types.PaginatedRequestParams | None,  # noqa: ARG001
) -> types.ListResourcesResult:
    """Return the MCP resources: the lists of model presets, GPU profiles and engines."""
    return types.ListResourcesResult(
        resources=[
            types.Resource(name=name, uri=f"{SCHEME}{name}", description=about, mime_type="application/json")
            for name, about in RESOURCES.items()
        ]
    )


async def read_resource(_: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    """Return the content of one resource as JSON. Raises MCPError if there is no such resource."""
    name = params.uri.removeprefix(SCHEME)
    if name not in RESOURCES:
        known = ", ".join(f"{SCHEME}{each}" for each in RESOURCES)
        raise MCPError(types.INVALID_PARAMS, f"no resource {params.uri!r}: use one of {known}")
    text = (await anyio.to_thread.run_sync(lambda: answer_json(name, b"{}", local=True))).decode()
    content = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
    return types.ReadResourceResult(contents=[content])


def make_server() -> Server[Schema]:
    return Server(
        "llm-capacity",
        version=version("llm-capacity"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def run() -> None:
    """Serve on stdin and stdout until stdin closes."""

    async def main() -> None:
        server = make_server()
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(main)
