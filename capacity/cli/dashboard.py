"""The dashboard's verb: start `capacity_app` in a browser (imported only when it runs)."""

from __future__ import annotations

from typing import Annotated

import typer


def dashboard(
    port: Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65535)] = 8501,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; beyond this machine, with a password: 0.0.0.0."),
    ] = "127.0.0.1",
    password: Annotated[
        str | None,
        typer.Option(
            "--password",
            envvar="CAPACITY_DASHBOARD_PASSWORD",
            help="What browsers must give. Others of this machine read command lines: prefer the variable.",
            show_envvar=True,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Another name that browsers use for it, as behind a proxy."),
    ] = None,
    theme: Annotated[str, typer.Option("--theme", help="auto (as the browser), light or dark.")] = "auto",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    from capacity_app.launch import serve

    code = serve(
        port=port,
        host=host,
        theme=theme,
        browser=browser,
        password=password,
        allow_hosts=tuple(allow_host or ()),
    )
    raise typer.Exit(code)
