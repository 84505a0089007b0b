"""The view of a hall: deployments, totals, what is to spare or limits, and the options with their reasons."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.planning.halls.hall import plan_hall
from capacity.planning.halls.hall_options import HallPlan
from capacity.report.layout import render_text
from capacity.report.views.hall import hall_view
from capacity.report.views.layout import view_parts

MODEL = {
    "model": "llama-3.1-8b",
    "slo": ["ttft:p95:1s"],
    "input_len": 500,
    "output_len": 50,
    "request_rate": 100,
}
SPACE: dict[str, Any] = {"gpus": "h100", "quantizations": "none", "tensor_parallel_sizes": 1}


def text_of(plan: HallPlan) -> str:
    return render_text(view_parts(hall_view(plan), plan))


@pytest.fixture(scope="module")
def served() -> HallPlan:
    return plan_hall(
        [MODEL],
        power_budget="20kW",
        power_cap="none,20%,65%",
        price="3",
        grid_region="france",
        objective="cost",
        **SPACE,
    )


def test_hall_with_room_states_it_and_lists_the_options(served: HallPlan) -> None:
    text = text_of(served)
    chosen = served.models[0]
    assert "0.02 MW of provisioned power, 1 models; lowest cost" in text
    assert f"All requests are served with {chosen.provisioned_watts / 1e6:.3g} MW" in text
    assert f"for {served.headroom:.0%} more" in text
    assert f"in total ${chosen.usd_per_hour:,.2f}/h, {chosen.co2_g_per_hour / 1e3:.1f} kg CO2/h" in text
    assert "h100-sxm-80gb TP1 *" in text
    assert "below the lowest cap" in " ".join(text.split())
    assert "price of h100-sxm-80gb" in text


def test_hall_without_room_states_the_share_and_the_limit() -> None:
    plan = plan_hall([MODEL | {"request_rate": 600}], power_budget="6kW", power_cap="65%", **SPACE)
    assert 0 < plan.served_share < 1
    text = text_of(plan)
    assert (
        f"{plan.served_share:.1%} of the requests of each model are served. The power budget is the limit."
        in text
    )
    assert "$/h" not in text.partition("Options")[0]
    assert "note: Power cap of 455 W" in text
