"""Start the dashboard: streamlit's own command in a process of its own, with options that are safe by default."""

from __future__ import annotations

import importlib.util
import ipaddress
import signal
import socket
import subprocess
import sys
from pathlib import Path

from capacity.base.errors import InvalidInput

ENTRY = Path(__file__).parent / "entry" / "dashboard.py"
THEMES = ("auto", "light", "dark")

# the same stand in app/.streamlit/config.toml, for `streamlit run app/dashboard.py`; a test holds them equal
OPTIONS: dict[str, dict[str, str | int | bool]] = {
    "server": {
        "address": "127.0.0.1",
        "enableXsrfProtection": True,
        "enableCORS": True,
        "maxUploadSize": 50,
        "fileWatcherType": "none",
        "showEmailPrompt": False,
    },
    "browser": {"gatherUsageStats": False},
    "client": {"showErrorDetails": "none", "toolbarMode": "viewer"},
    "theme": {"paddingTop": "4rem"},
    "theme.sidebar": {"paddingTop": "0.5rem"},
}
COLOURS = {"light": {"primaryColor": "#0072B2"}, "dark": {"primaryColor": "#56B4E9"}}


def serve(*, port: int, host: str, theme: str, browser: bool) -> int:
    """Run the dashboard until it is interrupted; its exit code. Raises InvalidInput."""
    command = server_command(port=port, host=host, theme=theme, browser=browser)
    if not _is_loopback(host):
        print(
            f"{host}: whoever reaches this address can use the dashboard; it asks for no password",
            file=sys.stderr,
        )
    with subprocess.Popen(command) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            return 130


def server_command(*, port: int, host: str, theme: str = "auto", browser: bool = True) -> list[str]:
    """The words of streamlit's command. Raises InvalidInput without streamlit, and for no theme of that name."""
    if theme not in THEMES:
        raise InvalidInput(f"--theme is {theme!r}: must be one of {', '.join(THEMES)}")
    if importlib.util.find_spec("streamlit") is None:
        raise InvalidInput("the dashboard needs streamlit: pip install 'llm-capacity[dashboard]'")
    _check_address(host)
    options = [
        f"--{section}.{name}={str(value).lower() if isinstance(value, bool) else value}"
        for section, values in OPTIONS.items()
        for name, value in values.items()
        if name != "address"
    ]
    options += [f"--server.address={host}", f"--server.port={port}"]
    options += _theme_options(theme)
    if not browser:
        options.append("--server.headless=true")
    return [sys.executable, "-m", "capacity_app.streamlit_process", "run", str(ENTRY), *options]


def _theme_options(theme: str) -> list[str]:
    """Both themes, so that the browser's wish decides and the menu can switch; or one of them alone."""
    if theme == "auto":
        return [f"--theme.{base}.{k}={v}" for base, values in COLOURS.items() for k, v in values.items()]
    return [f"--theme.base={theme}", *(f"--theme.{k}={v}" for k, v in COLOURS[theme].items())]


def _check_address(host: str) -> None:
    """Raises InvalidInput for a host that is no address of this machine."""
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as found:
            found.bind(address)
    except (OSError, ValueError):  # names of labels that are too long are no Unicode, says Python
        raise InvalidInput(
            f"--host is {host!r}, no address of this machine: 127.0.0.1 is for you alone, 0.0.0.0 for all"
        ) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
