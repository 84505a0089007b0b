"""Requests that reach Streamlit from a page that the visitor has left."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from capacity_app.left_pages import IgnoreLeftPages
from streamlit.proto.BackMsg_pb2 import BackMsg


def passed_on(*frames: bytes) -> list[bytes]:
    """What the middleware gives to the application of these frames of a browser, until it disconnects."""
    messages: list[MutableMapping[str, Any]] = [
        {"type": "websocket.receive", "bytes": each} for each in frames
    ]
    messages.append({"type": "websocket.disconnect"})
    received: list[bytes] = []

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop(0)

    async def application(_scope: Any, receive: Any, _send: Any) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            received.append(message["bytes"])

    asyncio.run(IgnoreLeftPages(application)({"type": "websocket"}, receive, application))  # type: ignore[arg-type]
    return received


def request(page: str, fragment: str = "") -> bytes:
    message = BackMsg()
    message.rerun_script.page_script_hash, message.rerun_script.fragment_id = page, fragment
    return message.SerializeToString()


def test_fragments_of_a_page_that_was_left_are_dropped() -> None:
    kept = [request("one"), request("one", "progress"), request("two"), request("two", "progress")]
    assert passed_on(*kept[:3], request("one", "progress"), kept[3]) == kept


def test_frame_that_is_no_message_is_left_to_streamlit() -> None:
    """Streamlit closes such a connection; an error here would be a traceback in the log."""
    assert passed_on(b"\xff\xff\xff", request("one")) == [b"\xff\xff\xff", request("one")]
