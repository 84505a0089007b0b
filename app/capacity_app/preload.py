"""What a browser fetches while it waits for a page: the scripts of the elements that pages are made of.

Streamlit's document names what it needs itself. The script of each kind of element is asked for as the first one of
that kind comes, that of charts too, which is half of all bytes: by then the browser has waited for the server, and the
server is drawing the page. Here the document names them at once, behind what it needs first.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

ELEMENTS = (
    "PlotlyChart",
    "TextInput",
    "ButtonGroup",
    "Selectbox",
    "NumberInput",
    "Checkbox",
    "Html",
    "DownloadButton",
    "Metric",
    "Button",
)
"""The stems of scripts; a release of streamlit that calls one otherwise does without."""
END, LENGTH = b"</head>", b"content-length"
HEAD_BYTES = 8192  # of a script: its imports come first
IMPORTED = re.compile(rb'"\./([\w.-]+\.js)"')

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Any, Send], Awaitable[None]]


class Preload:
    """ASGI middleware: the document says, after what it needs itself, which scripts will be needed."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Hand on; a document that is asked for and found is held until it is whole, and comes as plain text."""
        if scope["type"] != "http" or not _asks_for_document(scope):
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_document(message):
                start.update(message)
                return
            if not start or message["type"] != "http.response.body":
                await send(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body"):
                whole = bytes(body).replace(END, links() + END, 1)
                own = [(name, value) for name, value in start["headers"] if name.lower() != LENGTH]
                await send({**start, "headers": [*own, (LENGTH, str(len(whole)).encode())]})
                await send({**message, "body": whole})

        plain = [(name, value) for name, value in scope["headers"] if name.lower() != b"accept-encoding"]
        await self._app({**scope, "headers": plain}, receive, sending)


def _asks_for_document(scope: Message) -> bool:
    return any(name.lower() == b"accept" and b"text/html" in value for name, value in scope["headers"])


def _is_document(message: Message) -> bool:
    kinds = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
    return message["status"] == 200 and any(kind.startswith(b"text/html") for kind in kinds)


@cache
def links() -> bytes:
    """The lines of the document's head."""
    names = scripts(_folder(), ELEMENTS)
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
            waiting += [each.decode() for each in IMPORTED.findall(_imports(file.read(HEAD_BYTES)))]
    return list(found)


def _imports(head: bytes) -> bytes:
    """The statements that a script begins with, all of them imports."""
    statements = []
    for statement in head.split(b";"):
        if not statement.lstrip().startswith((b"import{", b'import"', b"import ")):
            break
        statements.append(statement)
    return b";".join(statements)


def _folder() -> Path:
    """Where streamlit keeps its scripts."""
    import streamlit

    return Path(streamlit.__file__).parent / "static" / "static" / "js"
