"""Where a model does not fit: memory bars, and buttons whose change makes it fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from capacity_app.what_if import field_text
from long_forms import mostly_slow

import capacity
from capacity.answers.fit import ways_to_fit

Open = Callable[..., Any]
LARGE = {"gpu": "h100-sxm-80gb"}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("page", "query"),
    mostly_slow(
        [("fit", {}), ("estimate", {"batch": "1"}), ("simulate", {})], [("estimate", {"batch": "1"})]
    ),
)
def test_every_way_out_has_a_button_that_makes_it_fit(
    dashboard: Open, page: str, query: dict[str, str]
) -> None:
    ways = ways_to_fit("llama-3.1-70b", **LARGE)
    assert len(ways) == 3
    for way in ways:
        opened = dashboard(page, model="llama-3.1-70b", **query).settled()
        assert len(opened.refusals) == 1
        bars = json.loads(opened.at.get("plotly_chart")[0].proto.spec)["data"]
        memory = capacity.fit("llama-3.1-70b", **LARGE).memory
        assert bars[0]["x"] == [pytest.approx(memory.weights_bytes / 2**30)]
        label = " and ".join(field_text(*each) for each in way.items())
        opened.at.button(key=f"apply_{label}").click().run()
        opened.settled()
        assert not any("DoesNotFit" in line or "not fit" in line for line in opened.refusals)
        said = "\n".join(str(code.value) for code in opened.at.code if code.language == "shell")
        assert all(f"--{name.replace('_', '-')} {value}" in said for name, value in way.items())
        assert capacity.fit("llama-3.1-70b", **LARGE, **way).fits


def test_where_it_fits_nothing_is_offered(dashboard: Open) -> None:
    assert ways_to_fit("llama-3.1-8b", **LARGE) == ()
    assert not any(str(button.key).startswith("apply_") for button in dashboard("fit").at.button)


def test_a_batch_beyond_the_kv_cache_is_refused_without_bars(dashboard: Open) -> None:
    opened = dashboard("estimate", batch="1024", isl="4096").settled()
    assert "exceed the KV cache" in opened.refusals[0].replace("\\", "")
    assert not opened.at.get("plotly_chart")
