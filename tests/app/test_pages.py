"""Every page in streamlit's test runner: the library's numbers, one line for bad input, no exception for any widget."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import streamlit
from capacity_app.error_display import INTERNAL_ERROR, escape_markdown
from capacity_app.pages import PAGE_BY_NAME, PAGES
from copied_commands import printed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_forms import mostly_slow
from streamlit.runtime.scriptrunner import get_script_run_ctx

import capacity
from capacity.hardware import profile_names
from capacity.hardware.pricing import TIERS
from capacity.model import model_names
from capacity.model.quantization import known_quantizations, kv_cache_format_names
from capacity.report.display import time_and_interval

Open = Callable[..., Any]
NAMES = [page.name for page in PAGES]
PAGES_OWN = ("At these lengths", "$ a month")  # figures that the command shows otherwise
TWO_GPUS = {"model": "qwen3-8b", "tp": "2", "gpu": "a100-sxm-80gb"}


@pytest.mark.parametrize("page", NAMES)
def test_every_page_opens_and_says_what_its_pictures_show(dashboard: Open, page: str) -> None:
    opened = dashboard(page).settled()
    assert not opened.at.exception
    # the example of Your server has causes, if its comparison is finished
    assert [text for text in opened.refusals if not text.startswith("Likely cause")] == []
    assert all(picture.alt for picture in opened.pictures())
    assert [metric.label for metric in opened.at.metric if not metric.proto.help] == []


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("fit", {**TWO_GPUS, "weights": "fp8", "kv": "fp8"}),
        (
            "estimate",
            {"isl": "4000", "osl": "100", "load": "a closed loop", "concurrency": "64", "tier": "spot"},
        ),
    ],
)
def test_numbers_are_those_of_the_copied_command(
    dashboard: Open,
    page: str,
    query: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened = dashboard(page, **query).settled()
    table = printed(opened.code("shell"), monkeypatch, capsys)
    commands_own = {label: text for label, text in opened.kpis.items() if label not in PAGES_OWN}
    intervals = [
        metric.delta
        for metric in opened.at.metric
        if page == "estimate" and metric.label not in PAGES_OWN and metric.delta
    ]
    assert len(commands_own) >= 4
    for shown in (*commands_own.values(), *intervals):
        assert shown in table


def test_the_copied_python_gives_the_same_answer(dashboard: Open) -> None:
    opened = dashboard("estimate", **TWO_GPUS, batch="16")
    found: dict[str, Any] = {}
    exec(opened.code("python"), found)
    direct = capacity.estimate(
        "qwen3-8b",
        gpu="a100-sxm-80gb",
        tensor_parallel_size=2,
        input_len=1024,
        output_len=256,
        batch_size=16,
        price_tier="on-demand",
    )
    assert found["answer"] == direct
    assert opened.kpis["TPOT"] == time_and_interval(direct.tpot_s)[0]


def test_charts_draw_the_librarys_numbers(dashboard: Open) -> None:
    answer = capacity.fit("llama-3.1-8b", gpu="h100-sxm-80gb")
    figure = json.loads(dashboard("fit").at.get("plotly_chart")[0].proto.spec)
    bars = [trace["x"][0] for trace in figure["data"] if trace["type"] == "bar"]
    memory = answer.memory
    parts = (memory.weights_bytes, memory.activations_bytes, memory.overhead_bytes, memory.kv_cache_bytes)
    assert bars == [pytest.approx(part / 2**30) for part in parts]


def test_units_switch_what_is_shown_and_nothing_else(dashboard: Open) -> None:
    answer = capacity.fit("llama-3.1-8b", gpu="h100-sxm-80gb")
    assert dashboard("fit", mem="GB").kpis["KV cache"] == f"{answer.memory.kv_cache_bytes / 1e9:,.2f} GB"
    shown = dashboard("estimate", time="s").kpis["TPOT"]
    assert float(shown.removesuffix(" s")) * 1e3 == pytest.approx(
        float(dashboard("estimate").kpis["TPOT"].removesuffix(" ms")), abs=0.06
    )


@pytest.mark.ci
def test_the_grid_is_the_librarys(dashboard: Open) -> None:
    opened = dashboard("fit", model="llama-3.1-70b", tp="4").settled()
    rows = opened.at.dataframe[0].value.set_index("GPU")
    assert list(rows.index) == list(profile_names())
    for gpu, size in (("h100-sxm-80gb", 4), ("h100-sxm-80gb", 2), ("b300-sxm-288gb", 1)):
        answer = capacity.fit("llama-3.1-70b", gpu=gpu, tensor_parallel_size=size)
        expected = f"✓ {answer.max_concurrency:,.1f}" if answer.fits else "✗"
        assert rows.loc[gpu, f"TP {size}"] == expected
        assert answer.fits or answer.reason in rows.loc[gpu, "why not"]


def test_what_does_not_fit_says_so_with_the_way_out(dashboard: Open) -> None:
    opened = dashboard("estimate", model="llama-3.1-405b")
    assert len(opened.refusals) == 1
    assert opened.refusals[0].startswith(escape_markdown("llama-3.1-405b (bf16) needs"))
    assert "\n" not in opened.refusals[0]


def test_a_plan_is_searched_off_the_page_and_ranked_as_the_library_ranks(dashboard: Open) -> None:
    opened = dashboard("plan", plan_n="60", plan_gpus="h100-sxm-80gb", plan_s="60", plan_ttft="2000")
    assert not opened.at.dataframe
    opened.at.button(key="run_plan").click().run()
    opened.settled()
    direct = capacity.plan(
        "llama-3.1-8b",
        gpus=("h100-sxm-80gb",),
        slo=("ttft:p95:2000ms", "tpot:p95:50ms"),
        input_len=1024,
        output_len=256,
        request_rate=4.0,
        num_prompts=60,
        price_tier="on-demand",
        max_gpus=64,
    )
    assert opened.refusals == []
    ranked = opened.at.dataframe[0].value
    assert list(ranked["deployment"]) == [answer.candidate.label for answer in direct.ranked]
    assert list(ranked["$/h"]) == [answer.cost.usd_per_hour for answer in direct.ranked if answer.cost]
    assert "Printable page" in [button.proto.label for button in opened.at.get("download_button")]
    opened.at.number_input(key="plan_ttft").set_value(1500.0).run()
    assert any("Stale" in str(badge.value) for badge in opened.at.markdown)


CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
HOSTILE = [
    "{" * 100_000,
    json.dumps({**CONFIG, "num_hidden_layers": "many"}),
    json.dumps({**CONFIG, "model_type": "![x](https://example.com/x.png) <script>alert(1)</script>"}),
    "\x00\ud800"[:1],
]


def with_config(opened: Any, text: str) -> Any:
    opened.at.segmented_control(key="source").set_value("config.json").run()
    opened.at.text_area(key="config_text").set_value(text).run()
    return opened


def test_a_pasted_config_is_a_model(dashboard: Open) -> None:
    opened = with_config(dashboard("fit"), json.dumps({**CONFIG, "_name_or_path": "me/mine"}))
    assert opened.refusals == []
    assert "mine fits" in opened.at.success[0].value
    again = dashboard("fit", source="config.json", config=link_part(opened, "config"))
    assert again.kpis == opened.kpis


def link_part(opened: Any, key: str) -> str:
    """A part of the page's URL."""
    value = opened.at.query_params[key]
    return value if isinstance(value, str) else value[0]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_config_is_one_line(dashboard: Open, text: str) -> None:
    opened = with_config(dashboard("fit"), text)
    assert not opened.at.exception
    known = [
        str(caption.value)
        for caption in opened.at.caption
        if "its field names indicate" in str(caption.value)
    ]
    said = opened.refusals or known  # a type of its own is read as a decoder, with a note
    assert len(said) == 1
    assert INTERNAL_ERROR not in said
    assert "\n" not in said[0]
    assert "](http" not in said[0]
    assert "<script>" not in said[0]


