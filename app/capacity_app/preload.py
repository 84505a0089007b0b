"""Preload the scripts of page elements while the browser waits for a page.

Streamlit's HTML document lists only the scripts that every page needs. A browser requests the script of an element,
such as a chart (half of all bytes), only when the first such element arrives. This middleware adds these scripts to
the document, after streamlit's own scripts.
"""

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
    *("TextInput", "ButtonGroup", "Selectbox", "NumberInput", "Checkbox", "Html", "DownloadButton"),
    *("Metric", "Button"),
)
"""Prefixes of script names; a name that a streamlit release does not have is skipped."""
CHART = "PlotlyChart"  # half of all bytes; the start page has no chart
END = b"</head>"
HEAD_BYTES = 8192  # of a script, which begins with its imports
IMPORTS = re.compile(rb'(?:\s*import[{" ][^;]*;?)*')  # import statements at the beginning of a script
IMPORTED = re.compile(rb'"\./([\w.-]+\.js)"')


class Preload(BaseHTTPMiddleware):
    """Middleware that adds preload links to streamlit's HTML document."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle requests for a document; pass on all others unchanged."""
        asks = scope["type"] == "http" and "text/html" in Headers(scope=scope).get("accept", "")
        await (super().__call__ if asks else self.app)(scope, receive, send)

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Return the response; if it is a document, add the links, buffer it and send it uncompressed."""
        del MutableHeaders(scope=request.scope)["accept-encoding"]
        found = await call_next(request)
        if found.status_code != 200 or not found.headers.get("content-type", "").startswith("text/html"):
            return found
        body = b"".join([piece async for piece in found.body_iterator])  # type: ignore[attr-defined]
        charts = () if request.url.path == "/" else (CHART,)
        whole = Response(body.replace(END, preload_links(*charts) + END, 1))
        found.headers["content-length"] = whole.headers["content-length"]
        whole.raw_headers = found.raw_headers
        return whole


@cache
def preload_links(*more: str) -> bytes:
    """Return HTML link elements for the head of the document, for the scripts of `ELEMENTS` and `more` elements."""
    names = element_scripts(FOLDER, (*ELEMENTS, *more))
    return "".join(
        f'<link rel="modulepreload" crossorigin href="./static/js/{name}">' for name in names
    ).encode()


def element_scripts(folder: Path, stems: Iterable[str]) -> list[str]:
    """Return the scripts with these file name stems and their imports, unless the HTML document already lists them."""
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
