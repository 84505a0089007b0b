"""The scheduler's knobs on a real model and GPU: each changes what it should, and what cannot be is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import capacity
from capacity.answers.engine_setup import (
    engine_frontend,
    make_workload,
    policy_name,
    scheduler_limits,
    setup_of,
)
from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import Pool, Traffic
from capacity.deployment.launch_command import read_line as read_vllm_command
from capacity.pool.drafting import expected_tokens
from capacity.pool.resolve import resolve
from capacity.simulator.kv_cache.offload import Offload
from capacity.simulator.setup import EngineSetup
from capacity.step import decode_shape

LOAD: dict[str, Any] = {"input_len": 600, "output_len": 100, "request_rate": 4, "num_prompts": 40}


def simulate(**options: Any) -> dict[str, Any]:
    return capacity.simulate("llama-3.1-8b", gpu="h100", **LOAD, **options).to_dict()


@pytest.mark.parametrize(
    ("model", "format", "since"),
    [
        ("llama-3.1-70b", None, "0.23"),
        ("llama-3.1-70b", "fp8", "0.24"),
        ("deepseek-v2-lite", None, "0.24"),
        ("qwen2.5-32b", None, "0.25"),
        ("qwen3-30b-a3b", None, "0.29"),
        ("qwen3-next-80b-a3b", None, "0.29"),
    ],
)
def test_model_runner_v2_is_that_of_the_release_and_the_model(
    model: str, format: str | None, since: str
) -> None:
    """By vllm/config/vllm.py of each wheel. V2 schedules stages asynchronously; penalties cost no host time."""
    for release in ("0.22", "0.23", "0.24", "0.25", "0.26", "0.27", "0.28", "0.29"):
        pool = Pool(
            gpu="h200", tensor_parallel_size=4, pipeline_parallel_size=2, engine=f"vllm@{release}",
            quantization=format, repetition_penalty=1.1,
        )  # fmt: skip
        resolved = resolve(model, pool)
        is_v2 = release >= since
        assert policy_name(resolved) == ("vllm-v1-async" if is_v2 else "vllm-v1")
        plain = resolve(model, pool.model_copy(update={"repetition_penalty": 1.0}))
        assert (resolved.engine.host_serial_s == plain.engine.host_serial_s) == is_v2


@pytest.mark.parametrize(
    ("model", "gpu", "on_v1"),
    [
        ("deepseek-v4-flash", "h200", ["0.27"]),
        ("deepseek-v4-flash", "mi300x", ["0.27", "0.28", "0.29", "0.30", "0.31"]),
        ("deepseek-v3.2", "mi300x", ["0.27", "0.28", "0.29", "0.30", "0.31"]),
        ("glm-5", "mi300x", ["0.27", "0.28", "0.30", "0.31"]),
    ],
)
def test_some_models_run_on_model_runner_v1_on_rocm(model: str, gpu: str, on_v1: list[str]) -> None:
    found = []
    for release in ("0.27", "0.28", "0.29", "0.30", "0.31", "0.32"):
        pool = Pool(
            gpu=gpu,
            tensor_parallel_size=8,
            pipeline_parallel_size=2,
            engine=f"vllm@{release}",
            max_model_len=8000,
        )
        if policy_name(resolve(model, pool)) == "vllm-v1":
            found.append(release)
    assert found == on_v1


def test_stages_of_qwen3_never_overlap_in_vllm_0_22() -> None:
    """Its Model Runner V2 computes a step when the last stage has sampled the tokens of the one before."""
    words: dict[str, Any] = {"tensor_parallel_size": 2, "gpu": "h100", "pipeline_parallel_size": 2}
    for engine, format, stages, policy in (
        ("vllm@0.22", None, 1, "vllm-v1-async"),
        ("vllm@0.22", "fp8", 2, "vllm-v1"),
        ("vllm@0.23", None, 2, "vllm-v1-async"),
    ):
        setup = setup_of(resolve("qwen3-32b", Pool(engine=engine, quantization=format, **words)))
        assert (setup.limits.pipeline_stages, setup.policy) == (stages, policy)
    load = LOAD | {"request_rate": 40, "num_prompts": 200}
    serial, older, overlapping = (
        capacity.simulate("qwen3-32b", engine=f"vllm@{release}", **words, **load).to_dict()["mean_tpot_ms"]
        for release in ("0.22", "0.21", "0.23")
    )
    assert serial > 1.2 * max(older, overlapping)


def test_drafts_that_are_accepted_pay_and_those_that_are_not_cost() -> None:
    plain = simulate()
    good = simulate(speculator="eagle3", acceptance="0.9", num_speculative_tokens=3)
    bad = simulate(speculator="eagle3", acceptance="0.0", num_speculative_tokens=3)
    assert good["mean_tpot_ms"] < plain["mean_tpot_ms"] < bad["mean_tpot_ms"]
    assert good["total_output_tokens"] == bad["total_output_tokens"] == plain["total_output_tokens"]
    assert good["steps"] < plain["steps"]


def test_acceptance_that_differs_between_requests_spreads_their_ends() -> None:
    """The mean over classes of tokens a step stays; a token's time goes by its inverse, so slow ones weigh more."""
    words = {"speculator": "eagle3", "acceptance": "0.7"}
    alike, differing = simulate(**words), simulate(**words, acceptance_spread=1.0)
    assert alike == simulate(**words, acceptance_spread=0.0)
    assert differing["p99_tpot_ms"] > 1.2 * alike["p99_tpot_ms"]
    assert differing["mean_tpot_ms"] > alike["mean_tpot_ms"]
    assert any("standard deviation of 1 in log-odds" in note for note in differing["warnings"])


