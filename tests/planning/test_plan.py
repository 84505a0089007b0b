"""The planner against brute force, its bounds against simulation, and what it says when nothing will do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.answers.engine_setup import engine_setup
from capacity.base.errors import CapacityError, DoesNotFit, InvalidInput, UnknownName
from capacity.deployment import Cost, Pool, Traffic
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.planning.arena import Arena, Task
from capacity.planning.bounds import Load, bound
from capacity.planning.draws import draws
from capacity.planning.judging import Goal
from capacity.planning.market import Market
from capacity.planning.options import Surveyor
from capacity.planning.plan import parsed_slos, plan
from capacity.planning.quality import quality_change, quality_table
from capacity.planning.records import Plan
from capacity.planning.space import Candidate, Search, pairs, pools
from capacity.planning.step_error import Factors, ScaledSteps, factors_at
from capacity.planning.trial import Engines, run_engines, simulate_trial
from capacity.pool.resolve import resolve
from capacity.step import decode_shape, prefill_shape
from capacity.workload import SteadyArrivals, ThinkTime, conversations, random_requests
from capacity.workload.lengths import FixedLengths

PRICES = "a100=1.6,h100=3.85,h200=4.45,b200=6.79,l40s=1"
SHORT: dict[str, Any] = {"input_len": 700, "output_len": 60, "num_prompts": 100, "replications": 1}


def brute_force(
    model: str, slo: str, space: dict[str, Any], traffic: dict[str, Any]
) -> tuple[float, int, set[Candidate]]:
    """The least objective over every engine, pair and number of replicas, all simulated; how many points there were;
    and all that reach that objective. Asserts that the survey leaves each deployment that meets the SLO open."""
    search = Search(**space, replications=traffic["replications"])
    fields = {name: value for name, value in traffic.items() if name != "replications"}
    workloads = draws(Traffic(**fields), None, search.replications)
    arena = Arena(model=load_model(model), workloads=workloads, goal=Goal(slos=parsed_slos(slo)))
    market = Market.of(search, Cost(price=PRICES), [])
    surveyor = Surveyor(arena=arena, search=search, load=Load.of(workloads), market=market)
    found = surveyor.plain() + surveyor.drafting() + surveyor.disaggregated(math.inf)
    options = {option.at(0): option for option in found.options}
    best, points, reached = math.inf, 0, set()
    for candidate in every_candidate(arena, search, market):
        points += 1
        if not arena.run(Task(candidate=candidate, confidence=search.confidence)).met:
            continue
        option = options.get(replace(candidate, replicas=0))
        assert option is not None, f"the survey excluded {candidate}, which meets the SLO"
        assert option.least <= candidate.replicas <= option.most, f"a bound excluded {candidate}"
        value = option.objective(candidate.replicas)
        reached = {candidate} if value < best else reached | {candidate} if value == best else reached
        best = min(best, value)
    assert points == found.points
    return best, points, reached


def every_candidate(arena: Arena, search: Search, market: Market) -> Iterator[Candidate]:
    for gpu in market.quotes:
        for pool in pools(search, gpu, arena.model):
            if "aggregated" in search.serving and _runs(arena, pool):
                for replicas in range(1, search.max_gpus // pool.num_gpus + 1):
                    yield Candidate(pool=pool, replicas=replicas)
        for prefill, decode in pairs(search, gpu, arena.model):
            if "disaggregated" not in search.serving or not (_runs(arena, prefill) and _runs(arena, decode)):
                continue
            for count in range(1, search.max_gpus // prefill.num_gpus + 1):
                left = search.max_gpus - count * prefill.num_gpus
                for replicas in range(1, left // decode.num_gpus + 1):
                    yield Candidate(pool=decode, replicas=replicas, prefill=prefill, prefill_replicas=count)


def _runs(arena: Arena, pool: Pool) -> bool:
    try:
        return arena.resolved(pool).memory.fits and bool(engine_setup(arena.resolved(pool)))
    except CapacityError:
        return False


PLAIN: dict[str, Any] = {"speculators": "none", "serving": "aggregated", "data_parallel_sizes": (1,)}
SPACES = {
    "tensor parallelism and GPUs": (
        "llama-3.1-8b",
        "ttft:p90:400ms tpot:p90:16ms",
        {"gpus": "a100,h100,h200", "tensor_parallel_sizes": (1, 2, 4), "quantizations": (None,),
         "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,), "max_gpus": 24},
        {"request_rate": 60.0},
    ),
    "quantization": (
        "llama-3.1-8b",
        "ttft:p95:300ms tpot:p95:12ms",
        {"gpus": "h100", "tensor_parallel_sizes": (1, 2), "max_num_batched_tokens": (None, 1024), "max_gpus": 12},
        {"request_rate": 50.0},
    ),
    "mixture of experts": (
        "mixtral-8x7b",
        "ttft:p90:800ms tpot:p90:30ms",
        {"gpus": "h100,h200", "tensor_parallel_sizes": (2, 4), "quantizations": (None, "fp8"),
         "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,), "max_gpus": 32},
        {"request_rate": 40.0},
    ),
    "data-parallel attention": (
        "mixtral-8x7b",
        "ttft:p90:800ms tpot:p90:40ms",
        {"gpus": "h200", "tensor_parallel_sizes": (1, 2), "data_parallel_sizes": (1, 2, 4), "quantizations": ("fp8",),
         "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,), "max_gpus": 12},
        {"request_rate": 60.0},
    ),
    "limits of the engine": (
        "llama-3.1-8b",
        "ttft:p95:500ms tpot:p95:20ms",
        {"gpus": "a100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
         "max_num_seqs": (None, 16, 64), "max_num_batched_tokens": (None, 512, 1024), "max_gpus": 16},
        {"request_rate": 40.0},
    ),
    "fewest GPUs": (
        "llama-3.1-8b",
        "e2el:p90:1500ms",
        {"gpus": "a100,h100,b200", "tensor_parallel_sizes": (1, 2), "kv_cache_dtypes": ("auto",), "objective": "gpus",
         "alternatives": False, "max_num_batched_tokens": (None,), "max_gpus": 12},
        {"request_rate": 60.0},
    ),
    "drafts": (
        "llama-3.1-8b",
        "ttft:p95:500ms tpot:p95:8ms",
        {"gpus": "h100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
         "max_num_batched_tokens": (None,), "speculators": ("none", "eagle3-chain", "ngram"),
         "num_speculative_tokens": (2, 4), "max_gpus": 16},
        {"request_rate": 40.0},
    ),
    "disaggregation": (
        "llama-3.1-8b",
        "ttft:p95:1s itl:p99:20ms",
        {"gpus": "a100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
         "max_num_batched_tokens": (None, 512), "serving": ("aggregated", "disaggregated"), "max_gpus": 9},
        {"request_rate": 8.0, "input_len": 2000},
    ),
    "disaggregated mixture of experts": (
        "mixtral-8x7b",
        "ttft:p95:450ms tpot:p95:22ms",
        {"gpus": "h100", "tensor_parallel_sizes": (2, 4), "expert_parallel": (False,), "quantizations": (None,),
         "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,), "serving": "disaggregated", "max_gpus": 20},
        {"request_rate": 24.0, "input_len": 2000},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPACES)
def test_brute_force_agrees(name: str) -> None:
    model, slo, space, rate = SPACES[name]
    space, traffic = PLAIN | space, SHORT | rate
    best, points, reached = brute_force(model, slo, space, traffic)
    answer = plan(model, slo=slo, price=PRICES, **space, **traffic)
    assert answer.best is not None
    assert math.isfinite(best)
    assert answer.best.objective == pytest.approx(best)
    assert answer.best.candidate in reached
    assert answer.proved
    assert answer.counts.points == points
    assert answer.counts.simulated <= 0.20 * points, f"{answer.counts.simulated} of {points}"
    assert answer.best.trial.met
    assert all(level.met for level in answer.best.trial.levels)


@pytest.mark.parametrize("rate", [60.0, 160.0, 240.0, 320.0])
def test_the_fewest_replicas_of_a_single_engine(rate: float) -> None:
    space = {
        "gpus": "a100", "tensor_parallel_sizes": (1,), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
        "max_num_batched_tokens": (None,), "max_gpus": 32, **PLAIN,
    }  # fmt: skip
    traffic = SHORT | {"request_rate": rate}
    slo = "ttft:p90:400ms tpot:p90:30ms"
    best, _, _ = brute_force("llama-3.1-8b", slo, space, traffic)
    answer = plan("llama-3.1-8b", slo=slo, price=PRICES, **space, **traffic)
    assert answer.best is not None
    assert answer.best.objective == pytest.approx(best)
    assert answer.counts.simulated <= 10


def test_bounds_exclude_nothing_that_could_win() -> None:
    """Random engines, loads and limits: what meets the SLO in simulation is never below its bound."""

    @settings(max_examples=60)
    @given(
        gpu=st.sampled_from(("a100", "h100", "l40s", "b200")),
        tp=st.sampled_from((1, 2, 4)),
        cache=st.sampled_from(("auto", "fp8")),
        budget=st.sampled_from((None, 512, 2048)),
        seqs=st.sampled_from((None, 8, 64)),
        rate=st.floats(5, 300),
        lengths=st.tuples(st.integers(1, 3000), st.integers(1, 200)),
        slo=st.sampled_from(
            ("ttft:p90:300ms tpot:p80:20ms", "ttft:500 tpot:30", "e2el:p50:2s", "ttft:p99:1s")
        ),
        replicas=st.integers(1, 6),
        confidence=st.sampled_from((None, 0.9)),
    )
    def check(gpu, tp, cache, budget, seqs, rate, lengths, slo, replicas, confidence) -> None:  # type: ignore[no-untyped-def]
        pool = Pool(
            gpu=gpu,
            tensor_parallel_size=tp,
            kv_cache_dtype=cache if gpu != "a100" else "auto",
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            max_model_len=8192,
        )
        resolved = resolve("llama-3.1-8b", pool)
        workload = random_requests(
            num_requests=60,
            input_len=lengths[0],
            output_len=lengths[1],
            request_rate_per_s=rate,
            range_ratio=0.5,
        )
        goal = Goal(slos=parsed_slos(slo), goodput_target=0.9)
        factors = factors_at(resolved.step_model, confidence)
        found = bound(
            resolved, ScaledSteps(resolved.step_model, factors).step_seconds, Load.of([workload]), goal
        )
        if found.reason is None and replicas >= found.min_replicas:
            return  # nothing is excluded
        assert not simulate_trial(resolved, replicas, [workload], goal, factors=factors).met

    check()


def test_scaled_steps_agree_with_their_pieces() -> None:
    steps = ScaledSteps(
        resolve("llama-3.1-8b", Pool(gpu="h100")).step_model, Factors(prefill=1.4, decode=1.1)
    )
    for batch, context in ((1, 100), (7, 1000), (64, 4096), (200, 777)):
        shape = decode_shape(batch, context)
        piece = steps.decode_piece(shape)
        later = shape._replace(decode_context_tokens=piece.max_context_tokens or shape.decode_context_tokens)
        for at in (shape, later):
            value = piece.base_ps + piece.context_ps * at[9] + piece.window_context_ps * at[10]
            assert steps.step_ps(at) == value
        assert steps.step_ps(shape) * 1e-12 == pytest.approx(steps.step_seconds(shape), rel=0.01)
    assert steps.step_seconds(prefill_shape(1, 500)) == pytest.approx(
        1.4 * resolve("llama-3.1-8b", Pool(gpu="h100")).step_model.step_seconds(prefill_shape(1, 500))
    )


def test_confidence_levels_are_quantiles_of_the_error_band() -> None:
    steps = resolve("llama-3.1-8b", Pool(gpu="h100")).step_model
    band = steps.residuals("decode")
    assert factors_at(steps, 0.95).decode == pytest.approx(1 + band.high)
    assert factors_at(steps, 0.05).decode == pytest.approx(1 + band.low)
    assert factors_at(steps, None) == Factors()


@pytest.mark.parametrize("speculator", [None, "eagle3-chain"])
def test_one_replica_in_turn_is_one_of_the_cluster(speculator: str | None) -> None:
    """What a sample simulates is, to the picosecond, what the same replica does among the others; drafts are drawn by
    request number, and so alike in distribution only."""
    resolved = resolve("llama-3.1-8b", Pool(gpu="a100", speculator=speculator))
    workload = random_requests(num_requests=120, input_len=300, output_len=20, request_rate_per_s=80, seed=3)
    whole = run_engines([Engines(resolved=resolved, replicas=4)], workload).records
    one = run_engines([Engines(resolved=resolved)], workload.take(np.arange(0, 120, 4))).records
    assert np.array_equal(whole.arrival_ps[::4], one.arrival_ps)
    if speculator is None:
        assert np.array_equal(whole.finish_ps[::4], one.finish_ps)
        assert np.array_equal(whole.first_token_ps[::4], one.first_token_ps)
    else:
        ratio = (one.finish_ps - one.arrival_ps).mean() / (whole.finish_ps - whole.arrival_ps).mean()
        assert ratio == pytest.approx(1, abs=0.1)


def test_sessions_and_closed_loops_are_never_sampled() -> None:
    """Their next request waits for an answer, wherever that is given: the whole deployment is simulated."""
    resolved = resolve("llama-3.1-8b", Pool(gpu="a100"))
    talks = conversations(
        num_sessions=600,
        arrivals=SteadyArrivals(40.0),
        turns=FixedLengths(3),
        user_tokens=FixedLengths(20),
        output=FixedLengths(4),
        think_time=ThinkTime(0.5),
        seed=1,
    )
    loop = random_requests(
        num_requests=1700, input_len=50, output_len=4, request_rate_per_s=50
    ).in_closed_loop(8)
    for workload in (talks, loop):
        trial = simulate_trial(resolved, 2, [workload], Goal(slos=parsed_slos("e2el:p95:60s")), sample=True)
        assert (trial.seen, trial.requests) == ("all", len(workload))


def test_giving_up_and_sampling_change_no_verdict() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="a100"))
    workload = random_requests(
        num_requests=2400, input_len=300, output_len=20, request_rate_per_s=120, seed=3
    )
    for slo in ("ttft:p95:100ms", "ttft:p95:2s tpot:p95:60ms", "tpot:p50:10ms ttft:p99:60s"):
        goal = Goal(slos=parsed_slos(slo))
        for replicas in (1, 2, 4):
            full = simulate_trial(resolved, replicas, [workload], goal, give_up=False)
            assert full.seen == "all"
            assert simulate_trial(resolved, replicas, [workload], goal).met == full.met
            sample = simulate_trial(resolved, replicas, [workload], goal, sample=True)
            assert sample.met == full.met
            if full.met and replicas > 1:
                assert sample.seen == "sample"
                assert sample.output_tokens_per_s == pytest.approx(full.output_tokens_per_s, rel=0.05)


# what it says


def quick(**changes: Any) -> Plan:
    options: dict[str, Any] = {
        "gpus": "h100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
        "max_num_batched_tokens": (None,), "request_rate": 20.0, "objective": "gpus",
        "slo": "ttft:p95:500ms tpot:p95:30ms", **PLAIN,
    }  # fmt: skip
    model = changes.pop("model", "llama-3.1-8b")
    return plan(model, **(SHORT | options | changes))


def test_an_infeasible_slo_says_which_part_and_by_how_much() -> None:
    answer = quick(slo="ttft:p95:1ms tpot:p95:30ms")
    assert not answer.ranked
    (miss,) = answer.misses
    assert miss.slo == "ttft:p95:1ms"
    assert miss.factor > 2
    assert "h100" in miss.candidate
    simulated = quick(slo="ttft:p95:30ms tpot:p95:30ms", input_len=300, request_rate=100.0, max_gpus=1)
    if not simulated.ranked:
        assert all(miss.factor > 1 for miss in simulated.misses)
        assert any("ttft" in miss.slo or miss.slo == "capacity" for miss in simulated.misses)


def test_a_limit_on_gpus_is_named_as_such() -> None:
    answer = quick(request_rate=3000.0, max_gpus=1, tensor_parallel_sizes=(1,), num_prompts=3000)
    assert not answer.ranked
    assert answer.misses[0].slo == "capacity" or answer.misses[0].slo.startswith("ttft")
    assert set(answer.reasons) <= {"limit", "slo"}


def test_what_does_not_fit_is_never_the_slos_fault() -> None:
    with pytest.raises(DoesNotFit, match="does not fit") as refused:
        quick(model="llama-3.1-405b", gpus="l40s", slo="ttft:p95:1ms")
    assert "slo" not in str(refused.value).lower()
    assert "weights" in str(refused.value)


def test_refusals_name_the_way_out() -> None:
    with pytest.raises(InvalidInput, match="--price-tier on-demand"):
        quick(objective="cost")
    with pytest.raises(InvalidInput, match="--slo ttft:p95:2s"):
        quick(slo="tpot:p95:30ms")
    with pytest.raises(InvalidInput, match="no service level"):
        quick(slo=())
    with pytest.raises(InvalidInput, match="gpus is"):
        quick(gpus=())
    with pytest.raises(InvalidInput, match="--budget needs a price"):
        quick(budget=10.0)


def test_quality_is_a_constraint_with_sources() -> None:
    table = quality_table()
    assert all(
        row.source and 0 <= row.typical_loss_fraction <= row.worst_loss_fraction < 0.15
        for row in table.values()
    )  # type: ignore[operator]
    model = load_model("llama-3.1-8b")
    both = quality_change(scheme_for(model, "fp8"), model.checkpoint, "fp8")
    assert both.worst_loss_fraction == pytest.approx(
        table["fp8"].worst_loss_fraction + table["kv-fp8"].worst_loss_fraction  # type: ignore[operator]
    )
    assert quality_change(model.checkpoint, model.checkpoint, "auto").worst_loss_fraction == 0
    unknown = quality_change(scheme_for(model, "nf4"), model.checkpoint, "auto")
    assert unknown.worst_loss_fraction is None
    assert not unknown.within(0.5)
    answer = quick(
        quantizations=(None, "fp8", "int4"), kv_cache_dtypes=("auto", "fp8"), max_quality_loss=0.01
    )
    assert {ranked.candidate.pool.quantization for ranked in answer.ranked} <= {None, "fp8"}
    assert all(r.kind == "quality" for r in answer.rejected if "fp8" in r.pool.kv_cache_dtype)


def test_every_gpu_and_format_that_can_do_it_is_ranked_by_its_verified_best() -> None:
    answer = quick(gpus="a100,h100", quantizations=(None, "int4"), max_num_batched_tokens=(None, 4096, 2048))
    leaders = {
        (r.candidate.pool.gpu, r.candidate.pool.quantization): r for r in answer.ranked if r.best_of_its_kind
    }
    assert len(leaders) == 4
    assert all(leader.trial.seen == "all" for leader in leaders.values())
    assert answer.ranked[0].best_of_its_kind


def test_the_answer_is_the_same_twice_and_with_more_workers() -> None:
    first, second = quick(), quick()
    same = ("ranked", "rejected", "counts", "speed_front", "cost_front")
    assert all(getattr(first, name) == getattr(second, name) for name in same)


def test_whole_instances_are_billed() -> None:
    answer = plan(
        "llama-3.1-8b", slo="ttft:p95:500ms", gpus="h100", price_tier="on-demand", price_provider="AWS",
        request_rate=5.0, tensor_parallel_sizes=(1,), quantizations=(None,), kv_cache_dtypes=("auto",),
        max_num_batched_tokens=(None,), **SHORT,
    )  # fmt: skip
    assert answer.best is not None
    assert answer.best.billed_gpus == 8
    assert answer.best.objective == pytest.approx(8 * 6.88)
    assert answer.best.cost is not None
    assert answer.best.cost.usd_per_hour == pytest.approx(8 * 6.88)


def test_latency_objective_spends_the_budget() -> None:
    answer = quick(objective="latency", max_gpus=4)
    assert answer.best is not None
    assert answer.best.num_gpus == 4
    assert answer.best.objective == pytest.approx(answer.best.trial.ratio)


def test_a_time_limit_ends_the_search_and_is_said() -> None:
    answer = quick(gpus="a100,h100", quantizations=(None, "fp8", "int4"), time_limit_s=1e-6)
    assert not answer.proved
    assert "time limit" in answer.proof
    assert answer.counts.unresolved == answer.reasons.get("unresolved", 0)
    assert quick().proof == "nothing cheaper is in doubt"


# objectives and limits


def test_energy_and_gpus_are_minimised_as_told() -> None:
    """One B200 does what takes more A100s: fewest GPUs; the least power is a question of watts, by brute force."""
    space = {
        "gpus": "a100,l40s,b200",
        "tensor_parallel_sizes": (1,),
        "alternatives": False,
        "max_gpus": 12,
        **PLAIN,
    }
    options: dict[str, Any] = {
        "quantizations": (None,), "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,),
    }  # fmt: skip
    slo, traffic = "ttft:p90:600ms tpot:p90:40ms", SHORT | {"request_rate": 30.0}
    for objective in ("gpus", "energy"):
        spaced = {**space, **options, "objective": objective}
        best, _, reached = brute_force("llama-3.1-8b", slo, spaced, traffic)
        answer = plan("llama-3.1-8b", slo=slo, price=PRICES, **spaced, **traffic)
        assert answer.best is not None
        assert answer.best.objective == pytest.approx(best)
        assert answer.best.candidate in reached
    assert answer.best.watts == pytest.approx(best)


def test_a_budget_is_kept_or_named() -> None:
    rich = quick(objective="latency", price="2", budget=6.5, max_gpus=64)
    assert rich.best is not None
    assert rich.best.cost is not None
    assert rich.best.cost.usd_per_hour == 6.0  # three of the GPUs that the money would buy
    poor = quick(objective="cost", price="2", budget=1.0, request_rate=200.0)
    assert not poor.ranked
    assert set(poor.reasons) == {"limit"}
    (miss,) = poor.misses
    assert "--budget 1" in miss.best
    assert miss.slo == "capacity"


def test_max_gpus_bounds_both_sides_of_a_disaggregated_deployment() -> None:
    answer = quick(serving="disaggregated", max_gpus=3)
    assert answer.best is not None
    assert answer.best.num_gpus <= 3
    refused = quick(serving="disaggregated", max_gpus=1)
    assert not refused.ranked
    assert refused.misses[0].slo == "capacity"
    assert "that prefill" in refused.misses[0].best


def test_a_lower_goodput_target_needs_no_more() -> None:
    """Limits owed to each request hold for the share that was asked for: 99 % of them cost as much as 70 %, or more."""
    strict, loose = (
        quick(slo="ttft:300 tpot:12", goodput_target=target, request_rate=120.0, quantizations=(None,))
        for target in (0.99, 0.7)
    )
    assert strict.best is not None
    assert loose.best is not None
    assert loose.best.num_gpus < strict.best.num_gpus
    for answer, target in ((strict, 0.99), (loose, 0.7)):
        assert answer.best is not None
        assert all(level.required_fraction == target for level in answer.best.trial.levels)
        assert all(level.good_fraction >= target for level in answer.best.trial.levels)


def test_drafts_say_whose_acceptance_they_take() -> None:
    drafted: dict[str, Any] = {
        "speculators": "eagle3-chain", "num_speculative_tokens": (2,), "max_gpus": 4, "tensor_parallel_sizes": (1,),
        "slo": "ttft:p95:500ms tpot:p95:7ms",
    }  # fmt: skip
    answer = quick(**drafted)
    assert answer.best is not None
    assert answer.best.candidate.pool.speculator == "eagle3-chain"
    assert any(
        "Llama-3.3-70B-Instruct" in warning and "--acceptance" in warning for warning in answer.warnings
    )
    worse = quick(**drafted, acceptance="0.05")
    assert worse.best is None or worse.best.num_gpus > answer.best.num_gpus


def test_routers_are_an_axis_and_prefix_aware_comes_with_shared_text() -> None:
    named = quick(routers="least-outstanding", request_rate=100.0, tensor_parallel_sizes=(1,))
    assert named.best is not None
    assert named.best.candidate.router == "least-outstanding"
    assert "least-outstanding" in named.best.candidate.label
    assert not any("routers" in text for text in named.not_searched)
    search = Search(gpus="h100", tensor_parallel_sizes=(1,), max_gpus=4, **PLAIN)
    traffic = Traffic(request_rate=40.0, input_len=200, output_len=60, num_prompts=100)
    for changes, routers in (
        ({}, {"round-robin"}),
        ({"random_prefix_len": 2000}, {"round-robin", "prefix-aware"}),
    ):
        workloads = draws(traffic.model_copy(update=changes), None, 1)
        arena = Arena(
            model=load_model("llama-3.1-8b"), workloads=workloads, goal=Goal(slos=parsed_slos("ttft:p95:9s"))
        )
        market = Market.of(search, Cost(price="2"), [])
        found = Surveyor(arena=arena, search=search, load=Load.of(workloads), market=market).plain()
        assert {option.router for option in found.options} == routers
    with pytest.raises(UnknownName, match="router"):
        quick(routers="fastest", request_rate=100.0)


def test_what_draws_in_the_plan_is_named_once() -> None:
    """Every deployment has a label and a dictionary of its own, whatever its shape."""
    pool = Pool(gpu="h100", tensor_parallel_size=2, speculator="ngram", num_speculative_tokens=3)
    alone, apart = (
        Candidate(pool=pool, replicas=2),
        Candidate(pool=pool, replicas=2, prefill=pool, prefill_replicas=3),
    )
    assert alone.num_gpus == 4
    assert apart.num_gpus == 10
    assert "3 x h100 TP2 prefill + 2 x h100 TP2 decode" in apart.label
    assert "ngram 3" in alone.label
    assert [(p.role, p.replicas) for p in apart.pools] == [("prefill", 3), ("decode", 2)]
    assert [(p.role, p.replicas) for p in alone.pools] == [("both", 2)]
