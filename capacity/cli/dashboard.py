"""The command that opens the dashboard in a browser. It imports `capacity_app` only when it runs."""

import typer


def dashboard(
    port: int = 8501,
    host: str = "127.0.0.1",
    password: str | None = None,
    allow_host: list[str] | None = None,
    theme: str = "auto",
    browser: bool = True,
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
