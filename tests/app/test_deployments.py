"""The Compare page: its verdict is the library's, and pinned sides get the sidebar's load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from capacity_app.error_display import INTERNAL_ERROR, escape_markdown
from capacity_app.side import Side

import capacity
from capacity.deployment import DeploymentFile, build, to_toml
from capacity.report.views.deployment_comparison import comparison_view
from capacity.report.views.layout import table_records
from capacity.report.views.view import Table

Open = Callable[..., Any]


@pytest.mark.ci
def test_page_shows_the_verdict_of_the_library(dashboard: Open) -> None:
    opened = dashboard("deployments", rate="40").settled()
    assert opened.refusals == []
    traffic = {"input_len": 1024, "output_len": 256, "request_rate": 40.0}
    sides = [
        {
            "model": "llama-3.1-8b",
            "pools": [{"gpu": gpu}],
            "traffic": traffic,
            "cost": {"price_tier": "on-demand"},
        }
        for gpu in ("h100-sxm-80gb", "b200-sxm-180gb")
    ]
    answer = capacity.compare_deployments(sides, slo=["ttft:p95:1000ms", "tpot:p95:50ms"])
    assert [box.value for box in opened.at.success] == [escape_markdown(answer.verdict)]


@pytest.mark.ci
def test_page_takes_users_as_the_load(dashboard: Open) -> None:
    opened = dashboard("deployments", deps_load="users", deps_users="1200", deps_think="20").settled()
    assert opened.refusals == []
    (verdict,) = (box.value for box in opened.at.success)
    assert verdict.startswith("At 60 requests/s within the SLO, A needs")


SIDEBAR_SLO = ("ttft:p95:1000ms", "tpot:p95:50ms")
LENGTHS = {"input_len": 1024, "output_len": 256}
GPUS = ("h100-sxm-80gb", "b200-sxm-180gb")


def sides_of(traffic: Mapping[str, Any], **deployment: Any) -> list[dict[str, Any]]:
    shared = {"model": "llama-3.1-8b", "traffic": {**LENGTHS, **traffic}, "cost": {"price_tier": "on-demand"}}
    return [{**shared, "pools": [{"gpu": gpu}], **deployment} for gpu in GPUS]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("link", "traffic"),
    [
        ({"deps_load": "a closed loop", "concurrency": "48", "slo_tpot": "12"}, {"concurrency": 48}),
        (
            {"deps_load": "a day", "rate": "20", "deps_peak": "1.8", "slo_tpot": "12"},
            {"request_rate": 20.0, "arrivals": "diurnal", "day_peak_to_mean": 1.8},
        ),
    ],
)
def test_page_shows_the_comparison_of_the_library(
    dashboard: Open, link: Mapping[str, str], traffic: Mapping[str, Any]
) -> None:
    opened = dashboard("deployments", **link).settled()
    assert opened.refusals == []
    answer = capacity.compare_deployments(sides_of(traffic), slo=("ttft:p95:1000ms", "tpot:p95:12ms"))
    assert [box.value for box in opened.at.success] == [escape_markdown(answer.verdict)]
    expected = [table_records(block) for block in comparison_view(answer).blocks if isinstance(block, Table)]
    shown = [frame.value.to_dict("records") for frame in opened.at.dataframe]
    for rows in expected:
        assert any(
            [*map(list, map(dict.values, rows))] == [*map(list, map(dict.values, each))] for each in shown
        )


@pytest.mark.ci
def test_service_of_a_pinned_side_applies(dashboard: Open) -> None:
    """A side pinned on Simulate keeps its router."""
    options = {"gpu": "h100-sxm-80gb", "request_rate": 9.0, "replicas": 2, "router": "least-outstanding"}
    pin = Side(page="simulate", model="llama-3.1-8b", options=options, cost={})
    opened = dashboard("deployments", rate="40", side=pin.link_text).settled()
    assert opened.refusals == []
    first, second = sides_of({"request_rate": 40.0})
    first = {**first, "service": {"router": "least-outstanding"}, "cost": {}}
    second = {**second, "pools": [{"gpu": "h100-sxm-80gb"}]}
    answer = capacity.compare_deployments([first, second], slo=SIDEBAR_SLO)
    assert [box.value for box in opened.at.success] == [escape_markdown(answer.verdict)]


@pytest.mark.ci
def test_pinned_side_is_compared_under_the_sidebars_load(dashboard: Open) -> None:
    pin = Side(
        page="estimate", model="llama-3.1-8b", options={"gpu": "b200-sxm-180gb", "request_rate": 9.0}, cost={}
    )
    opened = dashboard("deployments", rate="40", side=pin.link_text).settled()
    assert opened.refusals == []
    (verdict,) = (box.value for box in opened.at.success)
    assert verdict.startswith("At 40 requests/s within the SLO, A needs")


def upload(opened: Any, text: str) -> Any:
    """Give a deployment file to the page."""
    opened.at.file_uploader(key="deps_files").upload("other.toml", text.encode(), "application/toml").run()
    return opened.settled()


@pytest.mark.ci
def test_uploaded_deployment_is_compared_under_the_sidebars_load(dashboard: Open) -> None:
    file = {"schema": "capacity/deployment/v1", "model": "llama-3.1-8b", "traffic": {"request_rate": 1.0}}
    other = build(DeploymentFile, {**file, "pools": [{"gpu": "b200-sxm-180gb", "quantization": "fp8"}]})
    opened = upload(dashboard("deployments", rate="40"), to_toml(other))
    assert opened.refusals == []
    first, current = sides_of({"request_rate": 40.0})[::-1]
    first = {**first, "pools": [{"gpu": "b200-sxm-180gb", "quantization": "fp8"}], "cost": {}}
    current = {**current, "pools": [{"gpu": "h100-sxm-80gb"}]}
    answer = capacity.compare_deployments([first, current], slo=SIDEBAR_SLO)
    assert [box.value for box in opened.at.success] == [escape_markdown(answer.verdict)]


@pytest.mark.parametrize(
    "text",
    [
        "not a deployment",
        'schema = "capacity/deployment/v1"\nmodel = "/etc/passwd"\n[[pools]]\ngpu = "h100"\n',
        'schema = "capacity/deployment/v1"\nmodel = "llama-3.1-8b"\n[[pools]]\ngpu = "h100"\ndraft = "a/b/c"\n',
        'schema = "capacity/deployment/v1"\nmodel = "llama-3.1-8b"\n[[pools]]\ngpu = "/etc/passwd"\n',
        'schema = "capacity/deployment/v1"\nmodel = "llama-3.1-8b"\n[[pools]]\ngpu = "h100"\n[cost]\nprice_file = "/a"',
    ],
)
def test_deployment_file_that_cannot_be_used_is_one_line(dashboard: Open, text: str) -> None:
    opened = upload(dashboard("deployments"), text)
    assert len(opened.refusals) == 1
    assert INTERNAL_ERROR not in opened.refusals
    assert "\n" not in opened.refusals[0]
    assert "uploads" not in opened.refusals[0]  # where the server keeps it


@pytest.mark.ci
def test_side_pinned_on_the_page_is_compared_with_the_changed_inputs(dashboard: Open) -> None:
    opened = dashboard("deployments", rate="40").settled()
    opened.at.button(key="pin").click().run()
    opened.at.selectbox(key="gpu").set_value("b200-sxm-180gb").run()
    assert opened.settled().refusals == []
    answer = capacity.compare_deployments(sides_of({"request_rate": 40.0}), slo=SIDEBAR_SLO)
    assert [box.value for box in opened.at.success] == [escape_markdown(answer.verdict)]
