"""Random walk over the dashboard's pages in real browsers: pins, popovers, uploads, edits, searches, back and reload.

`python benchmarks/random_walk.py MINUTES [BROWSERS] [ADDRESS]`, 60 2 for the long form. Without an address it starts a
dashboard. Prints the actions and pages of each browser every 5 minutes, and ends with 1 if a page showed an internal
error, did not settle, or the server logged a traceback.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
sys.path += [str(TESTS), str(TESTS / "app")]
from capacity_app import example_files  # noqa: E402
from capacity_app.error_display import INTERNAL_ERROR  # noqa: E402
from capacity_app.pages import PAGES, PRESETS  # noqa: E402
from playwright.sync_api import Error  # noqa: E402
from screenshots import browser, dashboard_server, open_first_page  # noqa: E402
from test_browser_walk import wait_for_answers  # noqa: E402

REPORT_S = 300.0
CLICK_MS = 5_000
WATCH_ERRORS = """text => {
  window.errorsShown = [];
  new MutationObserver(() => {
    const main = document.querySelector('[data-testid=stMain]');
    if (main && main.innerText.includes(text)) window.errorsShown.push(location.href);
  }).observe(document, { childList: true, subtree: true, characterData: true });
}"""
WHAT_IF = (
    "2xB200 fp8",
    "4xH100 bf16",
    "-tp 2 --request-rate 8",
    "--max-num-seqs 64",
    "llama-3.1-70b 4xh200",
    "?",
)
LINKS = (
    "rate=4&load=arrivals+at+a+rate",
    "model=llama-3.1-70b&tp=4",
    "isl=1e9&tp=9999",
    "side=AAAA",
    "osl=16&gpu=l4",
)


@dataclass
class Walk:
    """What one browser did: actions and pages by name, missed clicks, and errors."""

    seed: int
    actions: Counter[str] = field(default_factory=Counter)
    pages: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def report(self) -> str:
        return (
            f"browser {self.seed}: {self.actions.total():,} actions {dict(self.actions)}, "
            f"{self.pages.total():,} views of {len(self.pages)} pages, "
            f"missed {dict(self.missed)}, {len(self.errors)} errors"
        )


def files(folder: Path) -> list[Path]:
    """Write files for uploads: examples of every kind, a deployment file and files that no page can read."""
    contents = {
        "garbage.json": b'{"a": [1, 2', "empty.csv": b"", "binary.sqlite": bytes(range(256)),
        "deployment.toml": b'model = "llama-3.1-8b"\n[[pools]]\ngpu = "h200"\n',
        "config.json": b'{"model_type": "llama"}',
    }  # fmt: skip
    for example in example_files.EXAMPLES:
        contents |= getattr(example_files, example)()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def enabled(page: Any, role: str, **options: Any) -> list[Any]:
    """Return the visible and enabled controls of this role."""
    return [
        each for each in page.get_by_role(role, **options).all() if each.is_visible() and each.is_enabled()
    ]


class Walker:
    """One browser's page, and the actions of a visitor."""

    def __init__(self, page: Any, address: str, uploads: list[Path], rng: random.Random) -> None:
        self.page, self.address, self.uploads, self.rng = page, address, uploads, rng

    def menu(self) -> None:
        entry = self.rng.choice(PAGES)
        if entry.section:
            self.page.get_by_test_id("stTopNavSection").filter(has_text=entry.section).click()
            self.page.get_by_test_id("stTopNavDropdownLink").filter(has_text=entry.title).first.click()
        else:
            self.page.get_by_test_id("stTopNavLink").filter(has_text=entry.title).click()
        self.page.get_by_role("heading", level=1, name=entry.title, exact=True).wait_for()

    def link(self) -> None:
        example = self.rng.choice(
            [*PRESETS.values(), *(f"{entry.name}?{self.rng.choice(LINKS)}" for entry in PAGES[1:])]
        )
        self.page.goto(f"{self.address}/{example}")

    def back(self) -> None:
        self.page.go_back()
        if self.page.url == "about:blank":
            self.page.go_forward()

    def forward(self) -> None:
        self.page.go_forward()

    def reload(self) -> None:
        self.page.reload()

    def popover(self) -> None:
        self.rng.choice(self.page.get_by_test_id("stPopoverButton").all()).click()
        self.page.get_by_test_id("stPopoverBody").first.wait_for()
        self.page.wait_for_timeout(500)
        if saves := self.page.get_by_test_id("stPopoverBody").get_by_test_id("stDownloadButton").all():
            with self.page.expect_download(timeout=60_000):
                self.rng.choice(saves).get_by_role("button").click()
        self.page.keyboard.press("Escape")

    def pin(self) -> None:
        names = ("Pin this as", "Unpin", "Use the load of")
        found = [each for name in names for each in enabled(self.page, "button", name=name)]
        self.rng.choice(found).click()

    def edit(self) -> None:
        box = self.rng.choice(enabled(self.page, "spinbutton"))
        now = float(box.input_value() or 1)
        box.fill(f"{self.rng.choice([now + 1, now * 2, now / 2, 0, -1, 1]):.0f}")
        box.press("Enter")

    def choose(self) -> None:
        self.rng.choice(enabled(self.page, "radio", checked=False)).click()

    def what_if(self) -> None:
        box = self.page.get_by_role("textbox", name="What if")
        box.fill(self.rng.choice(WHAT_IF))
        box.press("Enter")

    def press(self) -> None:
        found = [
            each
            for each in enabled(self.page, "button")
            if each.get_attribute("data-testid") == "stBaseButton-primary"
        ]
        self.rng.choice(found).click()

    def upload(self) -> None:
        field = self.rng.choice(self.page.locator("input[type=file]").all())
        field.set_input_files(str(self.rng.choice(self.uploads)))

    def select(self) -> None:
        self.rng.choice(enabled(self.page, "combobox")).click()
        self.rng.choice(self.page.get_by_role("option").all()).click()
        self.page.keyboard.press("Escape")  # a list of several choices stays open


