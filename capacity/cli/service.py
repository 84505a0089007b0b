"""Commands that start the HTTP service and the MCP server. Their modules are imported only when they run."""

from importlib.util import find_spec

from capacity.base.errors import InvalidInput


def serve(
    port: int = 8080, host: str = "127.0.0.1", token: str | None = None, allow_host: list[str] | None = None
) -> None:
    _require("serve", "starlette", "uvicorn")
    from capacity.service.http_service import serve as run

    run(port=port, host=host, token=token, allow_hosts=tuple(allow_host or ()))


def mcp() -> None:
    _require("mcp", "mcp")
    from capacity.service.mcp_server import run

    run()


def _require(extra: str, *packages: str) -> None:
    """Raise InvalidInput if a package of the extra is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InvalidInput(
            f"`capacity {extra}` requires {' and '.join(missing)}; run pip install 'llm-capacity[{extra}]'"
        )
