"""Start the dashboard: run streamlit in its own process, with secure default options."""

import importlib.util
import os
import signal
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
from capacity.service.addresses import check_secret, display_name, resolve_host
from capacity.service.guard import HEALTH, allowed_names

ENTRY = Path(__file__).parent / "entry" / "server.py"
PASSWORD = "CAPACITY_DASHBOARD_PASSWORD"  # environment variable
START_S = 60.0
THEMES = ("auto", "light", "dark")

CONFIG = Path(".streamlit") / "config.toml"


def streamlit_options() -> dict[str, Any]:
    """Read streamlit's options by section, from the configuration file of `streamlit run app/dashboard.py`."""
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
    check_secret(host, password, flag="--password", variable=PASSWORD, port=port)
    environment = {key: value for key, value in os.environ.items() if key != PASSWORD}
    if password is not None:
        environment[PASSWORD] = password
    address = f"http://{display_name(host)}:{port}"
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


def server_command(
    *, port: int, host: str, theme: str = "auto", allow_hosts: Collection[str] = ()
) -> list[str]:
    """Return the command that starts streamlit. Raises InvalidInput for missing streamlit or an unknown theme."""
    if theme not in THEMES:
        raise InvalidInput(f"--theme is {theme!r}: must be one of {', '.join(THEMES)}")
    if importlib.util.find_spec("streamlit") is None:
        raise InvalidInput("the dashboard requires streamlit; run pip install 'llm-capacity[dashboard]'")
    resolve_host(host)
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
