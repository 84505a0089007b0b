"""Simulate, Cost, Speculation and Validate: numbers are the library's, files are replayed, bad ones are one line."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from capacity_app.error_display import INTERNAL_ERROR
from capacity_app.pages import PRESETS
from capacity_validate.review import review
from long_forms import mostly_slow

import capacity
from capacity.report.display import number_text
from capacity.techniques.speculate import speculate

Open = Callable[..., Any]
MEASUREMENTS = sorted((Path(__file__).parents[2] / "validate" / "measurements").glob("*.jsonl"))
REQUESTS = {"sim_requests": "120", "lengths": "lognormal"}
SIMULATED = {
    "gpu": "h100-sxm-80gb",
    "input_len": 1024,
    "output_len": 256,
    "num_prompts": 120,
    "length_distribution": "lognormal",
    "request_rate": 4.0,
}
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
TRACE = HEADER + "".join(f"2023-11-16 18:15:{i:02d}.500000,{300 + i},{20 + i % 7}\n" for i in range(40))


def figure(opened: Any, title: str) -> dict[str, Any]:
    """The chart whose words begin so."""
    found = [chart.proto for chart in opened.at.get("plotly_chart") if chart.proto.alt.startswith(title)]
    return dict(json.loads(found[0].spec))


def test_a_simulation_is_the_librarys(dashboard: Open) -> None:
    opened = dashboard("simulate", **REQUESTS).settled()
    answer = capacity.simulate("llama-3.1-8b", **SIMULATED, goodput=["ttft:1000", "tpot:50"])
    direct = answer.to_dict()
    assert (
        opened.kpis["p95 TPOT"]
        == f"{number_text(direct['p95_tpot_ms'], answer.predicted_ms['p95_tpot_ms'])} ms"
    )
    assert answer.verdict is not None
    come = f"{answer.verdict.offered_requests_per_s:,.2f}/s"
    assert next(metric.delta for metric in opened.at.metric if metric.label == "Requests/s").endswith(come)
    parts = [trace["name"] for trace in figure(opened, "as configured, all")["data"]]
    assert parts == [*direct["time_parts"]["mean_ms"], "90 % interval"]
    assert {"client", "api server"} <= set(parts)
    assert opened.refusals == []


@pytest.mark.slow
def test_variants_run_on_the_same_arrivals_and_show_beside(dashboard: Open) -> None:
    opened = dashboard("simulate", **REQUESTS)
    opened.at.pills(key="sim_beside").set_value(["static batching", "contiguous KV"]).run()
    opened.settled()
    drawn = figure(opened, "TTFT")
    names = [trace["name"] for trace in drawn["data"] if trace.get("showlegend", True)]
    assert names == ["as configured", "static batching", "contiguous KV"]
    static = capacity.simulate("llama-3.1-8b", **SIMULATED, scheduling="static")
    assert max(drawn["data"][2]["x"]) == pytest.approx(np.nanmax(static.run.records.latency_s("ttft")) * 1e3)


def test_a_simulation_can_be_sent_between_processes() -> None:
    answer = capacity.simulate("llama-3.1-8b", **SIMULATED)
    assert pickle.loads(pickle.dumps(answer)).to_dict() == answer.to_dict()


@pytest.mark.parametrize(("name", "packed"), [("trace.csv", False), ("trace.csv.gz", True)])
def test_an_uploaded_trace_is_replayed(dashboard: Open, name: str, packed: bool) -> None:
    opened = dashboard("simulate", sim_arrivals="a trace")
    raw = TRACE.encode()
    upload(opened, "sim_trace", name, gzip.compress(raw) if packed else raw)
    opened.settled()
    assert opened.refusals == [] or "short" in opened.refusals[0]  # the verdict may be: too short to tell
    assert "40 completed" in next(metric.delta for metric in opened.at.metric if metric.label == "Requests/s")


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\x00", b"a,b\n1,2\n", HEADER.encode() + b"x,-1,1e400\n", b"\x1f\x8b broken"]
)
def test_a_hostile_trace_is_one_line(dashboard: Open, content: bytes) -> None:
    opened = dashboard("simulate", sim_arrivals="a trace")
    upload(opened, "sim_trace", "../../etc/passwd.csv", content)
    opened.settled()
    assert not opened.at.exception
    assert len(opened.refusals) == 1
    assert INTERNAL_ERROR not in opened.refusals
    assert "\n" not in opened.refusals[0]
    assert "uploads" not in opened.refusals[0]  # where the server keeps it


def upload(opened: Any, key: str, name: str, content: bytes) -> None:
    """Give a file to the page."""
    opened.at.file_uploader(key=key).upload(name, content, "application/octet-stream").run()


def test_steps_are_recorded_on_request(dashboard: Open) -> None:
    opened = dashboard("simulate", sim_requests="30", lengths="lognormal").settled()
    opened.at.button(key="run_timeline").click().run()
    opened.settled()
    drawn = [c.proto.alt for c in opened.at.get("plotly_chart") if "steps:" in c.proto.alt]
    steps = capacity.simulate("llama-3.1-8b", **{**SIMULATED, "num_prompts": 30}).to_dict()["steps"]
    assert drawn[0].startswith(f"{steps:,} steps")


def test_no_price_is_said_and_not_guessed(dashboard: Open) -> None:
    opened = dashboard("cost", tier="none")
    assert opened.kpis == {}
    assert "No price" in opened.at.info[0].value


@pytest.mark.slow
def test_curve_and_tornado_are_drawn_on_request(dashboard: Open) -> None:
    opened = dashboard(
        "cost", cost_requests="400", cost_peak="500", model="qwen3-8b", isl="64", osl="8"
    ).settled()
    for key in ("run_curve", "run_tornado"):
        opened.at.button(key=key).click().run()
        opened.settled()
    asked = {
        "gpu": "h100-sxm-80gb",
        "input_len": 64,
        "output_len": 8,
        "num_prompts": 400,
        "price_tier": "on-demand",
    }
    curve = capacity.curve(
        "qwen3-8b",
        slo=("ttft:p95:1000ms", "tpot:p95:50ms"),
        peak_rate=500.0,
        requests_per_user_hour=6.0,
        **{name: value for name, value in asked.items() if name != "request_rate"},
    )
    assert f"knee at {curve.knee_per_s:,.2f} requests/s" in " ".join(p.alt for p in opened.pictures())
    tornado = capacity.tornado("qwen3-8b", request_rate=4.0, **asked)
    rows = figure(opened, "$ per ")["data"]
    shown = {name: change for trace in rows for name, change in zip(trace["y"], trace["x"], strict=True)}
    assert set(shown) == {swing.input for swing in tornado.swings}


def test_speculation_is_the_librarys(dashboard: Open) -> None:
    opened = dashboard("speculation", spec_batch="16", spec_known="my own", spec_acceptance="0.6").settled()
    direct = speculate(
        "llama-3.1-8b", gpu="h100-sxm-80gb", method="eagle3", draft_tokens=3, acceptance="0.6", batches=(16,)
    )
    assert opened.kpis["Times as fast at batch 16"] == f"{direct.rows[0].speedup:.2f}"
    grid = figure(opened, "k = 1")["data"]
    three = next(trace for trace in grid if trace["name"] == "k = 3")
    assert three["y"][three["x"].index(0.6)] == pytest.approx(direct.rows[0].speedup)
    assert opened.refusals == []


@pytest.mark.skipif(not MEASUREMENTS, reason="no evidence in this checkout")
def test_evidence_is_judged_as_the_library_judges_it(dashboard: Open) -> None:
    opened = dashboard("validate")
    upload(opened, "val_files", "measured.jsonl", MEASUREMENTS[0].read_bytes())
    opened.settled()
    found = review([MEASUREMENTS[0]])
    for c in found.classes:
        if c.after_median is not None:
            assert opened.kpis[f"Error, {c.family}"] == f"{c.after_median:.1%}"
    assert opened.refusals == []
    assert "Printable page" in [button.proto.label for button in opened.at.get("download_button")]


def test_hostile_evidence_is_one_line(dashboard: Open) -> None:
    opened = dashboard("validate")
    upload(opened, "val_files", "x.jsonl", b'{"schema": "![x](http://e.com)", "cases": [{"a": NaN}]}')
    opened.settled()
    assert not opened.at.exception
    assert len(opened.refusals) == 1
    assert INTERNAL_ERROR not in opened.refusals


@pytest.mark.parametrize("link", mostly_slow(list(PRESETS.values()), list(PRESETS.values())[:1]))
def test_every_example_leads_to_an_answer(dashboard: Open, link: str) -> None:
    page, _, query = link.partition("?")
    opened = dashboard(page, **dict(parse_qsl(query))).settled()
    assert not opened.at.exception
    assert all(line.startswith("static batching") for line in opened.refusals)  # it is overloaded: the point
    assert opened.kpis or page in ("plan", "stack", "fleet")  # a button begins what takes long
