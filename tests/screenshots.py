"""Screenshots of every page in both themes and on a phone: `python tests/screenshots.py [FOLDER]`.

The default folder is docs/screenshots. Needs playwright, and Chromium on the path or in the variable CHROMIUM.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urljoin

from capacity_app.launch import START_S, server_command, wait_until_up

from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput

DATA = Path(__file__).parent / "data"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb")
READY_MS = 60_000
LEFT = "/_stcore/health"  # of the same server, and empty
WIDTH, HEIGHT, MAX_HEIGHT = 1280, 900, 1700
PHONE = 390
COLOURS = 256  # palette size: a third of the bytes without a visible difference
Theme = Literal["light", "dark"]


@dataclass(frozen=True)
class Screenshot:
    """One screenshot; `screenshots.toml` documents the fields."""

    name: str
    path: str
    upload: str = ""
    click: str = ""
    what_if: str = ""
    until: str = ""


@cache
def example_file(kind: str) -> Path:
    """Write an example of the dashboard, `trace` or `sweep`, and return its path."""
    from capacity_app import example_files

    ((name, content),) = getattr(example_files, f"example_{kind}")().items()
    path = Path(tempfile.mkdtemp(prefix="capacity-example-")) / name
    path.write_bytes(content)
    return path


EXAMPLES = ("trace", "sweep")
SCREENSHOTS = tuple(read_rows(DATA / "screenshots.toml", Screenshot).values())


def chromium_path() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def dashboard_server(log: Path | None = None) -> Iterator[str]:
    """Run the dashboard on a free port and yield its address. Raises InvalidInput."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = server_command(port=port, host="127.0.0.1")
    with (
        (log or Path(os.devnull)).open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            if not wait_until_up(f"http://127.0.0.1:{port}", process):
                raise InvalidInput(f"the dashboard did not start within {START_S:.0f} s")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a headless Chromium. Raises InvalidInput if none is installed."""
    path = chromium_path()
    if path is None:
        raise InvalidInput(
            f"Chromium not found; install one of {', '.join(BROWSERS)}, or set CHROMIUM to its path"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(BROWSER_ARGUMENTS))
        try:
            yield chromium
        finally:
            chromium.close()


def open_page(browser: Any, theme: Theme = "light", width: int = WIDTH, height: int = HEIGHT) -> Any:
    """Return a browser page with a fixed locale: one that was left, which has compiled the scripts, or a new one."""
    contexts = browser.contexts or [browser.new_context(locale="en-US", timezone_id="UTC")]
    contexts[0].set_default_timeout(READY_MS)
    left = [page for page in contexts[0].pages if page.url.endswith(LEFT)]
    page = left[0] if left else contexts[0].new_page()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=theme)
    return page


def open_first_page(browser: Any, theme: Theme = "light", width: int = WIDTH, height: int = HEIGHT) -> Any:
    """Open a page that shares nothing with those before; `page.context.close()` ends it."""
    looks = {"color_scheme": theme, "viewport": {"width": width, "height": height}}
    context = browser.new_context(locale="en-US", timezone_id="UTC", **looks)
    context.set_default_timeout(READY_MS)
    return context.new_page()


def leave_page(page: Any) -> None:
    """End a page's session, and keep the page for the next one: its scripts take 3 s of CPU time in a new one."""
    page.goto(urljoin(page.url, LEFT))


def wait_until_drawn(page: Any) -> None:
    """Wait until streamlit has drawn everything."""
    page.get_by_test_id("stApp").wait_for()
    page.wait_for_function(
        "() => { const app = document.querySelector('[data-testid=stApp]');"
        " return app && app.getAttribute('data-test-script-state') === 'notRunning'"
        " && !document.querySelector('[data-testid=stSkeleton]')"
        " && !document.querySelector('[data-stale=true]'); }"
    )


def take_screenshot(
    browser: Any, address: str, shot: Screenshot, theme: Theme, folder: Path, *, width: int = WIDTH
) -> Path:
    """Take one screenshot of the whole page at desktop or phone width, and return its path."""
    from PIL import Image

    page = open_page(browser, theme, width)
    page.goto(address + shot.path)
    wait_until_drawn(page)
    if shot.upload:
        file = example_file(shot.upload) if shot.upload in EXAMPLES else shot.upload
        page.locator("input[type=file]").first.set_input_files(str(file))
    if shot.click:
        page.get_by_role("button", name=shot.click, exact=True).first.click()
    if shot.what_if:
        page.get_by_role("button", name="Pin this as A").click()
        page.get_by_role("button", name="Unpin A").wait_for()
        box = page.get_by_role("textbox", name="What if")
        box.fill(shot.what_if)
        box.press("Enter")
    if shot.until:
        page.get_by_text(shot.until).first.wait_for()
    wait_until_drawn(page)
    page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
    page.wait_for_timeout(1000)  # charts are animated
    whole = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": width, "height": min(max(HEIGHT, int(whole)), MAX_HEIGHT)})
    page.wait_for_timeout(500)
    path = folder / f"{shot.name}-{theme if width == WIDTH else 'phone'}.png"
    page.screenshot(path=str(path))
    leave_page(page)
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    return path


def main(arguments: Sequence[str]) -> int:
    """Take all screenshots; `arguments`: the folder, then optionally the names of screenshots, to take only these."""
    folder = Path(arguments[0]) if arguments else Path("docs/screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [shot for shot in SCREENSHOTS if not arguments[1:] or shot.name in arguments[1:]]
    try:
        with dashboard_server() as address, browser() as chromium:
            for shot in wanted:
                for theme in ("light", "dark"):
                    print(take_screenshot(chromium, address, shot, theme, folder))
                print(take_screenshot(chromium, address, shot, "light", folder, width=PHONE))
    except InvalidInput as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
