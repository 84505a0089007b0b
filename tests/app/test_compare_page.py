"""Your benchmark: the page's figures are the library's and the copied command's, on the user's own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capacity_app.error_display import INTERNAL_ERROR, escape_except_code, escape_markdown, replace_flags
from capacity_validate import compare
from capacity_validate.comparison_page import error_text, metric_rows, metric_title, predicted_texts
from copied_commands import printed

Open = Callable[..., Any]
RESULT: dict[str, Any] = {
    "backend": "vllm",
    "endpoint_type": "openai",
    "model_id": "llama-3.1-8b",
    "num_prompts": 2,
    "request_rate": 1.0,
    "max_concurrency": None,
    "duration": 3.0,
    "completed": 2,
    "total_input_tokens": 300,
    "total_output_tokens": 20,
    "input_lens": [100, 200],
    "output_lens": [10, 10],
    "start_times": [0.0, 1.0],
    "ttfts": [0.3, 0.3],
    "itls": [[0.01] * 9, [0.01] * 9],
    "request_throughput": 0.67,
    "mean_ttft_ms": 300.0,
    "mean_tpot_ms": 10.0,
    "output_throughput": 6.7,
}
WITHOUT = {
    name: value
    for name, value in RESULT.items()
    if name not in ("input_lens", "output_lens", "itls", "ttfts")
}


def given(dashboard: Open, files: dict[str, bytes], **query: str) -> Any:
    """The page with these files."""
    opened = dashboard("compare", **query)
    place = opened.at.file_uploader(key="cmp_results")
    for name, content in files.items():
        place.upload(name, content, "application/json")
    place.run()
    return opened.settled()


def test_page_library_and_copied_command_agree(
    dashboard: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.dumps(RESULT).encode()
    opened = given(dashboard, {"result.json": content}, gpu="l40s-48gb", weights="fp8")
    (tmp_path / "result.json").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    direct = compare(["result.json"], model="llama-3.1-8b", gpu="l40s-48gb", quantization="fp8")
    (run,) = direct.runs
    assert run.causes
    assert opened.refusals == [
        escape_except_code(replace_flags(f"Likely cause: {cause}")) for cause in run.causes
    ]
    shown = opened.at.dataframe[0].value
    assert shown.to_dict("records") == metric_rows(run.metrics)
    assert opened.at.info[0].value == escape_markdown(direct.verdict)
    for label, name in (
        ("TTFT", "mean_ttft_ms"),
        ("TPOT", "mean_tpot_ms"),
        ("Tokens/s", "output_throughput"),
    ):
        assert opened.kpis[f"{label} error"] == error_text(run.error(name))
        row = next(row for row in run.metrics if row.name == name)
        below = next(kpi.delta for kpi in opened.at.metric if kpi.label == f"{label} error")
        assert f"predicted {' ('.join(predicted_texts(row))})" in below
        assert below.endswith("inside") is row.inside
    by_command = json.loads(printed(f"{opened.code('shell')} --format json", monkeypatch, capsys))
    assert by_command == json.loads(json.dumps(direct.to_dict()))
    found: dict[str, Any] = {}
    exec(opened.code("python"), found)
    assert found["answer"] == direct


def test_what_a_file_lacks_is_said_and_can_come_from_the_sidebar(dashboard: Open) -> None:
    content = json.dumps(WITHOUT).encode()
    lacking = given(dashboard, {"result.json": content})
    assert len(lacking.refusals) == 1
    assert "lengths of its requests" in lacking.refusals[0]
    assert "uploads" not in lacking.refusals[0]
    filled = given(
        dashboard,
        {"result.json": content, "again.json": content + b" "},
        cmp_lengths="true",
        isl="150",
        osl="10",
        cmp_arrivals="by concurrency",
        concurrency="2",
    )
    assert "Over 2 run" in filled.at.info[0].value
    assert "--input-len 150 --output-len 10" in " ".join(filled.code("shell").replace("\\\n", " ").split())
    assert "--concurrency 2" in filled.code("shell")
    begun = [heading.value.partition(escape_markdown(":"))[0] for heading in filled.at.subheader]
    assert begun == [escape_markdown("result.json"), escape_markdown("again.json")]


@pytest.mark.parametrize("content", [b"{}", b"\x00\xff", b'{"backend": "![x](http://e.com)"}'])
def test_a_hostile_result_is_one_line(dashboard: Open, content: bytes) -> None:
    opened = given(dashboard, {"../../etc/x.json": content})
    assert not opened.at.exception
    assert len(opened.refusals) == 1
    assert INTERNAL_ERROR not in opened.refusals
    assert "\n" not in opened.refusals[0]
    assert "](http" not in opened.refusals[0]


def test_a_metric_is_named_as_people_say_it_and_nothing_is_less_than_zero_by_nothing() -> None:
    assert metric_title("p95_ttft_ms") == "p95 TTFT, ms"
    assert metric_title("output_throughput") == "output tokens/s"
    assert [error_text(error) for error in (-0.0001, 0.00049, -0.123, None)] == [
        "+0.0 %",
        "+0.0 %",
        "-12.3 %",
        "-",
    ]