def test_samples_of_one_prompt_share_its_blocks() -> None:
    """Three of four prompts find all full blocks but the last in the cache: 592 of 600 tokens."""
    answer = simulate(num_samples=4, random_range_ratio=0.0)
    assert answer["completed"] == 160
    assert answer["prefix_cache_hit_fraction"] == pytest.approx(3 / 4 * 592 / 600)


def test_contiguous_kv_holds_fewer_requests() -> None:
    crowded: dict[str, Any] = {"max_model_len": 8192, "gpu_memory_utilization": 0.4}
    paged, contiguous = simulate(**crowded), simulate(**crowded, kv_layout="contiguous")
    assert contiguous["kv_utilization_mean"] > paged["kv_utilization_mean"]
    assert contiguous["prefix_cache_hit_fraction"] is None


def test_switches_reach_the_scheduler() -> None:
    pool = Pool(gpu="h100", scheduler_reserve_full_isl=False, prefill_schedule_interval=3, watermark=0.1)
    limits = scheduler_limits(resolve("llama-3.1-8b", pool))
    assert (limits.reserve_full_isl, limits.prefill_schedule_interval, limits.watermark) == (False, 3, 0.1)
    assert scheduler_limits(resolve("llama-3.1-8b", Pool(gpu="h100"))).reserve_full_isl is True


def test_rules_of_an_older_release_reach_the_scheduler() -> None:
    rules = [
        scheduler_limits(resolve("llama-3.1-8b", Pool(gpu="h100", engine=f"vllm@{version}"))).rules
        for version in ("0.33", "0.30", "0.18")
    ]
    assert [each.lone_prefill_exempt for each in rules] == [True, False, False]
    assert [each.reuses_uncached_first for each in rules] == [True, True, False]


@pytest.mark.parametrize(
    ("version", "setting"),
    [
        ("0.32", {"prefill_schedule_interval": 3}),
        ("0.23", {"watermark": 0.1}),
        ("0.18", {"scheduler_reserve_full_isl": True}),
    ],
)
def test_setting_of_a_newer_release_is_refused(version: str, setting: dict[str, Any]) -> None:
    def setup(engine: str) -> EngineSetup:
        return setup_of(resolve("llama-3.1-8b", Pool(gpu="h100", engine=engine, **setting)))

    assert setup("vllm").limits
    with pytest.raises(InvalidInput, match="only in newer releases: leave"):
        setup(f"vllm@{version}")


