"""Starting the dashboard: options that are safe, one line where it cannot start, and files that the wheel carries."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from capacity_app.launch import ENTRY, PASSWORD, server_command
from capacity_app.pages import PAGES, PRESETS

from capacity.base.errors import InvalidInput
from capacity.cli.main import main
from capacity.service.addresses import check_secret
from capacity.service.guard import ANY_ADDRESS, allowed_names

APP = Path(__file__).parents[2] / "app"


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["capacity", "dashboard", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_it_is_safe_by_default() -> None:
    command = server_command(port=1234, host="127.0.0.1")
    for option in (
        "--server.address=127.0.0.1",
        "--server.port=1234",
        "--server.enableXsrfProtection=true",
        "--server.enableCORS=true",
        "--server.maxUploadSize=50",
        "--server.allowedHosts=127.0.0.1",
        "--server.headless=true",
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
    assert (
        said == "InvalidInput: the dashboard requires streamlit; run pip install 'llm-capacity[dashboard]'\n"
    )


def test_every_page_and_example_is_there() -> None:
    names = [page.name for page in PAGES]
    assert all(page.path.is_file() for page in PAGES)
    assert {path.stem for path in PAGES[0].path.parent.glob("[!_]*.py")} == set(names)
    assert {link.partition("?")[0] for link in PRESETS.values()} <= set(names)


@pytest.mark.parametrize(
    "host", ["", "unix:///x", "nowhere.invalid", "x" * 300, "{", "\x1b[31m", "203.0.113.7"]
)
def test_a_host_that_is_no_address_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="not an address of this machine"):
        server_command(port=8501, host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0"])
def test_other_machines_need_a_password(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)
    assert run(monkeypatch, "--host", host) == 2
    said = capsys.readouterr().err
    assert f"--host {host} accepts connections from other machines, but no password is set" in said
    assert "Traceback" not in said
    assert run(monkeypatch, "--host", host, "--password", "short") == 2
    assert "--password has 5 characters" in capsys.readouterr().err


def test_this_machine_needs_none_and_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("127.0.0.1", "localhost", "127.1"):
        check_secret(host, None, flag="--password", variable=PASSWORD, port=1)
    check_secret("0.0.0.0", "long enough", flag="--password", variable=PASSWORD, port=1)
    began: list[dict[str, str]] = []

    class Started(Exception):
        pass

    def started(_: object, env: dict[str, str]) -> None:
        began.append(env)
        raise Started

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setenv(PASSWORD, "of the environment")
    for words in ((), ("--password", "of the line")):
        monkeypatch.setattr(sys, "argv", ["capacity", "dashboard", *words])
        with pytest.raises(Started):
            main()
    assert [env[PASSWORD] for env in began] == ["of the environment", "of the line"]


@pytest.mark.parametrize(
    ("host", "others", "named"),
    [
        ("127.0.0.1", (), {"localhost", "127.0.0.1", "::1"}),
        (
            "192.0.2.7",
            ("Plan.Example.com",),
            {"localhost", "127.0.0.1", "::1", "192.0.2.7", "plan.example.com"},
        ),
    ],
)
def test_the_names_it_goes_by(host: str, others: tuple[str, ...], named: set[str]) -> None:
    assert set(allowed_names(host, others)) == named


def test_on_every_address_it_goes_by_any_and_by_the_machines_name() -> None:
    assert {ANY_ADDRESS, socket.gethostname().lower(), "localhost"} <= set(allowed_names("0.0.0.0"))
