"""`capacity engines`: the listing as it was, and one load under each with `--compare`."""

from __future__ import annotations

import json
import sys

import pytest

from capacity.cli.main import main

LOAD = ["--gpu", "h100", "--isl", "500", "--osl", "50", "--concurrency", "4"]


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "argv", ["capacity", "engines", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


def test_compare_serves_one_load_under_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--compare", "llama-3.1-8b", *LOAD, "--engines", "vllm,sglang"]
    assert not run([*asked, "--format", "json"], monkeypatch)
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "capacity/engine-comparison/v1"
    assert {row["engine"].split("@")[0] for row in answer["rows"]} == {"vllm", "sglang"}
    assert not run(asked, monkeypatch)
    shown = capsys.readouterr().out
    assert "closed loop of 4 requests, 500 tokens in, 50 out" in shown
    assert "mixed prefill and decode" in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--isl", "3"], "--input-len has no effect without --compare MODEL"),
        (["--engines", "vllm"], "--engines has no effect without --compare MODEL"),
        (["--compare", "llama-3.1-8b", "--isl", "3", "--osl", "3", "--concurrency", "1"], "no GPU"),
        (["--compare", "llama-3.1-8b", *LOAD, "--claims"], "cannot be combined"),
        (["--compare", "llama-3.1-8b", "--gpu", "h100"], "give exactly one of --batch-size"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, monkeypatch)
    assert text in capsys.readouterr().err