def test_sglangs_receive_interval_reaches_its_scheduler_and_no_other() -> None:
    def setup(engine: str) -> EngineSetup:
        return setup_of(resolve("llama-3.1-8b", Pool(gpu="h100", engine=engine, scheduler_recv_interval=30)))

    assert setup("sglang").policy_options["recv_interval"] == 30
    assert (
        "recv_interval"
        not in setup_of(resolve("llama-3.1-8b", Pool(gpu="h100", engine="sglang"))).policy_options
    )
    with pytest.raises(InvalidInput, match="--scheduler-recv-interval"):
        setup("vllm")


def test_stages_do_not_make_the_tokens_of_one_request_faster() -> None:
    """Each token needs the last stage's sample of the one before: the stages of a pipeline pass one by one."""
    alone = {"request_rate": 0.05, "num_prompts": 4, "input_len": 500, "output_len": 50}
    one, four = (
        capacity.simulate("llama-3.1-8b", gpu="h100", pipeline_parallel_size=stages, **alone)  # type: ignore[arg-type]
        for stages in (1, 4)
    )
    assert four.mean_tpot_ms.value == pytest.approx(one.mean_tpot_ms.value, rel=0.1)


@pytest.mark.parametrize(
    ("model", "fields", "lacks"),
    [
        ("gpt-oss-120b", {"gpu": "h100", "engine": "vllm@0.11", "max_model_len": 32_768}, "GiB too little"),
        ("glm-4.5-air", {"gpu": "h100", "engine": "sglang", "tensor_parallel_size": 2}, "GiB too little"),
        ("llama-3.1-8b", {"gpu": "l4", "max_model_len": 131_072}, "one request of 131,072 tokens needs"),
    ],
)
def test_what_does_not_fit_never_reaches_the_simulator(
    model: str, fields: dict[str, Any], lacks: str
) -> None:
    """Every way in makes its engines here: what is missing and a way out, never a number of blocks below 1."""
    with pytest.raises(DoesNotFit, match=rf"{lacks}.*Use --"):
        setup_of(resolve(model, Pool(**fields)))


