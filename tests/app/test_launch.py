"""Starting the dashboard: options that are safe, one line where it cannot start, and files that the wheel carries."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest
from capacity_app.launch import COLOURS, ENTRY, OPTIONS, server_command
from capacity_app.pages import PAGES
from capacity_app.presets import PRESETS

from capacity.base.errors import InvalidInput
from capacity.cli.main import main

APP = Path(__file__).parents[2] / "app"


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["capacity", "dashboard", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_checkouts_options_are_the_commands() -> None:
    written = tomllib.loads((APP / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    flat = {
        f"{section}.{name}": value
        for section, values in written.items()
        for name, value in values.items()
        if not isinstance(value, dict)
    }
    flat |= {
        f"theme.{part}.{name}": value
        for part, values in written["theme"].items()
        if isinstance(values, dict)
        for name, value in values.items()
    }
    expected = {
        f"{section}.{name}": value for section, values in OPTIONS.items() for name, value in values.items()
    }
    expected |= {
        f"theme.{base}.{name}": value for base, values in COLOURS.items() for name, value in values.items()
    }
    assert flat == expected


def test_it_is_safe_by_default() -> None:
    command = server_command(port=1234, host="127.0.0.1")
    for option in (
        "--server.address=127.0.0.1",
        "--server.port=1234",
        "--server.enableXsrfProtection=true",
        "--server.enableCORS=true",
        "--server.maxUploadSize=50",
        "--browser.gatherUsageStats=false",
        "--client.showErrorDetails=none",
    ):
        assert option in command
    assert str(ENTRY) in command


@pytest.mark.parametrize(
    ("theme", "option"), [("dark", "--theme.base=dark"), ("light", "--theme.base=light")]
)
def test_a_theme_can_be_fixed(theme: str, option: str) -> None:
    assert option in server_command(port=1, host="127.0.0.1", theme=theme)
    assert option not in server_command(port=1, host="127.0.0.1")


def test_what_cannot_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--theme", "pink") == 2
    assert capsys.readouterr().err == "InvalidInput: --theme is 'pink': must be one of auto, light, dark\n"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert run(monkeypatch) == 2
    said = capsys.readouterr().err
    assert said == "InvalidInput: the dashboard needs streamlit: pip install 'llm-capacity[dashboard]'\n"


def test_every_page_and_example_is_there() -> None:
    names = [page.name for page in PAGES]
    assert all(page.path.is_file() for page in PAGES)
    assert {path.stem for path in PAGES[0].path.parent.glob("[!_]*.py")} == set(names)
    assert {preset.page for preset in PRESETS} <= set(names)


@pytest.mark.parametrize("host", ["nowhere.invalid", "x" * 300, "{", "\x1b[31m", "203.0.113.7"])
def test_a_host_that_is_no_address_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="no address of this machine"):
        server_command(port=8501, host=host)