def test_a_hostile_link_ends_in_one_line(dashboard: Open) -> None:
    opened = dashboard(
        "start", source="config.json", config="eJw" + "A" * 50_000, gpu="![x](http://e.com/x)", nonsense="1"
    )
    assert not opened.at.exception
    assert all("](http" not in line for line in opened.refusals)
    assert any("nonsense" in line for line in opened.refusals)


def test_an_older_link_sets_what_its_keys_are_called_now_and_says_what_it_ignores(dashboard: Open) -> None:
    """On the first page, which opens with the link: no key of an older version is reported as unknown."""
    opened = dashboard(
        PAGES[0].name, sim_ttft="700", cost_tpot="40", sim_lengths="lognormal", spec_tree="true"
    )
    set_now = {key: widget.value for key, widget in opened.inputs().items()}
    assert (set_now["slo_ttft"], set_now["slo_tpot"], set_now["lengths"]) == (700.0, 40.0, "lognormal")
    assert opened.refusals == []
    notes = [str(note.value) for note in opened.at.info if "older version" in str(note.value)]
    assert notes == ["This link is from an older version. Removed inputs are ignored: spec_tree."]


def test_a_link_may_name_gpus_by_their_aliases(dashboard: Open) -> None:
    opened = dashboard("plan", gpu="H200", plan_gpus=["l40s", "b200"])
    assert opened.inputs()["gpu"].value == "h200-sxm-141gb"
    assert opened.at.multiselect("plan_gpus").value == ["l40s-48gb", "b200-sxm-180gb"]
    assert opened.refusals == []


