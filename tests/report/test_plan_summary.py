"""A plan on one screen: the winner, how it is started, what it saves; and no line that a shell could not read."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick_plans import quick

from capacity.deployment.command_words import COMMAND_WIDTH, wrap_command
from capacity.deployment.launch_command import read_line as read_vllm_command
from capacity.planning.records import Plan
from capacity.planning.search.ranking import pin_defaults
from capacity.pool.resolve import resolve
from capacity.report import layout
from capacity.report.tables import render

SCREEN = 40


def summary(plan: Plan) -> str:
    return render(plan, "table", detail=False)


@pytest.fixture(scope="module")
def several() -> Plan:
    """Three GPUs and three formats, drafts and prefill apart among them."""
    return quick(
        gpus="a100,h100,h200", quantizations=(None, "fp8", "int4"), kv_cache_dtypes=("auto", "fp8"),
        max_num_batched_tokens=(None, 1024), speculators=(), serving="aggregated,disaggregated",
        price="a100=1.6,h100=3.85,h200=4.45", objective="cost", request_rate=80.0,
    )  # fmt: skip


def test_the_answer_fits_a_screen(several: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "WIDTH", 100)
    text = render(several, "table", detail=False)
    assert len(text.splitlines()) <= SCREEN
    assert max(len(line) for line in text.splitlines()) <= 100
    assert several.best is not None
    assert f"Rent {several.best.label}" in text
    following = next(other for other in several.ranked if other.objective > several.best.objective)
    assert f"saves ${following.objective - several.best.objective:,.2f}/h" in text
    assert following.label in " ".join(text.split())
    unproved = summary(replace(several, proved=False, ended="interrupted"))
    assert "not proved: the search was interrupted" in unproved


def test_owned_gpus_are_used_and_not_rented(several: Plan) -> None:
    assert several.best is not None
    assert several.best.cost is not None
    owned = replace(several.best, cost=replace(several.best.cost, tier="owned"))
    text = summary(replace(several, ranked=(owned, *several.ranked[1:])))
    assert f"Use {owned.label}" in text
    assert "Rent " not in text


def test_saving_names_the_next_deployment_of_equal_price(several: Plan) -> None:
    """It is not passed over for the first one that costs more."""
    assert several.best is not None
    equal = replace(several.ranked[1], objective=several.best.objective)
    rest = [replace(other, objective=other.objective + 1) for other in several.ranked[2:]]
    text = " ".join(summary(replace(several, ranked=(several.best, equal, *rest))).split())
    assert f"costs the same: {equal.label} saves" in text
    assert f"compared with the next more expensive: {rest[0].label}" in text
    alone = " ".join(summary(replace(several, ranked=(several.best, equal))).split())
    assert f"costs the same: {equal.label}" in alone
    assert "saves $" not in alone.split("Alternatives")[0]


def test_the_launch_line_is_the_winner_in_json_and_on_the_screen(several: Plan) -> None:
    assert several.best is not None
    (line,) = several.best.launch
    text = render(several, "table", detail=False)
    begin = text.index("vllm serve")
    shown = text[begin : text.index("\n", text.index("--port", begin))]
    assert shlex.split(shown.replace("\\\n", " ")) == shlex.split(line.command)
    read = read_vllm_command(line.command).pool(several.best.pool.gpu)
    assert read == pin_defaults(resolve("llama-3.1-8b", several.best.pool))
    written = several.to_dict()["ranked"][0]["launch"]
    assert written[0]["command"] == line.command
    assert written[0]["replicas"] == several.best.replicas


def test_what_nothing_launches_and_what_has_no_answer_say_so() -> None:
    static = quick(engines="static", slo="e2el:p95:60s", request_rate=1.0)
    assert "this engine is a baseline and has no launch command" in summary(static)
    nothing = quick(slo="ttft:p95:1ms tpot:p95:1ms")
    assert "No deployment in the search space meets the SLO" in summary(nothing)
    apart = quick(serving="disaggregated", slo="ttft:p95:1s tpot:p95:40ms", max_gpus=4)
    text = summary(apart)
    assert "1 prefill replica:" in text
    assert "1 decode replica:" in text


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=12))
def test_a_wrapped_command_is_the_same_command(words: list[str]) -> None:
    words = [word.replace("\0", "").replace("\n", " ") or "x" for word in words]
    lines = wrap_command(shlex.join(words))
    assert shlex.split("\n".join(lines).replace("\\\n", " ")) == words
    assert all(len(line) <= COMMAND_WIDTH + 2 or len(shlex.split(line.rstrip("\\"))) <= 2 for line in lines)