WEIGHTS: dict[Callable[[Walker], None], int] = {
    Walker.menu: 10, Walker.link: 3, Walker.back: 3, Walker.forward: 1, Walker.reload: 1, Walker.popover: 4,
    Walker.pin: 3, Walker.edit: 4, Walker.choose: 3, Walker.what_if: 2, Walker.press: 2, Walker.upload: 4,
    Walker.select: 2,
}  # fmt: skip


def walk(address: str, uploads: list[Path], until_s: float, found: Walk) -> None:
    """Walk in one browser until `until_s`. A click on what is not there, or was drawn again, is a missed one."""
    rng = random.Random(found.seed)
    with browser() as chromium:
        page = open_first_page(chromium, "light", 1440, 1000)
        page.set_default_timeout(CLICK_MS)
        page.add_init_script(f"({WATCH_ERRORS})({INTERNAL_ERROR!r})")
        page.on("pageerror", lambda error: found.errors.append(f"{page.url}: {error}"))
        page.goto(address)
        walker = Walker(page, address, uploads, rng)
        while time.monotonic() < until_s and len(found.errors) < 20:
            act = rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
            found.actions[act.__name__] += 1
            try:
                act(walker)
            except (Error, IndexError, ValueError):
                found.missed[act.__name__] += 1
                page.keyboard.press("Escape")
            if rng.random() < 0.7:  # the others go on while the page computes
                try:
                    page.set_default_timeout(120_000)
                    wait_for_answers(page)
                    found.pages[page.locator("h1").first.inner_text()] += 1
                except Error as error:
                    found.errors.append(f"{page.url} after {act.__name__}: {error}")
                    page.goto(address)
                finally:
                    page.set_default_timeout(CLICK_MS)
            try:
                found.errors += [
                    f"{url} after {act.__name__}" for url in page.evaluate("window.errorsShown.splice(0)")
                ]
            except Error:
                found.missed["evaluate"] += 1


def main(minutes: float, browsers: int = 2, address: str = "") -> int:
    """Return the exit code: 1 if a browser or the server's log has an error."""
    until_s = time.monotonic() + 60 * minutes
    walks = [Walk(seed) for seed in range(browsers)]
    with tempfile.TemporaryDirectory() as folder:
        log, uploads = Path(folder, "server.log"), Path(folder, "uploads")
        uploads.mkdir()
        paths = files(uploads)
        with nullcontext(address) if address else dashboard_server(log) as place:
            threads = [threading.Thread(target=walk, args=(place, paths, until_s, found)) for found in walks]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                threads[0].join(REPORT_S)
                print(time.strftime("%H:%M"), *(found.report() for found in walks), sep="\n", flush=True)
                for thread in threads:
                    thread.join(0.0)
        said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    errors = [error for found in walks for error in found.errors]
    print(
        *errors, f"{len(errors)} errors, {said.count('Traceback')} tracebacks in the server's log", sep="\n"
    )
    if "Traceback" in said:
        print(said[-20_000:])
    return 1 if errors or "Traceback" in said else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:4]))
