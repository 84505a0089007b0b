"""The document names the scripts of the elements before anything asks for them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from capacity_app.preload import CHART, ELEMENTS, FOLDER, Preload, element_scripts, preload_links


def test_every_element_has_a_script_in_this_release() -> None:
    names = element_scripts(FOLDER, (*ELEMENTS, CHART))
    assert {name.partition(".")[0] for name in names} >= {*ELEMENTS, CHART}
    assert all((FOLDER / name).is_file() for name in names)
    assert element_scripts(FOLDER, ("NoSuchElement",)) == []


def test_what_a_script_imports_is_named_once_unless_the_document_does(tmp_path: Path) -> None:
    folder = tmp_path / "static" / "js"
    folder.mkdir(parents=True)
    (tmp_path / "index.html").write_text('<link rel="modulepreload" href="./static/js/base.1.js">')
    for name, text in {
        "Chart.1.js": 'import{a}from"./base.1.js";import{b as c}from"./axis.1.js";const later="./other.1.js";',
        "axis.1.js": 'import"./line.1.js";import{a}from"./base.1.js";',
        "line.1.js": "export{}",
        "base.1.js": "export{}",
        "other.1.js": "export{}",
        "Table.1.js": 'import{x}from"./line.1.js";import{y}from"./gone.1.js";',
    }.items():
        (folder / name).write_text(text)
    assert element_scripts(folder, ("Chart", "Table")) == [
        "Chart.1.js",
        "Table.1.js",
        "axis.1.js",
        "line.1.js",
    ]


BARE = b"<html><head></head></html>"


def received(
    kind: str, status: int = 200, *, accept: bytes = b"text/html,*/*", path: str = "/cost"
) -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body of a response of this kind, which the server sends in two pieces, packed where it may."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        assert (b"accept-encoding" in dict(scope["headers"])) is (b"html" not in accept)
        own = [(b"content-type", kind.encode()), (b"content-length", b"26")]
        await send({"type": "http.response.start", "status": status, "headers": own})
        await send({"type": "http.response.body", "body": b"<html><head></he", "more_body": True})
        await send({"type": "http.response.body", "body": b"ad></html>"})

    async def send(message: Any) -> None:
        sent.append(message)

    asked = [(b"accept", accept), (b"accept-encoding", b"gzip")]
    answer = Preload(app)({"type": "http", "path": path, "headers": asked}, None, send)
    with ThreadPoolExecutor(1) as aside:  # a browser of other tests may have a loop running in this thread
        aside.submit(asyncio.run, answer).result()
    return dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


def test_only_a_document_that_is_found_names_them() -> None:
    found, body = received("text/html; charset=utf-8")
    assert body == b"<html><head>" + preload_links(CHART) + b"</head></html>"
    assert found[b"content-length"] == str(len(body)).encode()
    assert b"/static/js/PlotlyChart." in body
    assert b"/static/js/PlotlyChart." not in received("text/html", path="/")[1]  # the start page has no chart
    for others in (
        received("text/javascript"),
        received("text/html", status=404),
        received("text/html", accept=b"*/*"),
    ):
        assert others[1] == BARE
        assert others[0][b"content-length"] == b"26"
