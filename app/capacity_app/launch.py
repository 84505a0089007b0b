"""Start the dashboard: run streamlit in its own process, with secure default options."""

import importlib.util
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
import webbrowser
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from capacity.base.errors import InvalidInput
from capacity_app.guard import HEALTH, PASSWORD, allowed_names

ENTRY = Path(__file__).parent / "entry" / "server.py"
SHORTEST_PASSWORD = 8
START_S = 60.0
THEMES = ("auto", "light", "dark")

CONFIG = Path(".streamlit") / "config.toml"


def streamlit_options() -> dict[str, Any]:
    """Read a dict of streamlit's options per section from the file that `streamlit run app/dashboard.py` uses."""
    package = Path(__file__).parent
    inside = package / CONFIG
    return tomllib.loads(
        (inside if inside.is_file() else package.parent / CONFIG).read_text(encoding="utf-8")
    )


def serve(
    *,
    port: int,
    host: str,
    theme: str,
    browser: bool,
    password: str | None = None,
    allow_hosts: Collection[str] = (),
) -> int:
    """Run the dashboard until it is interrupted, and return its exit code. Raises InvalidInput."""
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
    """Raise InvalidInput for a public address without a password, or for a short password."""
    if password is not None and len(password) < SHORTEST_PASSWORD:
        raise InvalidInput(
            f"--password has {len(password)} characters, must have at least {SHORTEST_PASSWORD}, "
            "because others who can reach the address could guess it"
        )
    addresses = () if password is not None else _resolve_host(host)
    if not all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses):
        raise InvalidInput(
            f"--host {host} accepts connections from other machines, but no password is set; set {PASSWORD} or "
            "--password, or use 127.0.0.1 and forward the port (ssh -L 8501:127.0.0.1:8501 THIS_MACHINE)"
        )


def server_command(
    *, port: int, host: str, theme: str = "auto", allow_hosts: Collection[str] = ()
) -> list[str]:
    """Return the command that starts streamlit. Raises InvalidInput for missing streamlit or an unknown theme."""
    if theme not in THEMES:
        raise InvalidInput(f"--theme is {theme!r}: must be one of {', '.join(THEMES)}")
    if importlib.util.find_spec("streamlit") is None:
        raise InvalidInput("the dashboard requires streamlit; run pip install 'llm-capacity[dashboard]'")
    _resolve_host(host)
    sections = streamlit_options()
    names = list(allowed_names(host, allow_hosts))
    sections["server"] |= {"address": host, "port": port, "headless": True, "allowedHosts": names}
    if theme != "auto":  # auto keeps both themes: the browser's preference decides, and the menu can switch
        both = {base: sections["theme"].pop(base) for base in THEMES[1:]}
        sections["theme"] |= {"base": theme, **both[theme]}
    options = [f"--{option}" for option in _option_words(sections)]
    return [sys.executable, "-m", "capacity_app.streamlit_process", "run", str(ENTRY), *options]


def _option_words(value: Any, name: str = "") -> Iterator[str]:
    """Yield `section.name=value` for each option; an option with a list yields one for each element."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _option_words(each, f"{name}.{key}" if name else key)
    else:
        for each in value if isinstance(value, list) else [value]:
            yield f"{name}={str(each).lower() if isinstance(each, bool) else each}"


def _resolve_host(host: str) -> list[str]:
    """Return the addresses of `host`. Raises InvalidInput if none belongs to this machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM) if host else []
    except (OSError, ValueError):  # Python raises UnicodeError for names with too long labels
        found = []
    if not any(_can_listen(family, address) for family, *_, address in found):
        raise InvalidInput(
            f"--host is {host!r}, which is not an address of this machine; use 127.0.0.1 for local access only, or "
            "0.0.0.0 for access from other machines"
        )
    return [str(address[0]) for *_, address in found]


def _can_listen(family: int, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _display_name(host: str) -> str:
    """Return the host name for a URL that is opened on this machine."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return "localhost"
    return f"[{host}]" if ":" in host else host


def wait_until_up(address: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the dashboard answers; return False if its process ends or it does not answer within `START_S`."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(address + HEALTH, timeout=5).close()
            return True
        time.sleep(0.1)
    return False


def _announce(address: str, process: subprocess.Popen[bytes], browser: bool) -> None:
    """Print the address as soon as the dashboard answers; if `browser` is set, open it."""
    if wait_until_up(address, process):
        print(f"the dashboard is at {address} (press Ctrl-C to stop it)", flush=True)
        if browser:
            webbrowser.open(address)
