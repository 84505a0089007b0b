"""Several changes in one box are applied at once, and what is not understood is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from capacity_app.what_if import implied_page_state
from long_forms import mostly_slow

Open = Callable[..., Any]


def typed(opened: Any, text: str) -> None:
    opened.at.sidebar.text_input(key="what_if").set_value(text).run()
    opened.settled().settled()  # the one in sight, then what it is beside


@pytest.mark.ci
def test_all_is_applied_at_once_and_nothing_is_pinned(dashboard: Open) -> None:
    opened = dashboard("estimate", model="llama-3.1-70b", tp="4").settled()
    typed(opened, "2xB200 fp8 double traffic")
    assert opened.refusals == []
    inputs = opened.inputs()
    shown = {key: inputs[key].value for key in ("gpu", "tp", "weights", "rate")}
    assert shown == {"gpu": "b200-sxm-180gb", "tp": 2, "weights": "fp8", "rate": 8.0}
    assert opened.at.session_state["load"] == "arrivals at a rate"
    assert opened.at.session_state["_sides"] == []
    assert not any("A" in frame.value for frame in opened.at.dataframe)
    typed(opened, "nonsense")
    assert "Not understood: nonsense" in [caption.value for caption in opened.at.sidebar.caption]
    assert opened.inputs()["gpu"].value == "b200-sxm-180gb"


@pytest.mark.ci
def test_a_change_in_seconds_is_set_in_the_inputs_unit(dashboard: Open) -> None:
    opened = dashboard("estimate").settled()
    typed(opened, "--client-latency-s 0.02")
    assert opened.inputs()["client"].value == 20.0
    assert opened.refusals == []


PAGES = ("fit", "simulate", "cost", "speculation", "cascade", "kv", "beam_search")


@pytest.mark.ci
@pytest.mark.parametrize("page", mostly_slow(PAGES, ["fit", "cost"]))
def test_what_is_pinned_on_one_page_is_a_side_of_every_other(dashboard: Open, page: str) -> None:
    opened = dashboard(page, sim_requests="300", cost_requests="300").settled()
    opened.at.button(key="pin").click().run()
    typed(opened.settled(), "h200")
    assert opened.refusals == []
    table = next(frame.value for frame in opened.at.dataframe if "B vs. A" in frame.value)
    assert any(change not in ("-", "+0 %", "+0 %, within") for change in table["B vs. A"])
    against = [metric for metric in opened.at.metric if "vs. A" in (metric.delta or "")]
    assert against
    first = opened.kpis
    again = dashboard(page, sim_requests="300", cost_requests="300", gpu="h100-sxm-80gb").settled()
    alone = {label: value for label, value in again.kpis.items() if label in first}
    assert dict(zip(table[""], table["A"].str.partition(" (")[0], strict=True)).items() >= alone.items()


@pytest.mark.parametrize(
    ("page", "changed", "set_there"),
    [
        ("estimate", {"request_rate": 8.0}, {"load": "arrivals at a rate"}),
        ("stack", {"request_rate": 8.0}, {"stack_load": "arrivals at a rate"}),
        ("stack", {"concurrency": 8}, {"stack_load": "a closed loop"}),
        ("plan", {"gpu": "b200-sxm-180gb", "request_rate": 8.0}, {"plan_gpus": ["b200-sxm-180gb"]}),
        ("fleet", {"gpu": "l4-24gb"}, {"fleet_gpus": ["l4-24gb"]}),
        ("deployments", {"users": 500}, {"deps_load": "users", "deps_users": 500}),
        ("deployments", {"concurrency": 8}, {"deps_load": "a closed loop"}),
        ("deployments", {"request_rate": 8.0}, {"deps_load": "arrivals at a rate"}),
        ("cascade", {"request_rate": 8.0}, {}),
    ],
)
def test_a_change_also_sets_what_only_its_page_has(
    page: str, changed: dict[str, Any], set_there: dict[str, Any]
) -> None:
    assert implied_page_state(page, changed) == set_there
