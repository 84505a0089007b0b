"""Deployments through the public door: flags to replicas, verdicts and service levels in JSON, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import capacity
from capacity.answers.deployment_run import kv_link
from capacity.base.errors import InvalidInput, UnknownName
from capacity.cli.main import app
from capacity.deployment import Pool, Service
from capacity.hardware import load_profile
from capacity.pool.resolve import resolve

MODEL = "llama-3.1-8b"


LOAD = {"gpu": "h100", "input_len": 500, "output_len": 50, "num_prompts": 400}


def test_a_calm_run_is_stable_and_says_how_sure_it_is() -> None:
    answer = capacity.simulate(MODEL, **LOAD, request_rate=10).to_dict()
    assert answer["verdict"] == "stable"
    assert 0 < answer["evidence"]["load_fraction"] < 0.5
    p99 = answer["intervals"]["p99_ttft_ms"]
    assert p99["low"] <= p99["value"]
    assert re.search(r", \d+% of the capacity of [\d.]+ requests/s$", answer["verdict_reason"])
    json.dumps(answer, allow_nan=False)


def test_an_overload_is_said_whatever_the_means_are() -> None:
    assert capacity.simulate(MODEL, **LOAD, request_rate=200).to_dict()["verdict"] == "overloaded"
    assert capacity.simulate(MODEL, **LOAD).to_dict()["verdict"] == "overloaded", "all at once"


def test_replicas_multiply_capacity() -> None:
    one, four = (capacity.simulate(MODEL, **LOAD, request_rate=10, replicas=n).to_dict() for n in (1, 4))
    ratio = four["evidence"]["capacity_requests_per_s"] / one["evidence"]["capacity_requests_per_s"]
    assert ratio == pytest.approx(4, rel=0.1)
    assert [replica["requests"] for replica in four["replicas"]] == [100] * 4
    assert sum(replica["busy_s"] for replica in four["replicas"]) > one["steps"] * 0.001


def test_pools_may_differ() -> None:
    answer = capacity.simulate(
        MODEL, **LOAD, request_rate=20, router="least-outstanding", other_pools=[Pool(gpu="l40s", replicas=2)]
    ).to_dict()
    labels = [replica["label"] for replica in answer["replicas"]]
    assert len(labels) == 3
    assert labels[1] == labels[2] != labels[0]


def test_pools_take_requests_by_length() -> None:
    """Half of the prompts are below the median, and the pools say so."""
    lengths = {"length_distribution": "lognormal", "num_prompts": 200, "request_rate": 4}
    pools = {
        "gpu": "a10",
        "max_model_len": 4096,
        "route_up_to_tokens": 354,
        "other_pools": [Pool(gpu="h100")],
    }
    answer = capacity.simulate(MODEL, **LOAD | lengths | pools, router="by-prompt-length").to_dict()
    few, many = (replica["requests"] for replica in answer["replicas"])
    assert few + many == 200
    assert abs(few - 100) < 30, "4 standard errors; 354 is the median of a mean of 500 with CV 1"
    assert [replica["label"] for replica in answer["replicas"]] == ["1 x a10-24gb", "1 x h100-sxm-80gb"]
    with pytest.raises(InvalidInput, match="use by-prompt-length or by-request-length"):
        capacity.simulate(MODEL, **LOAD, request_rate=4, other_pools=[Pool(gpu="h100", route_up_to_tokens=5)])
    with pytest.raises(InvalidInput, match="has no effect without --router by-prompt-length or by-request"):
        capacity.simulate(MODEL, **LOAD, request_rate=4, route_up_to_tokens=5)


def test_prefill_here_decode_there() -> None:
    load = {**LOAD, "request_rate": 20, "replicas": 3, "prefill_replicas": 1}
    fast = capacity.simulate(MODEL, **load).to_dict()
    slow = capacity.simulate(MODEL, **load, kv_transfer_bytes_per_s=1e9).to_dict()
    assert [replica["label"] for replica in fast["replicas"]] == ["1 x h100-sxm-80gb"] * 3
    added = slow["transfer_ms"]["mean"] - fast["transfer_ms"]["mean"]
    assert added > 50, "64 MB at 1 GB/s"
    assert slow["mean_ttft_ms"] - fast["mean_ttft_ms"] == pytest.approx(added, rel=0.2)
    split = capacity.simulate(
        MODEL,
        **LOAD,
        request_rate=20,
        role="prefill",
        other_pools=[Pool(gpu="h100", role="decode", replicas=2)],
    ).to_dict()
    assert split["mean_ttft_ms"] == fast["mean_ttft_ms"]
    with pytest.raises(InvalidInput, match="at least one"):
        capacity.simulate(MODEL, **LOAD, request_rate=20, replicas=2, prefill_replicas=2)


def test_everything_off_is_the_engine_alone() -> None:
    plain = capacity.simulate(MODEL, **LOAD, request_rate=20)
    asked = capacity.simulate(MODEL, **LOAD, request_rate=20, replicas=1)
    one = capacity.simulate(MODEL, **LOAD, request_rate=20, max_outstanding_requests=10_000)
    assert plain.to_dict() == asked.to_dict()
    np.testing.assert_array_equal(plain.run.records.finish_ps, one.run.records.finish_ps)


def test_a_file_carries_the_service(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    file = tmp_path / "deployment.toml"
    given = [
        "simulate",
        MODEL,
        "--gpu",
        "h100",
        "--input-len",
        "500",
        "--output-len",
        "50",
        "--num-prompts",
        "200",
    ]
    more = ["--rate", "20", "--replicas", "2", "--router", "least-kv", "--request-timeout", "60"]
    first = CliRunner().invoke(app, [*given, *more, "--format", "json", "--write-deployment", str(file)])
    assert first.exit_code == 0, first.output
    assert "[service]" in file.read_text(encoding="utf-8")
    again = CliRunner().invoke(app, ["simulate", "--deployment", str(file), "--format", "json"])
    assert json.loads(again.output) == json.loads(first.output)


@pytest.mark.parametrize(("slo", "code"), [("ttft:p95:5s", 0), ("ttft:p95:1ms", 1)])
def test_an_unmet_level_is_exit_code_one(slo: str, code: int) -> None:
    from typer.testing import CliRunner

    arguments = [
        "simulate",
        MODEL,
        "--gpu",
        "h100",
        "--input-len",
        "500",
        "--output-len",
        "50",
        "--rate",
        "10",
    ]
    result = CliRunner().invoke(app, [*arguments, "--num-prompts", "150", "--slo", slo])
    assert result.exit_code == code
    assert ("missed" in result.output) == bool(code)


def test_bad_services_are_refused() -> None:
    with pytest.raises(UnknownName, match="round-robin"):
        capacity.simulate(MODEL, **LOAD, request_rate=10, router="roundrobin", replicas=2)
    with pytest.raises(InvalidInput, match="recovery"):
        capacity.simulate(MODEL, **LOAD, request_rate=10, mean_time_between_failures_s=10)
    with pytest.raises(InvalidInput, match="startup"):
        capacity.simulate(MODEL, **LOAD, request_rate=10, autoscale_max_replicas=4)
    with pytest.raises(InvalidInput, match="request_timeout_s"):
        capacity.simulate(MODEL, **LOAD, request_rate=10, request_timeout_s=0)


def test_capacity_of_replicas_that_fail_is_said_to_be_of_those_that_do_not() -> None:
    options = {
        "gpu": "h100",
        "input_len": 100,
        "output_len": 10,
        "request_rate": 20.0,
        "num_prompts": 120,
        "replicas": 2,
    }
    failing = capacity.simulate("llama-3.1-8b", **options, mean_time_between_failures_s=30.0, recovery_s=1.0)
    assert any("no replica fails" in note for note in failing.warnings)
    assert not any(
        "no replica fails" in note for note in capacity.simulate("llama-3.1-8b", **options).warnings
    )


LENGTHS = {"input_len": 500, "output_len": 50, "random_range_ratio": 0.0}
SPLIT_LOAD = {"gpu": "h100", **LENGTHS, "num_prompts": 200, "request_rate": 20}


SPLIT = {**SPLIT_LOAD, "replicas": 3, "prefill_replicas": 1}


def test_each_link_has_the_time_of_its_profile() -> None:
    """A lone request's KV: bytes over the link's rate plus its latency, of the profile."""
    profile = load_profile("h100")
    one = {**SPLIT, "num_prompts": 1}
    bytes_of_kv = 500 * capacity.fit("llama-3.1-8b", gpu="h100").kv_bytes_per_token
    for name, link in (
        ("nvlink", profile.scale_up),
        ("infiniband", profile.inter_node),
        ("pcie", profile.pcie),
    ):
        found = capacity.simulate("llama-3.1-8b", **one, kv_transfer_link=name).to_dict()
        wanted_ms = (bytes_of_kv / link.bytes_per_s + link.latency_s) * 1e3
        assert found["transfer_ms"]["mean"] == pytest.approx(wanted_ms, rel=1e-6), name
    with pytest.raises(InvalidInput, match="l4-24gb has no NVLink"):
        capacity.simulate(
            "llama-3.1-8b", **{**SPLIT, "gpu": "l4", "max_model_len": 4096}, kv_transfer_link="nvlink"
        )


def test_a_service_of_two_pools_takes_every_option() -> None:
    answer = capacity.simulate(
        "llama-3.1-8b",
        **SPLIT,
        router="prefix-aware",
        decode_router="round-robin",
        request_timeout_s=30,
        max_queued_requests=100,
        max_outstanding_requests=64,
        mean_time_between_failures_s=5,
        recovery_s=1,
        requests_of_lost_replicas="fail",
        autoscale_max_replicas=2,
        decode_autoscale_max_replicas=4,
        autoscale_target_requests=8,
        replica_startup_s=1,
        autoscale_interval_s=1,
    ).to_dict()
    ended = answer["completed"] + answer["rejected"] + answer["timed_out"] + answer["lost"]
    assert ended == SPLIT_LOAD["num_prompts"]
    assert answer["transfers"]["begun"] == answer["transfers"]["arrived"] + answer["transfers"]["aborted"]
    with pytest.raises(InvalidInput, match="--decode-autoscale-target-requests"):
        capacity.simulate("llama-3.1-8b", **SPLIT, decode_autoscale_max_replicas=4, replica_startup_s=1)
    with pytest.raises(InvalidInput, match="kv_transfer_link is 'ethernet'"):
        capacity.simulate("llama-3.1-8b", **SPLIT, kv_transfer_link="ethernet")


def test_windowed_models_are_prefilled_here_and_decoded_there() -> None:
    load = {**SPLIT, "num_prompts": 60, "max_model_len": 8192, "tensor_parallel_size": 2}
    answer = capacity.simulate("gpt-oss-20b", **load).to_dict()
    assert answer["completed"] == 60
    assert answer["transfers"] == {"begun": 60, "arrived": 60, "aborted": 0}


def test_what_was_dropped_is_not_sent() -> None:
    """A prompt of 8,000 tokens leaves 1,024 of 128 KiB each for the link, once they are chosen."""
    kept = resolve(MODEL, Pool(gpu="h100", max_model_len=9000, kv_eviction="snapkv", kv_budget=1024))
    whole = resolve(MODEL, Pool(gpu="h100", max_model_len=9000))
    times = [kv_link([pool], Service(kv_transfer_bytes_per_s=1e9)) for pool in (kept, whole)]
    assert [link.bytes_per_token for link in times] == [0, 128 * 1024]
    assert (times[0].window_bytes_per_token, times[0].window_tokens) == (128 * 1024, 1024)
