"""An adjustment changes the times that it names, is written and read back equal, and may exceed a peak."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from capacity.base.errors import MalformedFile
from capacity.deployment import Pool
from capacity.hardware import dump_profile, load_profile, parse_profile
from capacity.hardware.adjustment import NAMES, NO_ADJUSTMENT, PARAMETERS, Adjustment, prior_covariance
from capacity.hardware.coefficients import universal_family
from capacity.hardware.kernel_lookup import KernelLookup
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import StepShape, decode_shape

DECODE = StepShape(decode_sequences=32, decode_context_tokens=32_000, decode_window_context_tokens=32_000)
POSTERIOR = Adjustment(
    means={"memory": 0.05, "front_end": 0.004, "kv_overhead": -2.5e8},
    covariance=tuple(map(tuple, prior_covariance().tolist())),
    source="two runs of one's own",
    date="2026-11-22",
    rows=4,
    models=("qwen3-32b",),
    engines=("vllm",),
)


def moe_pool() -> ResolvedPool:
    pool = Pool(gpu="h200", tensor_parallel_size=8, quantization="fp8-block", enforce_eager=False)
    return resolve("qwen3-235b-a22b", pool)


def seconds(resolved: ResolvedPool, shape: StepShape) -> float:
    return resolved.step_model.step_seconds(shape)


def test_a_profile_with_one_is_written_and_read_back_equal() -> None:
    profile = load_profile("h200").with_adjustment(POSTERIOR)
    assert parse_profile(dump_profile(profile)) == profile


@pytest.mark.parametrize("name", ["memory", "experts", "all_reduce", "host"])
def test_each_part_makes_a_decode_step_slower_in_proportion_to_its_share(name: str) -> None:
    pool = moe_pool()
    base, slower = (
        seconds(pool.adjusted_by(NO_ADJUSTMENT.shift_means({name: shift})), DECODE) for shift in (0.0, 0.01)
    )
    twice = seconds(pool.adjusted_by(NO_ADJUSTMENT.shift_means({name: 0.02})), DECODE)
    assert base < slower < base * math.exp(0.01)
    assert twice - base == pytest.approx(2 * (slower - base), rel=0.05)


def test_all_of_the_gpus_work_slower_is_a_step_as_much_slower() -> None:
    pool = moe_pool()
    everything = dict.fromkeys(("memory", "compute", "experts", "all_reduce", "host", "eager"), math.log(1.1))
    for shape in (DECODE, StepShape(prefill_sequences=1, prefill_tokens=3000, prefill_pairs=4_500_000)):
        slower = pool.adjusted_by(NO_ADJUSTMENT.shift_means(everything))
        assert seconds(slower, shape) == pytest.approx(1.1 * seconds(pool, shape), rel=1e-6)


def test_steps_outside_of_graphs_take_their_launches_longer() -> None:
    pool = moe_pool()
    prefill = StepShape(prefill_sequences=1, prefill_tokens=1000, prefill_pairs=500_000)
    slower = pool.adjusted_by(NO_ADJUSTMENT.shift_means({"eager": 0.3}))
    assert seconds(slower, prefill) > 1.02 * seconds(pool, prefill)
    assert seconds(slower, DECODE) == seconds(pool, DECODE)


def test_the_front_end_is_in_the_time_to_first_token_and_cannot_be_negative() -> None:
    pool = moe_pool()
    assert pool.adjusted_by(
        NO_ADJUSTMENT.shift_means({"front_end": 0.010})
    ).limits.request_latency_s == pytest.approx(pool.limits.request_latency_s + 0.010)
    assert pool.adjusted_by(NO_ADJUSTMENT.shift_means({"front_end": -1.0})).limits.request_latency_s == (
        pool.engine.request_s
    )
    assert pool.adjusted_by(None).limits == pool.limits


def test_memory_that_others_hold_is_missing_from_the_kv_cache() -> None:
    pool = moe_pool()
    held = pool.adjusted_by(NO_ADJUSTMENT.shift_means({"kv_overhead": 1e9})).memory
    assert pool.memory.kv_cache_bytes - held.kv_cache_bytes == 1_000_000_000


def test_factor_may_exceed_a_peak_and_the_lookup_names_the_operator() -> None:
    lookup = KernelLookup((), "vllm", adjustment=NO_ADJUSTMENT.shift_means({"memory": -0.5}))
    own = universal_family().gemm["bf16"]
    found = lookup.kernel("gemm", "bf16")
    assert found.bandwidth_fraction == pytest.approx(own.bandwidth_fraction * math.exp(0.5))
    assert found.compute_fraction == own.compute_fraction
    assert found.fixed_s == pytest.approx(own.fixed_s * math.exp(-0.5))
    assert lookup.above_peak == ["gemm"]
    below = KernelLookup((), "vllm", adjustment=NO_ADJUSTMENT.shift_means({"memory": -0.01}))
    assert below.kernel("gemm", "bf16").bandwidth_fraction < 1
    assert below.above_peak == []


def test_time_of_experts_and_collectives_follows_factors_above_a_peak() -> None:
    """A token exponent and a gain by ranks, which have limits of their own, do not bring the peak back."""
    pool = moe_pool()

    def parts(**means: float) -> dict[str, float]:
        cost = pool.adjusted_by(NO_ADJUSTMENT.shift_means(means)).step_model.step_cost(DECODE)
        return {row.name: row.seconds for row in cost.operators}

    half = math.log(0.5)
    before, after = parts(experts_tilt=-0.01), parts(experts_tilt=-0.01, experts=half, all_reduce=half)
    for name in ("experts", "all-reduce"):
        assert after[name] == pytest.approx(before[name] / 2, rel=1e-3)


def test_without_a_posterior_the_covariance_is_the_prior() -> None:
    assert np.array_equal(NO_ADJUSTMENT.covariance_matrix, prior_covariance())
    assert [parameter.name for parameter in PARAMETERS] == list(NAMES)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("means = { tensor = 0.1 }", "unknown parameter 'tensor'; use one of memory, compute"),
        ("means = { memory = 9.0 }", "memory is 9; the logarithm of a factor must be within ±3"),
        ("means = { experts_tilt = 2.0 }", "experts_tilt is 2; a token exponent must be within ±1"),
        ("covariance = [[1.0]]", "covariance must be 11 rows of 11 numbers"),
        (f"covariance = {[[0.0] * 10] * 10}", "a variance of 0"),
        (f"covariance = {[[1.0] * 9 + [2.0 + 5 * i] for i in range(10)]}", "not symmetric"),
        (
            f"covariance = {[[1.0 if i == j else -0.9 for j in range(10)] for i in range(10)]}",
            "not positive semidefinite",
        ),
    ],
)
def test_an_impossible_one_is_refused_in_one_line(table: str, said: str) -> None:
    text = (
        dump_profile(load_profile("h200")) + f'\n[adjustment]\nsource = "x"\ndate = "2026-11-22"\n{table}\n'
    )
    with pytest.raises(MalformedFile, match=said):
        parse_profile(text, origin=Path("h200.toml"))


def test_a_variant_of_fewer_parameters_has_learnt_nothing_of_the_last() -> None:
    """Ten there were before the tilt of experts was known."""
    ten = np.diag(np.arange(1.0, 11.0))
    ten[0, 1] = ten[1, 0] = 0.5
    rows = tuple(map(tuple, ten.tolist()))
    found = Adjustment(covariance=rows, source="test", date="2026-11-22").covariance_matrix
    assert np.array_equal(found[:10, :10], ten)
    assert not found[:10, 10].any()
    assert found[10, 10] == prior_covariance()[10, 10]


def test_a_tilt_moves_experts_by_the_tokens_of_a_step_and_no_further_than_a_roof() -> None:
    pool = moe_pool()
    steps = [decode_shape(tokens, 1000) for tokens in (8, 32, 256, 4096, 16_384)]

    def experts(tilt: float) -> list[float]:
        model = pool.adjusted_by(NO_ADJUSTMENT.shift_means({"experts_tilt": tilt})).step_model
        return [
            next(row.seconds for row in model.step_cost(shape).operators if row.name == "experts")
            for shape in steps
        ]

    base = experts(0.0)
    slower = np.array(experts(0.1)) / base
    assert slower == pytest.approx([4**-0.1, 1.0, 8**0.1, 128**0.1, 128**0.1], rel=1e-6)
    faster = np.array(experts(-1.0)) / base
    assert faster[:2] == pytest.approx([4.0, 1.0], rel=1e-6)
    assert 0.5 < faster[2] < 1.0
    assert faster[2:] == pytest.approx([faster[2]] * 3, rel=1e-9)


def test_an_answer_says_what_was_learnt_and_of_what() -> None:
    assert POSTERIOR.calibration_notes("qwen3-32b", "vllm") == (
        "calibrated on 4 measured values of qwen3-32b on vllm (2026-11-22)",
    )
    (said,) = POSTERIOR.calibration_notes("llama-3.1-8b", "vllm")
    assert said.endswith(", but not on llama-3.1-8b, whose kernel and host times may differ")
    assert NO_ADJUSTMENT.calibration_notes("llama-3.1-8b", "vllm") == ()
