"""The frontier on the Estimate page: the library's lines, and links that open each deployment."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest

import capacity
from capacity.report.display import rate_and_interval

Open = Callable[..., Any]
FEW = {"view": "frontier", "front_gpus": "h100-sxm-80gb", "model": "qwen3-8b"}


def links(opened: Any) -> list[str]:
    """Where the frontier's links lead, without the one to measured runs."""
    shown = "".join(str(element.proto.body) for element in opened.at.main.get("html"))
    return [html.unescape(found) for found in re.findall(r'href="(estimate[^"]+)"', shown)]


def test_lines_are_the_librarys_and_each_best_opens(dashboard: Open) -> None:
    opened = dashboard("estimate", **FEW, isl="2048").settled()
    assert opened.refusals == []
    found = capacity.frontier(
        "qwen3-8b",
        gpus=("h100-sxm-80gb",),
        quantizations=(None, "fp8"),
        input_len=2048,
        output_len=256,
        price_tier="on-demand",
    )
    figure = json.loads(opened.at.get("plotly_chart")[0].proto.spec)
    lines = [trace["y"] for trace in figure["data"] if trace.get("customdata")]
    assert lines == [[p.output_tokens_per_s_per_gpu.value for p in line.points] for line in found.lines]
    offered = links(opened)
    assert len(offered) == 2
    query = {key: values[0] for key, values in parse_qs(offered[0].partition("?")[2]).items()}
    there = dashboard("estimate", **query).settled()
    assert there.refusals == []
    line = next(each for each in found.lines if each.quantization == query.get("weights", "fp8"))
    best = line.best(0.025)
    assert best is not None
    assert there.kpis["per GPU"] == rate_and_interval(best.output_tokens_per_s_per_gpu)[0]
    assert there.inputs()["isl"].value == 2048


@pytest.mark.slow
def test_a_limit_that_none_meets_offers_none(dashboard: Open) -> None:
    opened = dashboard("estimate", **FEW, front_tpot="0.2").settled()
    assert opened.refusals == []
    assert links(opened) == []


@pytest.mark.slow
def test_no_choice_is_one_line(dashboard: Open) -> None:
    opened = dashboard("estimate", **FEW)
    opened.at.multiselect(key="front_gpus").set_value([]).run()
    opened.settled()
    assert not opened.at.exception
    assert len(opened.refusals) == 1