def test_unknown_key_of_a_link_is_still_reported(dashboard: Open) -> None:
    opened = dashboard(PAGES[0].name, sim_tftt="700")
    assert any("sim" in text and "700" in text for text in opened.refusals)


def test_a_link_speaks_of_the_page_that_it_leads_to(dashboard: Open) -> None:
    opened = dashboard("plan")
    opened.at.number_input(key="plan_n").set_value(77).run()
    opened.at.number_input(key="isl").set_value(512).run()
    assert {"plan_n=77", "isl=512"} <= set(link(opened).split("&"))
    opened.at.switch_page("capacity_app/app_pages/fit.py").run()
    assert link(opened) == "isl=512"
    opened.at.switch_page("capacity_app/app_pages/plan.py").run()
    assert opened.at.number_input(key="plan_n").value == 77


def test_a_run_that_is_being_stopped_does_not_replace_the_page(
    dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress that ends in the moment of a click on a link starts a run of the page with the link."""
    opened = dashboard("fit")

    def replace_page(**_: Any) -> None:
        run = get_script_run_ctx()
        assert run is not None
        run.pages_manager.set_script_intent(PAGE_BY_NAME["estimate"].menu_entry._script_hash, "")

    monkeypatch.setattr(streamlit, "set_page_config", replace_page)
    opened.at.run()
    assert [title.value for title in opened.at.title] == ["Fit"]


def link(opened: Any) -> str:
    """The query of the link to copy."""
    shown = [code.value for code in opened.at.sidebar.code]
    return str(shown[-1]).partition("?")[2]


LOADS = [
    ("fit", {}),
    ("estimate", {}),
    ("estimate", {"load": "a closed loop"}),
    ("estimate", {"load": "arrivals at a rate"}),
    ("simulate", {}),
    ("simulate", {"sim_arrivals": "closed loop", "range": "0.2"}),
    ("simulate", {"sim_arrivals": "all at once"}),
    ("plan", {}),
    ("cost", {}),
    ("speculation", {}),
    ("start", {}),
    ("advise", {}),
    ("quantization", {}),
    ("scaling", {}),
    ("disaggregation", {"dis_n": "20", "dis_replicas": "2"}),
    ("cache", {}),
    ("sweeps", {}),
    ("stack", {}),
    ("stack", {"stack_load": "arrivals at a rate"}),
    ("kv", {}),
    ("beam_search", {}),
    ("fleet", {}),
    ("fleet", {"fleet_lengths": "as in the sidebar"}),
    ("cascade", {}),
    ("cascade", {"casc_on": "an API", "casc_small": "false", "casc_cache": "true"}),
]
OTHERWISE = {
    "model": "qwen3-8b",
    "gpu": "h200-sxm-141gb",
    "tp": 2,
    "pp": 2,
    "ep": True,
    "weights": "fp8",
    "kv": "fp8",
    "engine": "sglang",
    "context": 4096,
    "isl": 2048,
    "osl": 128,
    "concurrency": 16,
    "rate": 2.0,
    "range": 0.5,
    "lengths": "lognormal",
    "slo_ttft": 500.0,
    "slo_tpot": 20.0,
    "client": 20.0,
    "tier": "spot",
    "currency": "EUR",
    "mem": "GB",
    "time": "s",
}
ON_REQUEST = {
    ("cost", "time"),
    ("advise", "time"),
    ("stack", "time"),
    ("estimate", "slo_ttft"),
    ("estimate", "slo_tpot"),
    *((page, "currency") for page in ("plan", "fleet", "advise", "stack", "scaling")),
}  # read by tables, by what a button draws, or by what an overload or a pinned side adds


@pytest.mark.ci
@pytest.mark.parametrize(("page", "query"), mostly_slow(LOADS, [("estimate", {})]))
def test_an_input_of_the_sidebar_is_live_where_it_changes_the_page(
    dashboard: Open, page: str, query: dict[str, str]
) -> None:
    opened = dashboard(page, **query).settled()
    before, wrong = said(opened), []
    found = opened.inputs()
    assert set(OTHERWISE) <= set(found)
    shut = {key: other for key, other in OTHERWISE.items() if found[key].disabled}
    wrong += shut_inputs_that_count(dashboard, page, query, shut, before)
    changed: dict[str, Any] = {}
    for key in [key for key in OTHERWISE if key not in shut]:
        for other, usual in changed.items():
            opened.inputs()[other].set_value(usual)
        changed = {key: opened.inputs()[key].value}
        opened.inputs()[key].set_value(OTHERWISE[key]).run()
        if said(opened) == before and (page, key) not in ON_REQUEST:
            wrong.append(f"{key} is live, and changes nothing")
    assert wrong == []


def shut_inputs_that_count(
    dashboard: Open, page: str, query: dict[str, str], shut: dict[str, Any], before: list[Any]
) -> list[str]:
    """Those that cannot be changed, and yet change the page when a link has them: all at once, then each alone where
    all together do."""
    linked = {key: str(other).lower() if other is True else str(other) for key, other in shut.items()}
    elsewhere = dashboard(page, **query, **linked).settled()
    assert {key: elsewhere.inputs()[key].value for key in shut} == shut
    if said(elsewhere) == before:
        return []
    if len(shut) == 1:
        return list(shut)
    return [key for key in shut if shut_inputs_that_count(dashboard, page, query, {key: shut[key]}, before)]


def said(opened: Any) -> list[Any]:
    """What a page says, its link left out: figures, statements, what it refuses, and the questions to copy."""
    copied = [str(code.value) for code in opened.at.code if code.language in ("shell", "python")]
    stated = [str(line.value) for line in opened.at.info]
    return [opened.kpis, opened.refusals, stated, copied]


def test_the_sidebar_offers_every_format_that_quantize_lists(
    dashboard: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offered = dashboard("fit").at.selectbox(key="weights").options
    rows = json.loads(printed("capacity quantize --list --format json", monkeypatch, capsys))["rows"]
    assert [name for name in offered if name != "as published"] == [row["name"] for row in rows]


SIDEBAR = {
    "model": st.sampled_from(model_names()),
    "gpu": st.sampled_from(profile_names()),
    "weights": st.sampled_from(("as published", *known_quantizations())),
    "kv": st.sampled_from(("auto", *kv_cache_format_names())),
    "tier": st.sampled_from(("none", *TIERS, "my own")),
}
NUMBERS = {
    "tp": st.integers(1, 64),
    "pp": st.integers(1, 64),
    "isl": st.integers(1, 1_000_000),
    "osl": st.integers(1, 1_000_000),
    "concurrency": st.integers(1, 100_000),
    "range": st.sampled_from((None, 0.0, 0.3, 0.95)),
    "context": st.sampled_from((None, 1, 4096, 10_000_000)),
    "client": st.sampled_from((0.0, 5.0, 6.5)),
}


CHOICES = {
    "boxes": st.fixed_dictionaries({}, optional=SIDEBAR),
    "numbers": st.fixed_dictionaries({}, optional=NUMBERS),
}
ANY = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@pytest.mark.parametrize("page", ["estimate", "simulate", "plan", "cost", "fleet", "cascade"])
@settings(max_examples=3, **ANY)
@given(**CHOICES)
def test_no_combination_of_widgets_breaks_a_page(
    dashboard: Open, page: str, boxes: dict[str, str], numbers: dict[str, int]
) -> None:
    chosen_at_will(dashboard, page, boxes, numbers)


@pytest.mark.slow
@pytest.mark.parametrize("page", NAMES)
@settings(max_examples=60, **ANY)
@given(**CHOICES)
def test_nor_do_many(dashboard: Open, page: str, boxes: dict[str, str], numbers: dict[str, int]) -> None:
    chosen_at_will(dashboard, page, boxes, numbers)


def chosen_at_will(dashboard: Open, page: str, boxes: dict[str, str], numbers: dict[str, int]) -> None:
    opened = _kept(dashboard, page)
    found = opened.inputs()
    for key, value in (*boxes.items(), *numbers.items()):
        if not found[key].disabled:
            found[key].set_value(value)
    opened.at.run()
    assert not opened.at.exception
    assert INTERNAL_ERROR not in opened.refusals
    assert all("\n" not in line for line in opened.refusals)


_OPENED: dict[str, Any] = {}


def _kept(dashboard: Open, page: str) -> Any:
    """One session a page: what an earlier draw left behind is part of the test."""
    if page not in _OPENED:
        _OPENED[page] = dashboard(page)
    return _OPENED[page]
