"""`capacity config`: stored defaults apply where nothing else was given, are reported, and are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

LOAD = ("llama-3.1-8b", "--gpu", "h100", "--input-len", "64", "--output-len", "8", "--concurrency", "1")
NOTE = "note: defaults of `capacity config`: "


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("capacity.cli.user_defaults.user_folder", lambda kind: tmp_path / "user" / kind)
    return tmp_path


def test_stored_default_equals_the_typed_flag_and_is_reported(run: Any) -> None:
    typed = run("estimate", *LOAD, "--engine", "sglang", "--price-tier", "on-demand")
    assert run("config", "engine=sglang", "price-tier=on-demand").code == 0
    stored = run("estimate", *LOAD)
    assert stored.out == typed.out
    assert stored.err == f"{NOTE}--engine sglang --price-tier on-demand\n"
    assert "engine = sglang" in run("config").out


def test_flag_overrides_the_stored_default(run: Any) -> None:
    run("config", "engine=sglang", "price-tier=spot")
    own = run("estimate", *LOAD, "--engine", "vllm", "--price", "2")
    assert "vllm@" in own.out
    assert "given with --price" in own.out
    assert NOTE not in own.err


def test_deployment_file_is_not_changed_by_stored_defaults(run: Any, folder: Path) -> None:
    file = folder / "now.toml"
    run("estimate", *LOAD, "--output", str(file))
    run("config", "engine=sglang")
    from_file = run("estimate", "--deployment", str(file))
    assert "vllm@" in from_file.out
    assert NOTE not in from_file.err


def test_default_reaches_the_flag_of_a_search(run: Any) -> None:
    run("config", "engine=sglang", "confidence=0.6", "price-tier=on-demand")
    command = ("--gpus", "h100", "--input-len", "64", "--output-len", "8", "--request-rate", "1")
    found = run("plan", "llama-3.1-8b", *command, "--slo", "ttft:p95:2s", "--num-prompts", "100")
    assert f"{NOTE}--engines sglang --price-tier on-demand --confidence 0.6" in found.err
    assert "sglang" in found.out


def test_stored_currency_applies_to_every_verb_that_shows_money(run: Any, folder: Path) -> None:
    typed = run("estimate", *LOAD, "--price", "2", "--currency", "EUR=0.5")
    assert "€4.00/h" in typed.out
    assert "amounts in EUR at 0.5 US dollars per EUR (your own rate)" in typed.out
    file = folder / "now.toml"
    run("estimate", *LOAD, "--price", "2", "--output", str(file))
    run("config", "currency=EUR=0.5")
    for stored in (run("estimate", *LOAD, "--price", "2"), run("estimate", "--deployment", str(file))):
        assert "€4.00/h" in stored.out
        assert stored.err == f"{NOTE}--currency EUR=0.5\n"
    assert "£1.00/h" in run("estimate", *LOAD, "--price", "2", "--currency", "GBP=2").out
    assert NOTE not in run("explain", *LOAD).err


def test_currency_does_not_change_json_and_is_repeated_by_the_command_of_the_page(run: Any) -> None:
    asked = ("estimate", *LOAD, "--price", "2", "--format")
    plain = run(*asked, "json")
    run("config", "currency=JPY")
    assert run(*asked, "json").out == plain.out
    assert "--currency JPY</pre>" in run(*asked, "html").out


def test_empty_value_removes_a_default(run: Any) -> None:
    run("config", "engine=sglang")
    assert "engine = not set" in run("config", "engine=").out
    assert "vllm@" in run("estimate", *LOAD).out


@pytest.mark.parametrize(
    "setting",
    [
        "engine=foo",
        "price-tier=cheap",
        "confidence=2",
        "confidence=high",
        "currency=XYZ",
        "currency=EUR=0",
        "gpu=h100",
        "engine",
    ],
)
def test_bad_default_is_rejected_in_one_line_and_not_stored(run: Any, folder: Path, setting: str) -> None:
    code, out, err = run("config", setting)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (folder / "user" / "defaults.toml").exists()


@pytest.mark.parametrize("text", ["engine = ", 'gpu = "h100"', 'engine = "foo"'])
def test_bad_file_of_defaults_is_reported_in_one_line(run: Any, folder: Path, text: str) -> None:
    file = folder / "user" / "defaults.toml"
    file.parent.mkdir()
    file.write_text(text)
    code, out, err = run("estimate", *LOAD)
    assert (code, out, err.count("\n")) == (2, "", 1)
