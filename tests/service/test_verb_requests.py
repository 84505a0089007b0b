"""Requests as JSON: the library's answers, inline content in place of files, and no file of the machine is read."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import capacity
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, Traffic
from capacity.model.presets import _PRESETS
from capacity.report.tables import render
from capacity.service.verb_requests import FILE_OPTIONS, answer_json, request_schema, served_verbs

LOAD = {"gpu": "h100", "batch_size": 8, "input_len": 1000, "output_len": 100}
MODEL = {"model": "llama-3.1-8b"}
CONFIG = json.loads((_PRESETS / "llama-3.1-8b.json").read_bytes())["config"]
RESULT = {
    "backend": "vllm", "model_id": "llama-3.1-8b", "num_prompts": 4, "request_rate": 2.0, "burstiness": 1.0,
    "max_concurrency": None, "duration": 2.9, "completed": 4, "failed": 0, "total_input_tokens": 2900,
    "total_output_tokens": 400, "request_throughput": 1.38, "output_throughput": 138.0, "mean_ttft_ms": 47.0,
    "mean_tpot_ms": 7.9, "input_lens": [500, 700, 900, 800], "output_lens": [100, 100, 100, 100],
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = {
    "fit": {**MODEL, "gpu": "h100"},
    "cost": {**MODEL, **LOAD, "price": "2"},
    "simulate": {
        **MODEL,
        "gpu": "h100",
        "input_len": 100,
        "output_len": 10,
        "request_rate": 5,
        "num_prompts": 5,
    },
    "kv": {"models": ["llama-3.1-8b"]},
    "diff": {"first": {}, "second": {}},
    "compare": {"results": [RESULT], "gpu": "h100"},
    "plan": {**MODEL, "gpus": ["h100"], "input_len": 100, "output_len": 10, "request_rate": 1, "max_gpus": 1},
}
_opened: list[str] = []
_hooked = False


def answer(verb: str, **options: Any) -> Any:
    return json.loads(answer_json(verb, json.dumps(options).encode()))


@pytest.fixture
def opened() -> list[str]:
    """Paths that this process opens from now on."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(lambda event, what: _opened.append(str(what[0])) if event == "open" else None)
    _opened.clear()
    return _opened


@pytest.mark.parametrize("name", ["input-len", "input_len"])
def test_answer_is_the_json_of_the_command_line(name: str) -> None:
    options = {**LOAD, name: 1000}
    expected = json.loads(render(capacity.estimate("llama-3.1-8b", **LOAD), "json"))
    assert (
        answer(
            "estimate", **MODEL, **{key: options[key] for key in options if key == name or key != "input_len"}
        )
        == expected
    )


def test_every_request_schema_names_the_options_that_a_verb_requires() -> None:
    required = {verb: request_schema(verb)["required"] for verb in served_verbs()}
    assert required["plan"] == ["model"]
    assert sorted(required["compare"]) == ["gpu", "results"]
    properties = request_schema("estimate")["properties"]
    assert {*Pool.model_fields, *Traffic.model_fields} <= properties.keys()
    assert properties["input_len"]["type"] == ["integer", "string"]
    assert properties.keys().isdisjoint({"profiles", "download", "progress"})
    assert "profiles" in request_schema("estimate", local=True)["properties"]


def test_model_and_deployment_may_be_objects() -> None:
    named = answer("estimate", **MODEL, **LOAD)
    inline = answer("estimate", model=CONFIG, **LOAD)
    assert inline["ttft_s"] == named["ttft_s"]
    traffic = {name: LOAD[name] for name in ("batch_size", "input_len", "output_len")}
    whole = {"schema": "capacity/deployment/v1", **MODEL, "pools": [{"gpu": "h100"}], "traffic": traffic}
    assert answer("estimate", deployment=whole) == named


def test_contents_of_files_are_accepted() -> None:
    assert answer("compare", results=[RESULT], gpu="h100") == answer(
        "compare", results=[json.dumps(RESULT)], gpu="h100"
    )
    trace = [{"timestamp": 0.1 * each, "input_length": 100, "output_length": 10} for each in range(5)]
    run = answer("simulate", **MODEL, gpu="h100", trace=trace)
    assert (run["completed"], run["total_input_tokens"]) == (5, 500)
    with pytest.raises(CapacityError, match=r"^results-1.json: "):
        answer("compare", results=["{}"], gpu="h100")


@pytest.mark.parametrize(
    ("verb", "options", "words"),
    [
        ("fit", {"modl": 1}, "unknown option 'modl'; did you mean 'model'?"),
        ("fit", {**MODEL, "gpu": "h100", "profiles": "/tmp"}, "'profiles' is not accepted in a request"),
        ("simulate", {**MODEL, **LOAD, "scheduler": "/bin/sh"}, "'scheduler' is not accepted in a request"),
        ("curve", {**MODEL, "gpu": "h100", "cluster": "tcp://x:1"}, "'cluster' is not accepted in a request"),
        ("fit", {"model": {"model_type": "llama"}, "gpu": "h100"}, "config.json of the request"),
        ("fit", {"deployment": {"pools": []}}, "model is missing"),
        ("sweep", {}, "no verb 'sweep'"),
    ],
)
def test_bad_request_is_one_line(verb: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(CapacityError) as error:
        answer(verb, **options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def text_options() -> list[tuple[str, str]]:
    """Every option that accepts text, with a cheap verb that has it."""
    found: dict[str, str] = {}
    for verb in BASES:
        for name, schema in request_schema(verb)["properties"].items():
            if "string" in json.dumps(schema) and "enum" not in schema:
                found.setdefault(name, verb)
    return sorted((verb, name) for name, verb in found.items())


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_no_option_reads_a_file_of_the_machine(suffix: str, tmp_path: Path, opened: list[str]) -> None:
    secret = tmp_path / f"secret.{suffix}"
    secret.write_text(json.dumps(CONFIG))
    opened.clear()
    tried = text_options()
    assert len(tried) > 60
    for verb, name in tried:
        value = str(secret)
        options = {**BASES[verb], name: [value] if name in ("results", "models", "gpus") else value}
        with suppress(CapacityError):
            answer_json(verb, json.dumps(options).encode())
    assert str(secret) not in opened
    assert "CAPACITY_READABLE_FOLDERS" not in os.environ


def test_a_client_on_this_machine_names_files(tmp_path: Path, opened: list[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    body = json.dumps({"model": str(path), "gpu": "h100"}).encode()
    assert json.loads(answer_json("fit", body, local=True))["fits"]
    assert str(path) in opened
    assert FILE_OPTIONS
    with pytest.raises(CapacityError, match="no model"):
        answer_json("fit", body)
