"""The MCP server: a real process on its stdin and stdout, asked by the client of the official package."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the mcp extra is not installed")

from jsonschema import Draft202012Validator
from mcp import ClientSession, MCPError, StdioServerParameters, stdio_client

import capacity
from capacity.report.schemas import json_schema
from capacity.report.tables import render

LOAD = {"gpu": "h100", "batch_size": 8, "input_len": 1000, "output_len": 100}
MODEL = "llama-3.1-8b"


def session(talk: Callable[[ClientSession], Awaitable[None]]) -> None:
    """Start the server, and talk to it. In a thread, because another test's loop may run in this one."""
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "capacity", "mcp"], env=dict(os.environ)
    )

    async def run() -> None:
        async with stdio_client(command) as (read, write), ClientSession(read, write) as client:
            await client.initialize()
            await talk(client)

    with ThreadPoolExecutor(1) as aside:
        aside.submit(asyncio.run, run()).result()


def test_tools_and_resources_answer() -> None:
    async def talk(client: ClientSession) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["fit", "estimate", "plan", "cost", "compare", "explain"]
        options: dict[str, Any] = {"model": MODEL, **LOAD}
        Draft202012Validator(tools["estimate"].input_schema).validate(options)
        assert not Draft202012Validator(tools["plan"].input_schema).is_valid(options | {"model": 3})

        answer = await client.call_tool("estimate", options)
        assert not answer.is_error
        expected = capacity.estimate(MODEL, **LOAD)
        assert answer.structured_content == json.loads(render(expected, "json"))
        Draft202012Validator(json_schema("estimate")).validate(answer.structured_content)
        assert "interval" in answer.content[0].text  # type: ignore[union-attr]

        refused = await client.call_tool("fit", {"model": MODEL, "gpu": "h1000"})
        assert refused.is_error
        text = refused.content[0].text  # type: ignore[union-attr]
        assert text.startswith("UnknownName: no hardware profile 'h1000'. Did you mean 'h100'")
        assert (await client.call_tool("nonesuch", {})).is_error

        listed = {resource.name: resource.uri for resource in (await client.list_resources()).resources}
        assert list(listed) == ["models", "gpus", "engines"]
        for name, key in (("models", "name"), ("gpus", "name"), ("engines", "engine")):
            content = (await client.read_resource(listed[name])).contents[0]
            found = json.loads(content.text)  # type: ignore[union-attr]
            rows = found["rows"] if name == "engines" else found
            assert len({row[key] for row in rows}) == len(rows) > 5
        with pytest.raises(MCPError, match="no resource 'capacity://nonesuch'"):
            await client.read_resource("capacity://nonesuch")

    session(talk)


def test_a_search_reports_rising_progress() -> None:
    async def talk(client: ClientSession) -> None:
        reports: list[tuple[float, str | None]] = []

        async def listen(progress: float, total: float | None, message: str | None) -> None:
            assert total is None  # how many engines will be simulated is not known
            reports.append((progress, message))

        asked = {
            "gpus": ["h100", "l40s"],
            "request_rate": 8,
            "input_len": 1000,
            "output_len": 200,
            "num_prompts": 500,
            "slo": ["ttft:p95:1s"],
            "workers": 1,
            "objective": "gpus",
        }
        answer = await client.call_tool("plan", {"model": MODEL, **asked}, progress_callback=listen)
        assert not answer.is_error
        assert reports
        numbers = [number for number, _ in reports]
        assert numbers == sorted(set(numbers))
        assert all(message and " of " in message for _, message in reports)

    session(talk)
