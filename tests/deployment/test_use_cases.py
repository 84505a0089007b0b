"""Use cases: what they say, where nobody else says it, with a source for each value; and users as a rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import DeploymentFile, Pool, Traffic, build, read_deployment, write_deployment
from capacity.deployment.use_cases import USE_CASES, filled_notes, find_use_case, service_levels, use_cases
from capacity.workload import parse_slos

CHAT = find_use_case("chat")


@pytest.mark.parametrize("case", use_cases(), ids=USE_CASES)
def test_each_says_lengths_levels_and_think_time_with_an_origin(case: object) -> None:
    assert case in use_cases()
    for known in (case.input_len, case.output_len, case.slo, case.think_time_s):  # type: ignore[attr-defined]
        assert known.source
        assert known.date[:2] == "20"
        assert known.origin.startswith(known.basis)
    assert parse_slos(case.slo.limits)  # type: ignore[attr-defined]


def test_measured_lengths_are_those_of_the_trace(azure: Path) -> None:
    """The mean and spread of the published conversation trace, read again."""
    from capacity.workload import read_trace

    trace = read_trace(azure)
    for known, tokens in ((CHAT.input_len, trace.prompt_tokens), (CHAT.output_len, trace.output_tokens)):
        assert known.basis == "measured"
        assert known.mean == round(tokens.mean())
        assert known.cv == pytest.approx(tokens.std() / tokens.mean(), abs=0.005)


@pytest.fixture
def azure() -> Path:
    import os

    path = Path(os.environ.get("CAPACITY_SHARED", "/nowhere")) / "traces/AzureLLMInferenceTrace_conv.csv.gz"
    if not path.exists():
        pytest.skip("the trace is not here: CAPACITY_SHARED names the folder that has it")
    return path


def test_a_use_case_fills_what_nobody_has_said() -> None:
    traffic = build(Traffic, {"use_case": "chat", "output_len": 50})
    assert (traffic.input_len, traffic.output_len) == (CHAT.input_len.mean, 50)
    assert (traffic.length_distribution, traffic.input_len_cv) == ("lognormal", CHAT.input_len.cv)
    assert traffic.model_fields_set == {"use_case", "output_len"}


def test_traffic_without_a_spread_varies_as_the_chat_trace() -> None:
    traffic = build(Traffic, {"input_len": 1000, "output_len": 200})
    spread = (traffic.length_distribution, traffic.input_len_cv, traffic.output_len_cv)
    assert spread == ("lognormal", CHAT.input_len.cv, CHAT.output_len.cv)
    assert "Azure LLM inference trace 2023" in " ".join(filled_notes(traffic))
    assert build(Traffic, {"input_len": 1000, "output_len": 200, "input_len_cv": 0.3}).input_len_cv == 0.3


@pytest.mark.parametrize(
    "fields",
    [
        {"random_range_ratio": 0.0},
        {"length_distribution": "uniform"},
        {"batch_size": 8},
    ],
)
def test_traffic_with_a_spread_or_a_batch_is_left_as_it_is(fields: dict[str, object]) -> None:
    traffic = build(Traffic, {"input_len": 1000, "output_len": 200, **fields})
    assert (traffic.length_distribution, traffic.random_range_ratio) == ("uniform", 0.0)
    assert filled_notes(traffic) == ()


def test_a_spread_of_ones_own_replaces_that_of_the_use_case() -> None:
    traffic = build(Traffic, {"use_case": "chat", "random_range_ratio": 0.2})
    assert (traffic.length_distribution, traffic.random_range_ratio) == ("uniform", 0.2)


def test_a_trace_keeps_its_lengths() -> None:
    assert build(Traffic, {"use_case": "chat", "trace": "requests.csv"}).input_len is None


def test_levels_are_those_given_or_else_those_of_the_use_case() -> None:
    chat = build(Traffic, {"use_case": "chat"})
    assert service_levels((), chat) == CHAT.slo.limits
    assert service_levels(["ttft:p95:1s"], chat) == ("ttft:p95:1s",)
    assert service_levels("ttft:p95:1s", chat) == ("ttft:p95:1s",)
    assert service_levels((), Traffic()) == ()


def test_users_come_at_the_rate_of_their_cycle() -> None:
    """100 users who think 20 s and wait 5 s make 100 / 25 requests a second."""
    traffic = build(Traffic, {"users": 100, "think_time_s": 20.0, "response_s": 5.0})
    assert traffic.request_rate == pytest.approx(4.0)
    assert build(Traffic, {"users": 60, "use_case": "chat"}).request_rate == pytest.approx(
        60 / CHAT.think_time_s.mean
    )


def test_users_who_wait_have_no_rate() -> None:
    assert build(Traffic, {"users": 5, "think_time_s": 1.0, "user_loop": "closed"}).request_rate is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"use_case": "chit"}, "Did you mean 'chat'"),
        ({"users": 5}, "add --think-time-s, or --use-case"),
        ({"users": 5, "request_rate": 1.0, "think_time_s": 1.0}, "already sets the rate"),
        ({"users": 5, "concurrency": 1, "think_time_s": 1.0}, "both set the load"),
        ({"users": 5, "response_s": 1.0, "user_loop": "closed"}, "the same as --concurrency"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        build(Traffic, fields, flags=True)
    assert "\n" not in str(caught.value)


def test_what_was_filled_is_said_with_its_source_and_formula() -> None:
    notes = "\n".join(filled_notes(build(Traffic, {"use_case": "chat", "users": 90, "output_len": 50})))
    assert notes == (
        f"chat: measured input_len {CHAT.input_len.mean:,} (CV {CHAT.input_len.cv:g}); assumed think_time_s 30; "
        "published SLO ttft:p99:450ms, tpot:p99:40ms unless you give your own; sources: `capacity use-cases`\n"
        "90 users / (think time 30 s + response time 0 s) = 3 requests/s, an upper bound; set --response-s"
    )
    assert filled_notes(Traffic()) == ()


def test_another_rate_is_not_said_to_be_the_users() -> None:
    traffic = build(Traffic, {"use_case": "chat", "users": 90}).model_copy(update={"request_rate": 8.0})
    assert not any("users" in note for note in filled_notes(traffic))


def test_a_file_keeps_what_was_said_and_not_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    traffic = build(Traffic, {"use_case": "chat", "users": 90})
    deployment = DeploymentFile(
        schema="capacity/deployment/v1", model="llama-3.1-8b", pools=(Pool(gpu="h100"),), traffic=traffic
    )
    write_deployment(deployment, path)
    assert "input_len" not in path.read_text(encoding="utf-8")
    assert read_deployment(path) == deployment
