"""What a browser fetches while it waits for a page: the scripts of the elements that pages are made of.

Streamlit's document names what it needs itself. The script of each kind of element is asked for as the first one of
that kind comes, that of charts too, which is half of all bytes: by then the browser has waited for the server, and the
server is drawing the page. Here the document names them at once, behind what it needs first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import streamlit
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

FOLDER = Path(streamlit.__file__).parent / "static" / "static" / "js"
ELEMENTS = (
    *("PlotlyChart", "TextInput", "ButtonGroup", "Selectbox", "NumberInput", "Checkbox", "Html"),
    *("DownloadButton", "Metric", "Button"),
)
"""The stems of scripts; a release of streamlit that calls one otherwise does without."""
END = b"</head>"
HEAD_BYTES = 8192  # of a script: its imports come first
IMPORTS = re.compile(rb'(?:\s*import[{" ][^;]*;?)*')  # the statements that a script begins with
IMPORTED = re.compile(rb'"\./([\w.-]+\.js)"')


class Preload(BaseHTTPMiddleware):
    """The document says, after what it needs itself, which scripts will be needed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on what asks for no document as it is."""
        asks = scope["type"] == "http" and "text/html" in Headers(scope=scope).get("accept", "")
        await (super().__call__ if asks else self.app)(scope, receive, send)

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Name the scripts in a document that is found, which is held until it is whole and comes as plain text."""
        del MutableHeaders(scope=request.scope)["accept-encoding"]
        found = await call_next(request)
        if found.status_code != 200 or not found.headers.get("content-type", "").startswith("text/html"):
            return found
        body = b"".join([piece async for piece in found.body_iterator])  # type: ignore[attr-defined]
        whole = Response(body.replace(END, links() + END, 1))
        found.headers["content-length"] = whole.headers["content-length"]
        whole.raw_headers = found.raw_headers
        return whole


@cache
def links() -> bytes:
    """The lines of the document's head."""
    names = scripts(FOLDER, ELEMENTS)
    return "".join(
        f'<link rel="modulepreload" crossorigin href="./static/js/{name}">' for name in names
    ).encode()


def scripts(folder: Path, stems: Iterable[str]) -> list[str]:
    """The scripts of these stems, and after each those that it imports and the document does not name."""
    index = folder.parent.parent / "index.html"
    named = set(re.findall(r"static/js/([\w.-]+\.js)", index.read_text(encoding="utf-8")))
    waiting = [path.name for stem in stems for path in sorted(folder.glob(f"{stem}.*.js"))]
    found: dict[str, None] = {}
    while waiting:
        name = waiting.pop(0)
        if name in found or name in named or not (folder / name).is_file():
            continue
        found[name] = None
        with (folder / name).open("rb") as file:
            waiting += [
                each.decode() for each in IMPORTED.findall(next(IMPORTS.finditer(file.read(HEAD_BYTES)))[0])
            ]
    return list(found)