def test_a_draft_takes_kv_blocks() -> None:
    plain = setup_of(resolve("llama-3.1-8b", Pool(gpu="h100")))
    drafted = setup_of(resolve("llama-3.1-8b", Pool(gpu="h100", speculator="eagle3")))
    assert drafted.num_blocks < plain.num_blocks


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"speculator": "eagle9"}, "Did you mean"),
        ({"num_speculative_tokens": 3}, "--speculator"),
        ({"acceptance": "0.5"}, "--speculator"),
        ({"acceptance_spread": 0.5}, "--speculator"),
        ({"speculator": "eagle3", "acceptance_spread": 5}, "acceptance_spread is 5"),
        ({"speculator": "eagle3", "acceptance": "often"}, "acceptance"),
        ({"speculator": "eagle3", "engine": "hf-transformers"}, "use --engine vllm"),
        ({"num_samples": 0}, "num_samples is 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        simulate(**options)


def test_fit_says_what_drafts_take() -> None:
    plain, drafted = (
        capacity.fit("llama-3.1-70b", gpu="h100", tensor_parallel_size=4, **drafts)
        for drafts in ({}, {"draft": "llama-3.2-1b"})
    )
    (note,) = set(drafted.warnings) - set(plain.warnings)
    left = setup_of(resolve("llama-3.1-70b", Pool(gpu="h100", tensor_parallel_size=4, draft="llama-3.2-1b")))
    held = (
        f"holds {drafted.kv_capacity_tokens:,} tokens with drafting and {plain.kv_capacity_tokens:,} without"
    )
    assert held in note
    assert left.num_blocks == drafted.kv_capacity_blocks - 1


def test_the_workload_of_samples_keeps_arrivals() -> None:
    workload = make_workload(Traffic(input_len=10, output_len=2, num_prompts=3, num_samples=2))
    assert len(workload) == 6
    assert (workload.arrival_s[0::2] == workload.arrival_s[1::2]).all()


def test_the_flags_make_tiers_of_the_memory_plan_and_the_profiles_link() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100", tensor_parallel_size=2, kv_offloading_size=64))
    spec: Offload = setup_of(resolved).policy_options["offload"]
    assert spec.block_bytes == resolved.memory.kv_block_bytes == 16 * 131072 // 2
    assert spec.tiers[0].capacity_chunks == 64 * 2**30 // (16 * 131072)
    assert spec.tiers[0].bytes_per_s == resolved.profile.pcie.bytes_per_s
    lmcache = Pool(
        gpu="h100",
        kv_offloading_size=64,
        kv_offloading_backend="lmcache",
        kv_offloading_disk_size=1000,
        kv_offloading_disk_bytes_per_s=5e9,
    )
    spec = setup_of(resolve("llama-3.1-8b", lmcache)).policy_options["offload"]
    assert (spec.chunk_blocks, spec.synchronous, [tier.name for tier in spec.tiers]) == (
        16,
        True,
        ["cpu", "disk"],
    )
    swap = Pool(gpu="h100", engine="vllm@0.6", preemption_mode="swap", swap_space=16, max_model_len=8192)
    options = setup_of(resolve("llama-3.1-8b", swap)).policy_options
    assert options["num_cpu_blocks"] == 16 * 2**30 // (16 * 131072)
    assert options["swap_block_ps"] == round(16 * 131072 / 51.2e9 * 1e12)


def test_a_pasted_command_says_where_kv_goes() -> None:
    def fields(flags: str) -> dict[str, Any]:
        pool = read_vllm_command(f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}").pool("h100")
        return pool.model_dump(exclude_defaults=True)

    assert fields("--kv-offloading-size 64 --kv-offloading-backend native")["kv_offloading_size"] == 64
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    extra = {"kv_connector_extra_config": {"cpu_bytes_to_use": 2**33}}
    assert fields(f"--kv-transfer-config '{json.dumps(config | extra)}'")["kv_offloading_size"] == 8
    assert fields("--swap-space 16")["swap_space"] == 16
    for bad in (config, {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}):
        with pytest.raises(InvalidInput, match="--kv-offloading-size"):
            fields(f"--kv-transfer-config '{json.dumps(bad)}'")


def test_a_simulation_says_what_each_tier_did() -> None:
    answer = capacity.simulate(
        "llama-3.1-8b",
        gpu="l4",
        num_gpu_blocks_override=1500,
        max_model_len=8192,
        kv_offloading_size=32,
        input_len=200,
        output_len=20,
        random_prefix_len=1600,
        num_prefixes=30,
        request_rate=1.0,
        num_prompts=120,
    ).to_dict()
    (cpu,) = answer["kv_tiers"]
    assert cpu["hit_tokens"] > 0
    assert cpu["stored_bytes"] == cpu["stored"] * 16 * 131072
    assert answer["prefix_cache_hit_fraction"] < 0.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "gpt-oss-20b", "kv_offloading_size": 8}, "windowed attention or recurrent state"),
        ({"engine": "sglang", "kv_offloading_size": 8}, "not for sglang"),
        ({"kv_offloading_size": 8, "enable_prefix_caching": False}, "requires the prefix cache"),
        ({"kv_offloading_size": 8, "kv_offloading_disk_size": 8}, "needs --kv-offloading-disk-bytes-per-s"),
        ({"preemption_mode": "swap"}, "recomputes: use --engine vllm@0.6"),
        ({"kv_offloading_size": -1}, "kv_offloading_size is -1"),
        ({"kv_offloading_size": 8, "kv_offloading_bytes_per_s": 0}, "kv_offloading_bytes_per_s is 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    model = fields.pop("model", "llama-3.1-8b")
    with pytest.raises(InvalidInput, match=message) as refused:
        capacity.simulate(
            model, gpu="h100", input_len=100, output_len=10, request_rate=1.0, num_prompts=5, **fields
        )
    assert "\n" not in str(refused.value)


def test_noise_of_steps_is_of_the_engine() -> None:
    assert setup_of(resolve("llama-3.1-8b", Pool(gpu="h100"))).noise is None
    noise = setup_of(resolve("llama-3.1-8b", Pool(gpu="h100", step_noise=0.02, step_noise_seed=9))).noise
    assert noise is not None
    assert noise.seed == 9
    assert np.std(noise.factors) == pytest.approx(0.02)


def test_the_front_end_is_the_engines_where_the_pool_says_nothing() -> None:
    for engine, request_s, input_token_s, output_token_s in (
        ("tensorrt-llm", 0.0, 2.9e-6, 9e-5),
        ("vllm", 0.001, 2.9e-6, 3.6e-5),
        ("vllm@0.6", 0.0, 0.0, 0.0),
    ):
        times = engine_frontend(resolve("llama-3.1-8b", Pool(gpu="h100", engine=engine)))
        assert (times.request_s, times.input_token_s, times.output_token_s) == (
            request_s,
            input_token_s,
            output_token_s,
        )
        assert times.processes == 1
    pool = Pool(
        gpu="h100",
        front_end_output_token_s=5e-5,
        front_end_input_token_s=1e-6,
        front_end_request_s=0.014,
        api_server_count=4,
    )
    times = engine_frontend(resolve("llama-3.1-8b", pool))
    assert times.request_s == 0.014
    assert (times.output_token_s, times.input_token_s, times.processes) == (5e-5, 1e-6, 4)


def test_requests_of_a_burst_wait_for_each_other_in_the_api_server() -> None:
    """The cost of taking in 64 requests is that of one per process, times 64; a lone one pays its own only."""
    burst: dict[str, Any] = {
        "gpu": "h100", "input_len": 25, "output_len": 4, "random_range_ratio": 0.0, "client_latency_s": 0.0,
        "request_rate": math.inf,
    }  # fmt: skip

    def parts_ms(num_prompts: int, **fields: Any) -> dict[str, float]:
        answer = capacity.simulate("llama-3.1-8b", **burst, num_prompts=num_prompts, **fields).to_dict()
        return dict(answer["time_parts"]["mean_ms"])

    own_ms = 1.0 + 25 * 2.9e-3
    assert parts_ms(1)["api server"] == pytest.approx(2.5 + own_ms)
    free = parts_ms(64, front_end_request_s=0.0, front_end_input_token_s=0.0)
    one, four = parts_ms(64), parts_ms(64, api_server_count=4)
    assert one["api server"] == pytest.approx(free["api server"] + own_ms)
    assert one["queue"] - free["queue"] == pytest.approx(63 * own_ms, rel=0.1)
    assert four["queue"] - free["queue"] == pytest.approx(15 * own_ms, rel=0.2)


def test_a_front_end_that_streams_slower_than_the_engine_makes_is_the_limit() -> None:
    """100 requests of 100 tokens at once: 5,000 tokens/s are sent, however fast they are made."""
    words = {
        "input_len": 10,
        "output_len": 100,
        "random_range_ratio": 0.0,
        "num_prompts": 100,
        "request_rate": float("inf"),
    }
    answer = capacity.simulate("llama-3.1-8b", gpu="h100", **words, front_end_output_token_s=2e-4).to_dict()
    assert answer["output_throughput"] == pytest.approx(5000, rel=0.05)


def test_lora_slots_load_an_adapter_over_pcie() -> None:
    """Rank 16 of all linear layers of an 8B model: 83.9 MB over PCIe, read at 1 GB/s before."""
    assert "adapters" not in setup_of(resolve("llama-3.1-8b", Pool(gpu="h100"))).policy_options
    pool = Pool(gpu="h100", max_loras=2, max_cpu_loras=8, lora_read_bytes_per_s=1e9)
    resolved = resolve("llama-3.1-8b", pool)
    slots = setup_of(resolved).policy_options["adapters"]
    link = resolved.profile.pcie
    assert (slots.max_loras, slots.max_cpu_loras) == (2, 8)
    assert slots.load_ps == pytest.approx(1e12 * (link.latency_s + 83_886_080 / link.bytes_per_s), abs=1)
    assert slots.read_ps == 83_886_080_000


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"engine": "transformers", "max_loras": 2}, "--max-loras is simulated for vllm-v1"),
        ({"max_loras": 2, "lora_read_bytes_per_s": 1e9}, "has no effect without --max-cpu-loras"),
        ({"max_loras": 2, "max_cpu_loras": 1}, "must be at least max_loras"),
        ({"max_loras": 2, "kv_offloading_size": 10.0}, "leave out one of them"),
    ],
)
def test_lora_slots_that_are_not_simulated_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        simulate(num_adapters=9, **fields)


