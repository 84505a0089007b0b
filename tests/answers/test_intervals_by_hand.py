"""Intervals of a few settings worked out by hand, and calibration with known corrections."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capacity.answers.interval_parts import PERCENTILE, VERSION, Z_90, deviation_of, relative_ends
from capacity.answers.intervals import (
    Latencies,
    LoadBands,
    bands_of,
    batch_bands,
    batch_ends,
    batch_latencies,
    client_range_s,
    length_spread,
    load_bands,
    predicted_latencies,
    time_across_graph_limit_s,
    unspecified_settings,
    widen_across_graph_limit,
    with_interval,
)
from capacity.answers.phases import Phases, RequestLengths
from capacity.answers.records import Quantity
from capacity.answers.sensitivity import ObservedLoad
from capacity.deployment import Pool, Traffic
from capacity.deployment.client_latency import MAX_S, MIN_S
from capacity.hardware.adjustment import NAMES, Adjustment, prior_covariance
from capacity.hardware.measured_loads import MeasuredLoad
from capacity.hardware.spreads import Metric
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.load_means import LoadMeans
from capacity.step.closed_form import PhaseTimes
from capacity.step.shape import decode_shape, prefill_shape

METRICS: tuple[Metric, ...] = ("ttft", "tpot", "e2e")
LOAD = ObservedLoad(
    input_len=1000, output_len=101, in_flight=8, ttft_s=0.5, tpot_s=0.015, e2e_s=2.0, server_s=0.01
)


@cache
def llama(**fields: Any) -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool(gpu="h100", **fields))


def calibrated(pool: ResolvedPool, loads: tuple[MeasuredLoad, ...] = (), **means: float) -> ResolvedPool:
    """Return the pool with a calibration on its own runs, whose covariance is a quarter of the prior one."""
    return pool.adjusted_by(
        Adjustment(
            means=means,
            covariance=tuple(map(tuple, (prior_covariance() / 4).tolist())),
            source="test",
            date="2026-11-29",
            rows=4,
            models=(pool.model.name,),
            engines=(pool.engine.label,),
            loads=loads,
        )
    )


def measured(pool: ResolvedPool, ttft: float, tpot: float, in_flight: float = 8) -> MeasuredLoad:
    """Return a calibration run at the lengths of `LOAD` with hardly any scatter."""
    return MeasuredLoad(
        deployment=pool.deployment_name,
        in_flight=in_flight,
        input_len=1000,
        output_len=101,
        errors={"ttft": ttft, "tpot": tpot},
        scatter={"ttft": 1e-6, "tpot": 1e-6},
    )


def make_times(ttft_s: float = 0.5, tpot_s: float | None = 0.015, e2e_s: float = 2.0) -> PhaseTimes:
    return PhaseTimes(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        requests_per_s=4.0,
        prefill_share=0.2,
        prefill_shape=prefill_shape(1, 1000),
        decode_shape=decode_shape(8, 1000),
        decode_sequences=8.0,
    )


def make_means(ttft_s: float = 0.5, tpot_s: float | None = 0.015, e2e_s: float = 2.0) -> LoadMeans:
    return LoadMeans(
        requests=100,
        latencies_s={"ttft": ttft_s, "tpot": tpot_s, "e2el": e2e_s},
        waiting_s=0.1,
        requests_per_s=4.0,
        in_flight=8.0,
    )


def make_phases(
    steady: LoadMeans | None, whole: LoadMeans | None, verdict: str = "stable", load: float | None = 0.5
) -> Phases:
    judged = SimpleNamespace(verdict=verdict, load_fraction=load)
    served: Any = SimpleNamespace(steady=steady, whole=whole, verdict=judged)
    return Phases(times=make_times(), requests=8, served=served, warnings=())


# relative errors and the limit of CUDA graphs


def test_relative_ends_apply_to_the_value() -> None:
    assert with_interval(10.0, -0.1, None) == Quantity(value=10.0, low=9.0, high=None)
    assert with_interval(10.0, 0.0, 0.0) == Quantity(value=10.0, low=10.0, high=10.0)


def steps_with_graphs(largest: int | None) -> Any:
    """A pool whose steps take 1 s up to the largest graph and 1 ms more for each token beyond, plus 2 s."""

    def seconds(shape: Any) -> float:
        tokens = shape.prefill_tokens
        return 1.0 if largest is None or tokens <= largest else 3.0 + 0.001 * (tokens - largest)

    return SimpleNamespace(step_model=SimpleNamespace(largest_prefill_graph=largest, step_seconds=seconds))


@pytest.mark.parametrize(
    ("tokens", "other_s"),
    [(512, 2.001), (500, 2.001), (464, 2.001), (463, 0.0), (513, -2.001), (565, -2.001), (566, 0.0)],
)
def test_near_the_largest_graph_the_other_side_is_one_token_beyond(tokens: float, other_s: float) -> None:
    """512 / e^0.1 = 463.3 and 512 * e^0.1 = 565.8 are the last ones nearby."""
    assert time_across_graph_limit_s(steps_with_graphs(512), tokens) == pytest.approx(other_s)
    assert time_across_graph_limit_s(steps_with_graphs(None), tokens) == 0.0


@pytest.mark.parametrize(
    ("other_s", "ends"),
    [(0.0, (0.9, 1.1)), (1.0, (0.9, 1.65)), (-1.0, (0.45, 1.1)), (-3.0, (0.0, 1.1))],
)
def test_an_interval_across_the_limit_covers_both_sides(other_s: float, ends: tuple[float, float]) -> None:
    assert widen_across_graph_limit((0.9, 1.1), other_s, 2.0) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("input_len", "in_flight", "tokens"),
    [(505, 8, 512), (506, 8, 513), (512, 0.5, 512), (512, 1, 512), (513, 1, 513)],
)
def test_ends_of_ttft_and_e2e_cover_the_other_side_and_those_of_tpot_do_not(
    input_len: float, in_flight: float, tokens: int
) -> None:
    """A step has the tokens of one prompt, and one of each other request in flight."""
    pool = resolve("qwen3-next-80b-a3b", Pool(gpu="h200", tensor_parallel_size=2))
    steps = pool.step_model
    assert steps.largest_prefill_graph == 512
    jump_s = steps.step_seconds(prefill_shape(1, 513)) - steps.step_seconds(prefill_shape(1, 512))
    bands = LoadBands(pool, replace(LOAD, input_len=input_len, in_flight=in_flight))
    for metric, own_s in zip(METRICS, (0.5, math.inf, 2.0), strict=True):
        low, high = relative_ends(bands.parts(metric), bands.kind(metric))
        if tokens == 512:
            high *= 1 + jump_s / own_s
        else:
            low *= 1 - jump_s / own_s
        assert bands.ends(metric) == pytest.approx((low, high), rel=1e-12)


def test_a_variant_of_a_profile_has_the_name_of_its_gpu() -> None:
    pool = llama()
    name = pool.profile.name
    assert pool.profile.step_time is not None
    steps = pool.profile.step_time.model_copy(update={"gpu": None})
    variant = replace(
        pool, profile=pool.profile.model_copy(update={"name": f"{name}@mine", "step_time": steps})
    )
    assert LoadBands(variant, LOAD).prediction_context("mean").gpu == name


# client latency


def test_client_range_is_that_of_published_benchmarks_or_of_the_calibration() -> None:
    traffic = Traffic(client_latency_s=0.003)
    assert client_range_s(traffic, None) == pytest.approx((0.003 - MIN_S, MAX_S - 0.003))
    covariance = np.diag(np.arange(1.0, len(NAMES) + 1) * 1e-6)
    adjustment = Adjustment(
        covariance=tuple(map(tuple, covariance.tolist())), source="test", date="2026-11-29"
    )
    away_s = Z_90 * math.sqrt(1e-6 * (NAMES.index("front_end") + 1))
    assert client_range_s(traffic, adjustment) == pytest.approx((away_s, away_s))
    assert client_range_s(traffic, Adjustment(source="test", date="2026-11-29")) == client_range_s(
        traffic, None
    )


def test_an_unknown_client_widens_the_known_ends() -> None:
    traffic = Traffic()
    below_s, above_s = client_range_s(traffic, None)
    found = LoadBands(llama(), LOAD, as_found=True)

    def widen(low: float | None, high: float | None, **more: float) -> Quantity:
        return found.add_client_latency("ttft", Quantity(value=1.0, low=low, high=high), traffic, **more)

    both = widen(0.9, 1.2)
    assert both.value == 1.0
    assert both.low == pytest.approx(1 - math.hypot(0.1, below_s))
    assert both.high == pytest.approx(1 + math.hypot(0.2, above_s))
    assert widen(None, 1.2) == replace(both, low=None)
    assert widen(0.9, None) == replace(both, high=None)
    in_ms = widen(0.9, 1.2, unit_s=1e-3)
    assert in_ms.low == pytest.approx(max(1 - math.hypot(0.1, below_s * 1e3), 0.0))
    assert in_ms.high == pytest.approx(1 + math.hypot(0.2, above_s * 1e3))


def test_a_calibrated_client_is_as_uncertain_as_the_runs_leave_it() -> None:
    own = Quantity(value=1.0, low=0.9, high=1.2)
    plain, near = calibrated(llama()), calibrated(llama(), (measured(llama(), 0.0, 0.0),))
    away_s, _ = client_range_s(Traffic(), plain.profile.adjustment)
    for pool, left in ((plain, 1.0), (near, 0.0)):
        found = LoadBands(pool, LOAD).add_client_latency("ttft", own, Traffic())
        assert found.low == pytest.approx(1 - math.hypot(0.1, away_s * left), abs=1e-4)
        assert found.high == pytest.approx(1 + math.hypot(0.2, away_s * left), abs=1e-4)
        given = Traffic(client_latency_s=0.003)
        assert LoadBands(pool, LOAD).add_client_latency("ttft", own, given) == own
    assert LoadBands(llama(), LOAD).add_client_latency("ttft", own, Traffic()) == own
    only_kernels = llama().adjusted_by(Adjustment(source="test", date="2026-11-29"))
    assert LoadBands(only_kernels, LOAD).add_client_latency("ttft", own, Traffic()) == own


# calibration


def test_without_runs_of_this_deployment_nothing_is_corrected() -> None:
    other = replace(llama().adjusted_by(None))
    for pool in (llama(), other):
        bands = LoadBands(pool, LOAD)
        for metric in METRICS:
            assert bands.calibration_factor(metric) == 1.0
            assert bands.remaining_error(metric) == (0.0, 1.0)
            assert bands.correct(metric, 3.0) == Quantity(value=3.0, low=3.0, high=3.0)


def test_means_of_a_calibration_are_factors() -> None:
    """E2E is corrected by both, weighted with their parts: a quarter of 2 s is TTFT."""
    bands = LoadBands(calibrated(llama(), ttft=0.4, tpot=-0.2), LOAD)
    expected = {"ttft": math.exp(0.4), "tpot": math.exp(-0.2), "e2e": math.exp(0.25 * 0.4 - 0.75 * 0.2)}
    for metric in METRICS:
        assert bands.calibration_factor(metric) == pytest.approx(expected[metric])
        low, high = bands.ends(metric)
        found = bands.with_interval(metric, 3.0)
        value = 3.0 * expected[metric]
        assert found.value == pytest.approx(value)
        assert (found.low, found.high) == (pytest.approx(value * low), pytest.approx(value * high))
        assert bands.correct(metric, 3.0).value == pytest.approx(value)


def test_a_run_at_this_load_gives_its_error_and_leaves_none() -> None:
    """The error of a run with no scatter is known at its load, and unknown far from it."""
    pool = llama()
    near = LoadBands(calibrated(pool, (measured(pool, 0.3, -0.1),), ttft=0.1), LOAD)
    errors = {"ttft": 0.3, "tpot": -0.1, "e2e": 0.25 * 0.3 - 0.75 * 0.1}
    means = {"ttft": 0.1, "tpot": 0.0, "e2e": 0.25 * 0.1}
    for metric in METRICS:
        expected, left = near.remaining_error(metric)
        assert (expected, left) == (pytest.approx(errors[metric], abs=1e-4), pytest.approx(0.0, abs=1e-3))
        assert near.calibration_factor(metric) == pytest.approx(
            math.exp(errors[metric] + means[metric]), rel=1e-4
        )
    far = LoadBands(calibrated(pool, (measured(pool, 0.3, -0.1, in_flight=8000),)), LOAD)
    assert far.remaining_error("e2e") == (pytest.approx(0.0, abs=1e-6), pytest.approx(1.0))
    stranger = measured(pool, 0.3, -0.1).model_copy(update={"deployment": "another"})
    assert LoadBands(calibrated(pool, (stranger,)), LOAD).remaining_error("ttft") == (0.0, 1.0)


@pytest.mark.parametrize(
    "changed",
    [{"in_flight": 16}, {"input_len": 2000}, {"output_len": 202}],
    ids=lambda each: next(iter(each)),
)
def test_at_twice_a_load_the_errors_correlate_by_38_percent(changed: dict[str, float]) -> None:
    """exp(-ln(2)² / (2 * 0.5²)) = 0.3825; without scatter, the root of 1 - 0.3825² remains."""
    pool = llama()
    twice = LoadBands(calibrated(pool, (measured(pool, 0.3, 0.0),)), replace(LOAD, **changed))
    expected, left = twice.remaining_error("ttft")
    correlation = math.exp(-(math.log(2) ** 2) / 0.5)
    assert (expected, left) == (
        pytest.approx(0.3 * correlation, rel=1e-4),
        pytest.approx(math.sqrt(1 - correlation**2), rel=1e-4),
    )


def test_runs_at_this_load_narrow_all_parts_but_the_percentile() -> None:
    pool = llama()
    far, twice = (
        LoadBands(calibrated(pool, (measured(pool, 0.0, 0.0, in_flight),)), LOAD) for in_flight in (8e6, 16)
    )
    _, left = twice.remaining_error("ttft")
    assert 0.9 < left < 0.95
    before, after = far.parts("ttft", "p99"), twice.parts("ttft", "p99")
    assert [part.name for part in before] == [part.name for part in after]
    assert PERCENTILE in [part.name for part in before]
    for one, other in zip(before, after, strict=True):
        factor = 1.0 if one.name == PERCENTILE else left
        assert other.deviation == pytest.approx(one.deviation * factor)
    assert deviation_of(after) < deviation_of(before)


def test_a_load_of_one_output_token_has_no_parts_of_tpot() -> None:
    bands = LoadBands(llama(), replace(LOAD, tpot_s=None, output_len=1))
    assert bands.parts("tpot") == ()
    assert bands.parts("ttft") != ()


# context


def test_context_names_the_deployment_and_what_is_unknown() -> None:
    pool = llama()
    launched, found = (
        LoadBands(pool, LOAD, as_found=as_found).prediction_context("p95") for as_found in (False, True)
    )
    assert (launched.engine, launched.gpu, launched.model) == ("vllm", "h100-sxm-80gb", "llama-3.1-8b")
    assert (launched.engine_label, launched.statistic, launched.is_moe) == (pool.engine.label, "p95", False)
    assert launched.ttft_share == 0.25
    assert launched.unsaid == ()
    assert found.unsaid == unspecified_settings(pool.pool)
    assert (launched.transferred, launched.adjustment) == (False, None)
    late = LoadBands(pool, replace(LOAD, ttft_s=3.0)).prediction_context("mean")
    assert late.ttft_share == 1.0
    assert LoadBands(llama_on("h100-pcie-80gb"), LOAD).prediction_context("mean").transferred


def llama_on(gpu: str) -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool(gpu=gpu))


def test_settings_are_unknown_unless_they_are_given() -> None:
    names = ("max_num_batched_tokens", "max_num_seqs", "kv_cache_dtype")
    assert unspecified_settings(Pool(gpu="h100")) == (VERSION, *names)
    assert unspecified_settings(Pool(gpu="h100", engine="vllm@0.33")) == names
    assert unspecified_settings(Pool(gpu="h100", kv_cache_dtype="auto")) == (VERSION, *names[:2])
    assert unspecified_settings(Pool(gpu="h100", max_num_seqs=9, engine="vllm@0.33")) == (names[0], names[2])


@pytest.mark.parametrize(("in_flight", "saturated"), [(16, False), (16.5, True)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_closed_loop_of_more_than_fit_is_saturated(in_flight: float, saturated: bool, ranks: int) -> None:
    pool = llama(max_num_seqs=16, data_parallel_size=ranks)
    load = replace(LOAD, in_flight=in_flight * ranks)
    assert LoadBands(pool, load).prediction_context("mean").saturated == saturated
    open_loop = replace(load, load_fraction=0.5)
    assert not LoadBands(pool, open_loop).prediction_context("mean").saturated


def test_what_fits_is_the_kv_cache_over_the_whole_request() -> None:
    pool = llama(num_gpu_blocks_override=1000)
    tokens = round(LOAD.input_len + LOAD.output_len)
    most = pool.concurrent_requests(tokens)
    assert 1 < most < pool.max_num_seqs
    for in_flight in (most, most + 1):
        context = LoadBands(pool, replace(LOAD, in_flight=in_flight)).prediction_context("mean")
        assert context.saturated == (in_flight > most)
    long = replace(LOAD, input_len=1e6, in_flight=1)
    assert not LoadBands(pool, long).prediction_context("mean").saturated, "one request is alone"
    assert LoadBands(pool, replace(long, in_flight=2)).prediction_context("mean").saturated


# loads and batches


def test_a_load_is_its_means_and_lengths() -> None:
    pool = llama()
    bands = load_bands(pool, make_means(), (1000.0, 101.0), client_latency_s=0.005, load_fraction=0.5)
    assert bands.seen == ObservedLoad(
        input_len=1000.0,
        output_len=101.0,
        in_flight=8.0,
        ttft_s=0.5,
        tpot_s=0.015,
        e2e_s=2.0,
        server_s=0.005 + pool.engine.server_latency_s(1000.0),
        waiting_s=0.1,
        load_fraction=0.5,
    )
    assert not bands.as_found
    at_once = load_bands(pool, make_means(), (1000.0, 101.0), client_latency_s=0.0, load_fraction=math.inf)
    assert at_once.seen.load_fraction is None


def test_bands_of_a_load_need_a_steady_state_and_lengths() -> None:
    lengths = RequestLengths(input_len=1000, output_len=101)
    steady, none = make_phases(make_means(), None), make_phases(None, None)
    open_loop = Traffic(input_len=1000, output_len=101, request_rate=4.0)
    closed = Traffic(input_len=1000, output_len=101, concurrency=8)
    for traffic, fraction in ((open_loop, 0.5), (closed, None)):
        bands = bands_of(llama(), steady, traffic, lengths)
        assert bands is not None
        assert bands.seen.load_fraction == fraction
        assert bands.seen.in_flight == 8.0
        assert bands_of(llama(), none, traffic, lengths) is None
        assert predicted_latencies(llama(), none, traffic, lengths) is None
    for field in ("input_len", "output_len"):
        assert bands_of(llama(), steady, open_loop.model_copy(update={field: None}), lengths) is None
    batch = bands_of(llama(), replace(steady, served=None), open_loop, lengths)
    assert batch == batch_bands(llama(), make_times(), lengths, 8)
    assert batch.seen == replace(LOAD, server_s=llama().engine.server_latency_s(1000))


def test_latencies_of_a_load_cover_the_means_of_the_whole_run() -> None:
    lengths = RequestLengths(input_len=1000, output_len=101)
    traffic = Traffic(input_len=1000, output_len=101, request_rate=4.0, client_latency_s=0.0)

    def predict(whole: LoadMeans | None, verdict: str = "stable", load: float | None = 0.5) -> Latencies:
        found = predicted_latencies(
            llama(), make_phases(make_means(), whole, verdict, load), traffic, lengths
        )
        assert found is not None
        return found

    steady = predict(None)
    bands = load_bands(llama(), make_means(), (1000, 101), client_latency_s=0.0, load_fraction=0.5)
    assert steady == (
        bands.with_interval("ttft", 0.5), bands.with_interval("tpot", 0.015), bands.with_interval("e2e", 2.0)
    )  # fmt: skip
    slow = predict(make_means(50.0, 1.5, 200.0))
    assert [each.value for each in slow if each] == [0.5, 0.015, 2.0]
    assert [each.high for each in slow if each] == [50.0, 1.5, 200.0]
    assert [each.low for each in slow if each] == [each.low for each in steady if each]
    fast = predict(make_means(0.005, 0.00015, 0.02))
    assert [each.low for each in fast if each] == [0.005, 0.00015, 0.02]
    assert predict(make_means(0.5, None, 2.0)) == steady
    saturated = predict(None, "saturated")
    assert saturated == (replace(steady[0], high=None), steady[1], replace(steady[2], high=None))
    assert predict(None, "saturated", None)[0].high is not None


def test_latencies_of_one_output_token_have_no_tpot() -> None:
    lengths = RequestLengths(input_len=1000, output_len=1)
    traffic = Traffic(input_len=1000, output_len=1, request_rate=4.0, client_latency_s=0.0)
    means = make_means(0.5, None, 0.5)
    found = predicted_latencies(llama(), make_phases(means, means), traffic, lengths)
    assert found is not None
    assert found.tpot_s is None
    assert found.e2e_s.value == found.ttft_s.value == 0.5


def test_a_found_server_has_wider_intervals_and_an_unknown_client() -> None:
    lengths = RequestLengths(input_len=1000, output_len=101)
    traffic = Traffic(input_len=1000, output_len=101, request_rate=4.0)
    phases = make_phases(make_means(), None)
    found = predicted_latencies(llama(), phases, traffic, lengths, as_found=True)
    assert found is not None
    bands = load_bands(
        llama(), make_means(), (1000, 101), client_latency_s=traffic.client_latency_s, load_fraction=0.5
    )
    bands = replace(bands, as_found=True)
    assert found.tpot_s == bands.with_interval("tpot", 0.015)
    for metric, own, value in (("ttft", found.ttft_s, 0.5), ("e2e", found.e2e_s, 2.0)):
        alone = bands.with_interval(metric, value)  # type: ignore[arg-type]
        assert own == bands.add_client_latency(metric, alone, traffic)  # type: ignore[arg-type]
        assert own != alone


def test_a_batch_has_the_measured_errors_of_its_steps() -> None:
    lengths = RequestLengths(input_len=1000, output_len=101)
    found = batch_latencies(llama(), make_times(), lengths, 8)
    prefill, decode = (llama().step_model.residuals(phase) for phase in ("prefill", "decode"))
    assert found.ttft_s == with_interval(0.5, prefill.low, prefill.high)
    assert found.tpot_s == with_interval(0.015, decode.low, decode.high)
    ttft, tpot = found.ttft_s, found.tpot_s
    assert found.e2e_s.value == 2.0
    assert found.e2e_s.low == pytest.approx((ttft.low or 0) + 100 * (tpot.low or 0))
    assert found.e2e_s.high == pytest.approx((ttft.high or 0) + 100 * (tpot.high or 0))
    assert batch_ends(llama(), make_times(), lengths, 8) == {
        "ttft_s": (ttft.low, ttft.high), "tpot_s": (tpot.low, tpot.high)
    }  # fmt: skip
    single = batch_latencies(llama(), make_times(0.5, None, 0.5), lengths, 8)
    assert (single.ttft_s, single.tpot_s, single.e2e_s) == (ttft, None, ttft)
    assert set(batch_ends(llama(), make_times(0.5, None, 0.5), lengths, 8)) == {"ttft_s"}


def test_the_prompts_of_a_batch_share_the_step_that_may_exceed_the_largest_graph() -> None:
    pool = resolve("qwen3-next-80b-a3b", Pool(gpu="h200", tensor_parallel_size=2))
    assert pool.step_model.largest_prefill_graph == 512
    found = batch_latencies(pool, make_times(), RequestLengths(input_len=128, output_len=101), 4).ttft_s
    prefill = pool.step_model.residuals("prefill")
    alone = with_interval(0.5, prefill.low, prefill.high)
    ends = widen_across_graph_limit(
        (alone.low or 0, alone.high or 0), time_across_graph_limit_s(pool, 512), 0.5
    )
    assert (found.low, found.high) == ends
    assert ends[1] > (alone.high or 0)


def test_a_calibrated_batch_is_corrected_as_a_load() -> None:
    lengths = RequestLengths(input_len=1000, output_len=101)
    pool = calibrated(llama(), ttft=0.4, tpot=-0.2)
    found = batch_latencies(pool, make_times(), lengths, 8)
    bands = batch_bands(pool, make_times(), lengths, 8)
    assert found == (
        bands.with_interval("ttft", 0.5), bands.with_interval("tpot", 0.015), bands.with_interval("e2e", 2.0)
    )  # fmt: skip
    assert found.ttft_s.value == pytest.approx(0.5 * math.exp(0.4))


def test_uncertain_drafts_widen_decode_steps_only() -> None:
    """Both errors of the logarithm add in quadrature."""
    drafted = llama(speculator="ngram")
    spread = length_spread(drafted)
    assert spread > 0
    assert length_spread(llama()) == 0.0
    lengths = RequestLengths(input_len=1000, output_len=101)
    found = batch_latencies(drafted, make_times(), lengths, 8)
    prefill, decode = (drafted.step_model.residuals(phase) for phase in ("prefill", "decode"))
    assert found.ttft_s == with_interval(0.5, prefill.low, prefill.high)
    assert found.tpot_s is not None
    low = math.exp(-math.hypot(math.log(1 + decode.low), Z_90 * spread))
    high = math.exp(math.hypot(math.log(1 + decode.high), Z_90 * spread))
    assert (found.tpot_s.low, found.tpot_s.high) == (pytest.approx(0.015 * low), pytest.approx(0.015 * high))
