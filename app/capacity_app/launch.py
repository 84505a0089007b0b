"""Start the dashboard: streamlit's own command in a process of its own, with options that are safe by default."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from capacity.base.errors import InvalidInput
from capacity_app.guard import HEALTH, LOOPBACK, PASSWORD, names_of

ENTRY = Path(__file__).parent / "entry" / "server.py"
SHORTEST_PASSWORD = 8
START_S = 60.0
THEMES = ("auto", "light", "dark")

# the same stand in app/.streamlit/config.toml, for `streamlit run app/dashboard.py`; a test holds them equal
Section = dict[str, str | int | bool | list[str]]
OPTIONS: dict[str, Section] = {
    "server": {
        "address": "127.0.0.1",
        "allowedHosts": list(LOOPBACK),
        "enableXsrfProtection": True,
        "enableCORS": True,
        "maxUploadSize": 50,
        "fileWatcherType": "none",
        "showEmailPrompt": False,
    },
    "browser": {"gatherUsageStats": False},
    "logger": {"level": "warning", "hideWelcomeMessage": True},
    "client": {"showErrorDetails": "none", "toolbarMode": "viewer"},
    "global": {
        "disableWidgetStateDuplicationWarning": True
    },  # of widgets that a button or the What if box sets
    "theme": {"paddingTop": "4rem"},
    "theme.sidebar": {"paddingTop": "0.5rem"},
}
COLOURS = {"light": {"primaryColor": "#00639A"}, "dark": {"primaryColor": "#56B4E9"}}


def serve(
    *,
    port: int,
    host: str,
    theme: str,
    browser: bool,
    password: str | None = None,
    allow_hosts: Collection[str] = (),
) -> int:
    """Run the dashboard until it is interrupted; its exit code. Raises InvalidInput."""
    command = server_command(port=port, host=host, theme=theme, allow_hosts=allow_hosts)
    check_password(host, password)
    environment = {key: value for key, value in os.environ.items() if key != PASSWORD}
    if password is not None:
        environment[PASSWORD] = password
    address = f"http://{_display_name(host)}:{port}"
    with subprocess.Popen(command, env=environment) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        threading.Thread(target=_announce, args=(address, process, browser), daemon=True).start()
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            return 130
    return 0 if code == -signal.SIGTERM else code


def check_password(host: str, password: str | None) -> None:
    """Raises InvalidInput where other machines can reach an address without a password, or one that is guessed."""
    if password is not None and len(password) < SHORTEST_PASSWORD:
        raise InvalidInput(
            f"--password has {len(password)} characters: must have at least {SHORTEST_PASSWORD}, "
            "because whoever reaches the address may guess"
        )
    if password is None and not _is_loopback(host):
        raise InvalidInput(
            f"--host {host} lets other machines in, and there is no password: set {PASSWORD} or --password; or stay "
            "on 127.0.0.1 and forward the port (ssh -L 8501:127.0.0.1:8501 THIS_MACHINE)"
        )


def server_command(
    *, port: int, host: str, theme: str = "auto", allow_hosts: Collection[str] = ()
) -> list[str]:
    """The words of streamlit's command. Raises InvalidInput without streamlit, and for no theme of that name."""
    if theme not in THEMES:
        raise InvalidInput(f"--theme is {theme!r}: must be one of {', '.join(THEMES)}")
    if importlib.util.find_spec("streamlit") is None:
        raise InvalidInput("the dashboard needs streamlit: pip install 'llm-capacity[dashboard]'")
    _addresses(host)
    names = list(names_of(host, allow_hosts))
    server: Section = {"address": host, "port": port, "headless": True, "allowedHosts": names}
    sections: dict[str, Section] = {**OPTIONS, "server": {**OPTIONS["server"], **server}}
    options = [
        f"--{section}.{name}={str(each).lower() if isinstance(each, bool) else each}"
        for section, values in sections.items()
        for name, value in values.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    options += _theme_options(theme)
    return [sys.executable, "-m", "capacity_app.streamlit_process", "run", str(ENTRY), *options]


def _theme_options(theme: str) -> list[str]:
    """Both themes, so that the browser's wish decides and the menu can switch; or one of them alone."""
    if theme == "auto":
        return [f"--theme.{base}.{k}={v}" for base, values in COLOURS.items() for k, v in values.items()]
    return [f"--theme.base={theme}", *(f"--theme.{k}={v}" for k, v in COLOURS[theme].items())]


def _addresses(host: str) -> list[str]:
    """The addresses that `host` says. Raises InvalidInput where none is this machine's."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM) if host else []
    except (OSError, ValueError):  # names of labels that are too long are no Unicode, says Python
        found = []
    if not any(_can_listen(family, address) for family, *_, address in found):
        raise InvalidInput(
            f"--host is {host!r}, no address of this machine: 127.0.0.1 is for you alone, 0.0.0.0 for all"
        )
    return [str(address[0]) for *_, address in found]


def _can_listen(family: int, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in _addresses(host))


def _display_name(host: str) -> str:
    """What a browser of this machine calls it."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return "localhost"
    return f"[{host}]" if ":" in host else host


def wait_until_up(address: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the dashboard answers; False where it ends before, or takes longer than `START_S`."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(address + HEALTH, timeout=5).close()
            return True
        time.sleep(0.1)
    return False


def _announce(address: str, process: subprocess.Popen[bytes], browser: bool) -> None:
    """Say where it is, and open it there, once it answers."""
    if wait_until_up(address, process):
        print(f"the dashboard is at {address} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(address)
