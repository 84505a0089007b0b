"""Service levels: what is written, what it means, and what attains it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, UnknownName
from capacity.workload import Slo, parse_slos


@pytest.mark.parametrize(
    ("text", "metric", "percentile", "limit_s"),
    [
        ("ttft:p95:500ms", "ttft", 95, 0.5),
        ("tpot:p99:50ms", "tpot", 99, 0.05),
        ("e2el:p90:10s", "e2el", 90, 10),
        ("itl:p99.9:80ms", "itl", 99.9, 0.08),
        ("ttft:median:1.5s", "ttft", 50, 1.5),
        ("ttft:500", "ttft", None, 0.5),  # vLLM's --goodput: milliseconds
        ("tpot:50ms", "tpot", None, 0.05),
        ("e2e:2min", "e2el", None, 120),
        (" TTFT:P95:250us ", "ttft", 95, 0.00025),
    ],
)
def test_parse(text: str, metric: str, percentile: float | None, limit_s: float) -> None:
    slo = Slo.parse(text)
    assert (slo.metric, slo.percentile) == (metric, percentile)
    assert math.isclose(slo.limit_s, limit_s, rel_tol=1e-15)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "SLO '' is not a metric and its limit"),
        ("ttft", "SLO 'ttft' is not a metric and its limit"),
        ("ttft:p95", "'p95' is not a time"),
        ("ttft:p95:500ms:x", "SLO 'ttft:p95:500ms:x' is not a metric and its limit"),
        ("ttft:95:500ms", "'95' is not a percentile"),
        ("ttft:p101:500ms", "at most 100"),
        ("ttft:p0:500ms", "above 0"),
        ("ttft:p95:0ms", "above 0 s"),
        ("ttft:-500", "'-500' is not a time"),
        ("ttft:nan", "'nan' is not a time"),
        ("ttft:inf", "'inf' is not a time"),
        ("ttft:1e400", "'1e400' is not a time"),
        ("ttft:" + "9" * 400, "finite"),
        ("ttft:p95:5h", "'5h' is not a time"),
        ("itl:50", "add a percentile"),
    ],
)
def test_refused_in_one_line(text: str, part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Slo.parse(text)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_metric_has_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'tpot'"):
        Slo.parse("tpo:50")


@given(
    metric=st.sampled_from(["ttft", "tpot", "e2el"]),
    percentile=st.none() | st.integers(1, 100).map(float),
    milliseconds=st.integers(1, 999_000),
)
def test_what_is_printed_parses_back(metric: str, percentile: float | None, milliseconds: int) -> None:
    slo = Slo.parse(f"{metric}:{'' if percentile is None else f'p{percentile:g}:'}{milliseconds}ms")
    again = Slo.parse(str(slo))
    assert (again.metric, again.percentile) == (metric, percentile)
    assert math.isclose(again.limit_s, slo.limit_s, rel_tol=1e-5)  # printed to six digits


def test_several_in_one_flag_or_in_many() -> None:
    assert (
        parse_slos("ttft:500 tpot:50")
        == parse_slos(["ttft:500", "tpot:50"])
        == parse_slos("ttft:500,tpot:50")
    )
    with pytest.raises(InvalidInput, match="limit the same metric"):
        parse_slos("ttft:500 ttft:300")
    assert len(parse_slos("ttft:500 ttft:p95:300 ttft:p99:900")) == 3


def test_limits_are_inclusive_as_in_vllm() -> None:
    slo = Slo(metric="ttft", limit_s=0.5)
    assert slo.is_met(0.5)
    assert not slo.is_met(math.nextafter(0.5, 1))
    assert not slo.is_met(math.nan)
    assert not slo.is_met(None)  # no first token: failed
    assert Slo(metric="tpot", limit_s=0.01).is_met(None)  # one token: no gap


def test_percentile_is_linear_as_in_vllm() -> None:
    slo = Slo.parse("ttft:p95:500ms")
    assert slo.value_s(np.arange(101) / 100) == pytest.approx(0.95)
    assert slo.value_s([]) is None
    assert slo.value_s([0.25]) == 0.25
    with pytest.raises(InvalidInput, match="no percentile"):
        Slo.parse("ttft:500").value_s([1.0])