def test_few_slots_for_many_adapters_make_requests_wait() -> None:
    words = {"input_len": 100, "output_len": 50, "num_prompts": 60, "request_rate": 20.0, "num_adapters": 12}
    ttft = [
        capacity.simulate("llama-3.1-8b", gpu="h100", max_loras=slots, **words).to_dict()["mean_ttft_ms"]
        for slots in (1, 4, 12)
    ]
    assert ttft[0] > 5 * ttft[1] > 5 * ttft[2]


def test_a_draft_model_is_simulated_with_its_steps_and_its_memory() -> None:
    """Llama-3.2-1B for Llama-3.1-70B on 4 GPUs: 2.47 GB of weights shared by four, 32 KiB of KV a token likewise.

    The target keeps 80 KiB of KV a token and GPU, its draft 8: the blocks left are those that both fit in.
    """
    plain = resolve("llama-3.1-70b", Pool(gpu="h100", tensor_parallel_size=4))
    drafting = {"draft": "llama-3.2-1b", "num_speculative_tokens": 4, "acceptance": "0.8"}
    target = resolve("llama-3.1-70b", Pool(gpu="h100", tensor_parallel_size=4, **drafting))
    setup = setup_of(target)
    left = plain.memory.kv_cache_bytes - 2 * 1_235_814_400 / 4
    assert setup.num_blocks == pytest.approx(left / (16 * (80 + 8) * 1024), rel=0.001)
    round_s = setup.step_times.step_ps(decode_shape(8, 1000)._replace(draft_tokens=32)) * 1e-12
    verify_s = plain.step_model.step_seconds(decode_shape(8, 1000)._replace(draft_tokens=32))
    alike = resolve("llama-3.2-1b", Pool(gpu="h100", tensor_parallel_size=4))
    hidden = {
        "host_base_s": 0.0,
        "host_per_sequence_s": 0.0,
    }  # in a round nothing is scheduled, nothing put out
    draft = replace(alike, engine=alike.engine.model_copy(update=hidden)).step_model
    accepted = expected_tokens(0.8, 4)
    first = draft.step_seconds(decode_shape(8, 1000)._replace(draft_tokens=round(8 * (accepted - 1))))
    assert round_s == pytest.approx(
        verify_s + first + 3 * draft.step_seconds(decode_shape(8, 1000)), rel=1e-5
    )
    alone = Pool(gpu="h100", tensor_parallel_size=4, draft_tensor_parallel_size=1, **drafting)
    assert setup_of(resolve("llama-3.1-70b", alone)).num_blocks < setup.num_blocks


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"speculator": "draft-model"}, "add --draft MODEL"),
        ({"speculator": "eagle3", "draft": "llama-3.2-1b"}, "eagle3 uses no --draft: remove it"),
        ({"draft": "qwen3-0.6b"}, "must share the target's"),
        ({"draft": "llama-3.2-1b", "draft_tensor_parallel_size": 3}, "must be 1 or the target's 2"),
        ({"draft_tensor_parallel_size": 1}, "need a drafting method"),
    ],
)
def test_drafts_that_cannot_be_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        setup_of(resolve("llama-3.1-8b", Pool(gpu="h100", tensor_parallel_size=2, **fields)))


