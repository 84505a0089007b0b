"""Middleware that ignores the progress bars of a page after the visitor has left it.

Until the server answers a click on a link, the browser still sends requests to redraw fragments of the page with the
link. Streamlit would run them, and tell the browser that this page is shown again: the click is lost, or the browser
shows "Bad delta path index" on the next page.
"""

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg


class IgnoreLeftPages:
    """ASGI middleware that drops requests for fragments of another page than the one last requested."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on everything except these requests."""
        page = ""  # of the last request for a whole page

        async def receive_for_page() -> Message:
            nonlocal page
            while True:
                message = await receive()
                try:
                    asked = BackMsg.FromString(message.get("bytes") or b"").rerun_script
                except DecodeError:
                    return message  # streamlit closes the connection
                if not asked.fragment_id:
                    page = asked.page_script_hash or page
                if not asked.fragment_id or page in ("", asked.page_script_hash):
                    return message

        await self._app(scope, receive_for_page if scope["type"] == "websocket" else receive, send)