def test_what_is_dropped_gives_its_blocks_back_in_either_loop() -> None:
    """Prompts of 6,000 tokens hold 375 blocks until they are computed, 512 tokens' from then on."""
    load = LOAD | {"input_len": 6000, "num_prompts": 30, "max_model_len": 8192}
    kept = load | {"kv_eviction": "h2o", "kv_budget": 512}

    def served(asked: dict[str, Any], loop: str) -> dict[str, Any]:
        answer = capacity.simulate("llama-3.1-8b", gpu="h100", **asked, engine_loop=loop).to_dict()
        return {
            name: answer[name] for name in ("kv_utilization_mean", "mean_tpot_ms", "p99_ttft_ms", "steps")
        }

    core = served(kept, "core")
    assert core == served(kept, "events")
    assert core["kv_utilization_mean"] < 0.5 * served(load, "core")["kv_utilization_mean"]


def test_tgi_drafts_by_what_it_has() -> None:
    words: dict[str, Any] = {
        "gpu": "h100",
        "engine": "tgi",
        "input_len": 100,
        "output_len": 50,
        "concurrency": 1,
    }
    plain, drafted = (
        capacity.simulate("llama-3.1-8b", num_prompts=20, **words, **drafts).to_dict()
        for drafts in ({}, {"speculator": "ngram"})
    )
    assert drafted["mean_tpot_ms"] < 0.9 * plain["mean_tpot_ms"]
    with pytest.raises(InvalidInput, match="supports only medusa and ngram and medusa-tree"):
        capacity.simulate("llama-3.1-8b", num_prompts=20, speculator="eagle3", **words)


OFFLINE: dict[str, Any] = {
    "cudagraph_padding": True,
    "gpu": "b200",
    "engine": "tensorrt-llm@1.0",
    "kv_cache_dtype": "fp8",
    "max_model_len": 2064,
    "input_len": 100,
    "output_len": 100,
    "random_range_ratio": 0.0,
}
BY_API_SERVER = "bound by the API server: at most 10,764 output tokens/s"  # 100 in 9.29 ms


@pytest.mark.parametrize("engine_loop", ["core", "events"])
def test_api_server_does_not_bind_an_offline_batch_and_is_named_where_it_binds(engine_loop: str) -> None:
    at_once = {"request_rate": math.inf, "num_prompts": 300, "engine_loop": engine_loop}
    offline = capacity.simulate("gpt-oss-20b", **OFFLINE, **at_once)
    served = capacity.simulate("gpt-oss-20b", **OFFLINE, **at_once, client_latency_s=0.0)
    assert offline.run.summary.output_throughput > 1.5 * served.run.summary.output_throughput
    assert served.run.summary.output_throughput == pytest.approx(10_764, rel=0.05)
    assert any("an offline batch without an API server" in note for note in offline.warnings)
    assert offline.verdict is not None
    assert served.verdict is not None
    assert offline.verdict.bound_by is None
    assert served.verdict.reason.endswith(BY_API_SERVER)
    own = capacity.simulate("gpt-oss-20b", **OFFLINE, **at_once, front_end_output_token_s=9e-5)
    assert own.run.summary.output_throughput == pytest.approx(served.run.summary.output_throughput, rel=0.01)


def test_simulate_estimate_and_explain_name_the_api_server_that_binds() -> None:
    for load in ({"concurrency": 128}, {"request_rate": 140}):
        estimated = capacity.estimate("gpt-oss-20b", **OFFLINE, **load)
        run = capacity.simulate("gpt-oss-20b", **OFFLINE, **load, num_prompts=1500)
        assert run.verdict is not None
        assert (
            estimated.verdict
            == run.verdict.verdict
            == ("saturated" if "concurrency" in load else "overloaded")
        )
        for reason in (estimated.verdict_reason, run.verdict.reason):
            assert reason is not None
            assert BY_API_SERVER in reason
    explained = capacity.explain("gpt-oss-20b", **OFFLINE, concurrency=128)
    assert any(BY_API_SERVER in note for note in explained.warnings)
    below = capacity.estimate("gpt-oss-20b", **OFFLINE, request_rate=50)
    assert below.verdict == "stable"
    assert BY_API_SERVER not in (below.verdict_reason or "")
