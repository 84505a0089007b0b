"""Disaggregated prefill and decode: equal to a prefill-only and a decode-only run where the link is infinite, and
conserving requests, transfers and blocks where it is not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_loops import LOOPS, on
from engine_runs import KneedStepTimes
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.disaggregated import DisaggregatedCluster
from capacity.simulator.dispatch import Dispatch
from capacity.simulator.fleet import Autoscaling, Failures, autoscale_pool
from capacity.simulator.members import Recording
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.time_parts import PARTS, time_parts
from capacity.simulator.transfer import KvLink, allocate_computed
from capacity.step import AffineStepTimes
from capacity.workload import (
    FixedLengths,
    LognormalLengths,
    PromptContent,
    SharedPrefixes,
    SteadyArrivals,
    Workload,
    synthetic,
)

STEPS = AffineStepTimes(0.01, 1e-4, per_context_token_s=2e-8)


INSTANT = KvLink(bytes_per_token=1e5, bytes_per_s=math.inf)


LIMITS = SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=2000)


def setup(role: str, **more: object) -> EngineSetup:
    return replace(
        EngineSetup(step_times=STEPS, num_blocks=4000, policy="vllm-v1", limits=LIMITS),
        role=role,
        **more,
    )


def requests(count: int = 120, rate: float = 10.0, prompt: int | None = None, **more: object) -> Workload:
    return synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rate),
        prompt=LognormalLengths(150, 1.0, highest_tokens=1500) if prompt is None else FixedLengths(prompt),
        output=LognormalLengths(30, 1.0, highest_tokens=400),
        **more,  # type: ignore[arg-type]
    )


def split(workload: Workload, link: KvLink = INSTANT, **more: object) -> SimulationResult:
    return simulate(workload, [setup("prefill"), setup("decode")], link=link, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async"])
def test_the_prefill_pool_is_a_run_of_prompts_alone(policy: str) -> None:
    workload = requests()
    found = simulate(
        workload, [setup("prefill", policy=policy), setup("decode", policy=policy)], link=INSTANT
    )
    alone = simulate(
        replace(workload, output_tokens=np.ones(len(workload), dtype=np.int64)),
        EngineSetup(step_times=STEPS, num_blocks=4000, policy=policy, limits=LIMITS),
    )
    arrived_ps = found.records.arrival_ps + 0
    np.testing.assert_array_equal(found.records.first_scheduled_ps, alone.records.first_scheduled_ps)
    assert found.transfer_ps is not None
    assert (found.records.first_token_ps > alone.records.finish_ps).all(), "a decode step lies between"
    assert (arrived_ps <= alone.records.finish_ps).all()


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async"])
def test_the_decode_pool_is_a_run_whose_prompts_are_cached(policy: str) -> None:
    """With blocks of one token, a prompt that is wholly cached leaves exactly one token to compute: the same as a
    prompt that was loaded. So an engine whose cache is warm, and whose requests arrive as the prefill pool ends
    them, must do in each step what the decode pool does."""
    prompt, count = 200, 80
    workload = requests(count, prompt=prompt)
    decode = setup("decode", policy=policy, block_size=1, num_blocks=60_000)
    found = simulate(workload, [setup("prefill", policy=policy), decode], link=INSTANT)
    prefilled = simulate(
        replace(workload, output_tokens=np.ones(count, dtype=np.int64)),
        EngineSetup(step_times=STEPS, num_blocks=4000, policy=policy, limits=LIMITS),
    ).records.finish_ps
    later = 100.0
    warm = Workload(
        arrival_s=np.concatenate(([0.0], later + prefilled / 1e12)),
        prompt_tokens=np.full(count + 1, prompt),
        output_tokens=np.concatenate(([1], workload.output_tokens)),
        content=PromptContent.from_segments([[(0, prompt)]] * (count + 1)),
    )
    alone = simulate(
        warm, EngineSetup(step_times=STEPS, num_blocks=60_000, block_size=1, policy=policy, limits=LIMITS)
    ).records
    shift = round(later * 1e12)
    assert (alone.cached_tokens[1:] == prompt - 1).all()
    np.testing.assert_allclose(found.records.first_token_ps, alone.first_token_ps[1:] - shift, atol=100)
    np.testing.assert_allclose(found.records.finish_ps, alone.finish_ps[1:] - shift, atol=100)


def test_a_slow_link_delays_by_its_time() -> None:
    """One request: TTFT is prefill, transfer, and one decode step that recomputes the last prompt token."""
    workload = requests(1, prompt=400)
    link = KvLink(bytes_per_token=1e5, bytes_per_s=1e8, latency_s=0.003)
    found = split(workload, link)
    prefill_ps, decode_ps = 10_000_000_000 + 400 * 100_000_000, 10_000_000_000 + 100_000_000
    transfer_ps = 400 * 1e5 / 1e8 * 1e12 + 3e9
    record = found.records
    assert int(record.first_token_ps[0] - record.arrival_ps[0]) == prefill_ps + int(transfer_ps) + decode_ps
    assert found.transfer_ps is not None
    assert int(found.transfer_ps[0]) == int(transfer_ps)


workloads = st.builds(
    lambda rate, seed, shared: requests(
        rate=rate, seed=seed, shared_prefixes=SharedPrefixes(64, 3) if shared else None
    ),
    st.sampled_from((5.0, 20.0)),
    st.integers(0, 1000),
    st.booleans(),
)


@settings(max_examples=examples(20))
@given(
    workloads,
    st.sampled_from((130, 300, 2000)),
    st.sampled_from((130, 300, 2000)),
    st.sampled_from((1e7, 1e9, math.inf)),
    st.sampled_from(("vllm-v1", "vllm-v1-async")),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_everything_is_conserved(
    workload: Workload,
    prefill_blocks: int,
    decode_blocks: int,
    bytes_per_s: float,
    policy: str,
    prefillers: int,
    decoders: int,
) -> None:
    """Requests, tokens, transfers; time's order."""
    link = KvLink(bytes_per_token=1e5, bytes_per_s=bytes_per_s, latency_s=0.001)
    setups = [setup("prefill", num_blocks=prefill_blocks, policy=policy)] * prefillers
    setups += [setup("decode", num_blocks=decode_blocks, policy=policy)] * decoders
    found = simulate(workload, setups, link=link)
    records = found.records
    assert found.status == "complete", found.reason
    assert records.completed.all()
    np.testing.assert_array_equal(records.output_tokens, workload.output_tokens)
    assert found.transfer_ps is not None
    least_ps = np.rint(1e5 * workload.prompt_tokens / bytes_per_s * 1e12) + 1e9
    assert (found.transfer_ps >= least_ps - 1).all()
    after_prefill = records.first_token_ps - found.transfer_ps
    assert (records.first_scheduled_ps < after_prefill).all()
    assert (records.first_token_ps <= records.finish_ps).all()
    assert sum(replica.requests for replica in found.replicas) == 2 * len(workload)


def deployed(
    workload: Workload,
    setups: list[EngineSetup],
    link: KvLink,
    *,
    scaling: dict[str, Autoscaling] | None = None,
    **options: Any,
) -> tuple[DisaggregatedCluster, SimulationResult]:
    """A run, and the deployment that it leaves behind."""
    dispatch = Dispatch(link=link, **{"router": "round-robin", **options})
    cluster = DisaggregatedCluster(workload, setups, dispatch, Recording())
    for each in setups:
        cluster.add(each)
    for role, plan in (scaling or {}).items():
        like = next(each for each in setups if each.role == role)
        cluster.env.process(autoscale_pool(cluster, like, plan))
    cluster.run()
    return cluster, cluster.result()


def assert_conserved(cluster: DisaggregatedCluster, found: SimulationResult, workload: Workload) -> None:
    """Requests, tokens, transfers and blocks: each in one place, and at the end in none."""
    records, done = found.records, found.records.completed
    assert found.status == "complete", found.reason
    assert int(done.sum()) + found.timed_out + found.rejected + found.lost == len(workload)
    np.testing.assert_array_equal(records.output_tokens[done], workload.output_tokens[done])
    for earlier, later in (
        (records.arrival_ps, records.first_scheduled_ps),
        (records.first_scheduled_ps, records.first_token_ps),
        (records.first_token_ps, records.finish_ps),
    ):
        assert (earlier[done] <= later[done]).all()
    counts = found.transfers
    assert counts is not None
    assert counts["begun"] == counts["arrived"] + counts["aborted"]
    assert counts["arrived"] >= int(done.sum())
    assert found.transfer_ps is not None
    least_ps = np.array([cluster.transfers.link.payload_ps(n) for n in workload.prompt_tokens.tolist()])
    assert (found.transfer_ps[done] >= least_ps[done]).all()
    assert cluster.outstanding == 0
    for router in (cluster.router, cluster.decoders):
        assert not any(router.requests), "no router still counts a request"
        assert not any(router.prompt_tokens)
    for number, member in enumerate(cluster.members):
        if member.alive:
            account = cluster.engines.account(number)
            assert account.free_blocks == account.num_blocks, "KV blocks leaked"
            assert account.stalled_by is None, "requests are left"
    parts = time_parts(records, found.transfer_ps)
    total = sum(parts.part_of(part) for part in PARTS)
    np.testing.assert_array_equal(total, (records.finish_ps - records.arrival_ps)[done])
    assert all((parts.part_of(part) >= 0).all() for part in PARTS)


LOSSES = Failures(mean_time_between_failures_s=6.0, recovery_s=1.0, seed=3)


services = st.fixed_dictionaries(
    {
        "timeout_s": st.sampled_from((None, 0.4, 2.0)),
        "queue_limit": st.sampled_from((None, 2)),
        "outstanding_limit": st.sampled_from((None, 3)),
        "failures": st.sampled_from((None, LOSSES, replace(LOSSES, requests="fail"))),
        "router": st.sampled_from(("round-robin", "least-outstanding", "prefix-aware")),
        "decode_router": st.sampled_from(("round-robin", "least-outstanding", "least-kv", "prefix-aware")),
    }
)


GROWS = Autoscaling(max_replicas=3, target_requests=4, startup_s=0.5, interval_s=0.5, scale_down_delay_s=1.0)


@settings(max_examples=examples(25))
@given(
    workloads,
    st.sampled_from((130, 300, 2000)),
    st.sampled_from((130, 300, 2000)),
    st.sampled_from((1e7, 1e8, math.inf)),
    st.sampled_from(("vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm", "tgi")),
    st.sampled_from(((None,), (None, 64), (64,))),
    services,
    st.sampled_from(({}, {"prefill": GROWS}, {"decode": GROWS, "prefill": GROWS})),
    st.sampled_from(((1, 1), (1, 1), (2, 1), (1, 3), (3, 2))),
)
def test_whatever_happens_everything_is_conserved(
    workload: Workload,
    prefill_blocks: int,
    decode_blocks: int,
    bytes_per_s: float,
    policy: str,
    windows: tuple[int | None, ...],
    service: dict[str, Any],
    scaling: dict[str, Autoscaling],
    ranks: tuple[int, int],
) -> None:
    """Timeouts, refusals, failures, scaling, windows, full pools, ranks and slow links, in any combination."""
    link = KvLink(bytes_per_token=1e5, bytes_per_s=bytes_per_s, latency_s=0.001)
    kind = {"policy": policy, "kv_windows": windows}
    groups = len(windows)
    prefill = {"num_blocks": groups * prefill_blocks, "data_parallel_size": ranks[0]}
    decode = {"num_blocks": groups * decode_blocks, "data_parallel_size": ranks[1]}
    setups = [setup("prefill", **prefill, **kind)] * 2 + [setup("decode", **decode, **kind)] * 2
    cluster, found = deployed(workload, setups, link, scaling=scaling, **service)
    assert_conserved(cluster, found, workload)
    done = found.records.completed
    if service["timeout_s"] is not None:
        stayed_ps = (found.records.finish_ps - found.records.arrival_ps)[done]
        assert (stayed_ps <= service["timeout_s"] * 1e12).all(), "nobody is answered who has gone"
    again = deployed(workload, setups, link, scaling=scaling, **service)[1]
    assert found.to_dict() == again.to_dict(), "same seed, same answer"


@pytest.mark.parametrize(("seed", "prefill_blocks", "decoders"), [(427, 300, 1), (599, 130, 2)])
def test_a_load_that_waits_is_tried_again_once_its_prefix_is_cached_here(
    seed: int, prefill_blocks: int, decoders: int
) -> None:
    """Whoever is admitted may cache what the next load shares with it: an engine must look again at each decision."""
    workload = requests(rate=20.0, seed=seed, shared_prefixes=SharedPrefixes(64, 3))
    setups = [setup("prefill", num_blocks=prefill_blocks, policy="vllm-v1-async")] * 2
    setups += [setup("decode", num_blocks=130, policy="vllm-v1-async")] * decoders
    link = KvLink(bytes_per_token=1e5, bytes_per_s=1e7, latency_s=0.001)
    found = simulate(workload, setups, link=link)
    assert found.preemptions
    assert found.records.completed.all()


def test_sglang_runs_what_was_loaded() -> None:
    """Loaded requests that fill a decode pool are run, though the estimate would let none of them in."""
    setups = [
        setup(role, num_blocks=130, policy="sglang") for role in ("prefill", "prefill", "decode", "decode")
    ]
    link = KvLink(bytes_per_token=1e5, bytes_per_s=1e7, latency_s=0.001)
    found = simulate(requests(rate=5.0), setups, link=link)
    assert found.status == "complete", found.reason
    assert found.records.completed.all()


@pytest.mark.parametrize("loop", LOOPS)
def test_sglang_decodes_are_not_interrupted_by_what_is_loaded(loop: str) -> None:
    """A step of a decode replica has decode rows alone, or none: requests that arrive cost the others no step."""
    setups = [setup("prefill", policy="sglang"), setup("decode", policy="sglang")]
    found = simulate(requests(rate=30.0), setups, link=INSTANT, keep_work=True, **on(simulate, loop))
    prefill, decode = ([kind.shape for kind in work.kinds()] for work in found.step_work)
    assert any(shape.prefill_tokens for shape in prefill)
    assert not any(shape.prefill_tokens for shape in decode)
    assert sum(shape.num_tokens == 0 for shape in decode) == 1


def test_a_full_decode_pool_holds_the_prefill_pool_back() -> None:
    """Back-pressure: KV that nobody takes stays where it was made, and new prompts wait for its place."""
    workload = requests(60, rate=50.0, prompt=160)
    setups = [setup("prefill", num_blocks=40), setup("decode", num_blocks=30)]
    held = simulate(workload, setups, link=INSTANT)
    free = simulate(workload, [setup("prefill", num_blocks=40), setup("decode")], link=INSTANT)
    waits = [run.records.first_scheduled_ps - run.records.arrival_ps for run in (held, free)]
    assert waits[0].mean() > 2 * waits[1].mean()


def test_a_disaggregated_run_scales_and_survives_losses() -> None:
    """Each pool by its own plan; a lost prefill replica's KV is made again, a lost decode replica's sent again."""
    workload = requests(100, rate=20.0)
    slow = KvLink(bytes_per_token=1e5, bytes_per_s=3e7)
    plan = {"failures": Failures(mean_time_between_failures_s=4.0, recovery_s=0.5, seed=1)}
    setups = [setup("prefill")] * 2 + [setup("decode")] * 2
    cluster, found = deployed(workload, setups, slow, **plan)
    assert_conserved(cluster, found, workload)
    assert found.restarted > 0
    assert found.transfers is not None
    assert found.transfers["aborted"] > 0
    assert found.records.completed.all(), "the others and the successors answer everyone"
    cluster, _ = deployed(workload, [setup("prefill"), setup("decode")], INSTANT, scaling={"decode": GROWS})
    roles = [member.setup.role for member in cluster.members]
    assert roles.count("prefill") == 1
    assert roles.count("decode") > 1
    assert min(member.from_ps for member in cluster.members[2:]) > 0


@pytest.mark.parametrize("policy", ["tensorrt-llm", "tgi"])
def test_policies_that_never_evict_load_only_what_can_end(policy: str) -> None:
    """Loaded requests that wait for each other's blocks would do so for ever: a load is promised all of its own."""
    setups = [setup("prefill", policy=policy), setup("decode", policy=policy, num_blocks=110)]
    for seed in range(4):
        workload = requests(80, rate=30.0, seed=seed)
        cluster, found = deployed(workload, setups, INSTANT)
        assert_conserved(cluster, found, workload)
        assert found.preemptions == 0


def test_impatient_clients_free_both_sides() -> None:
    workload = requests(80, rate=40.0, prompt=400)
    slow = KvLink(bytes_per_token=1e5, bytes_per_s=4e7)
    cluster, found = deployed(workload, [setup("prefill"), setup("decode")], slow, timeout_s=3.0)
    assert_conserved(cluster, found, workload)
    assert found.transfers is not None
    assert found.timed_out >= found.transfers["aborted"] > 0
    patient = deployed(workload, [setup("prefill"), setup("decode")], slow)[1]
    assert patient.transfers == {"begun": 80, "arrived": 80, "aborted": 0}
    first = found.records.completed & (np.arange(80) < 3)
    np.testing.assert_array_equal(found.records.finish_ps[first], patient.records.finish_ps[first])


def test_who_waits_for_a_decode_replica_gives_up_as_well() -> None:
    """The only decode replica is lost after 1 s, for good: KV waits with the prefill replica till its client goes."""
    workload = requests(40, rate=20.0, prompt=100)
    setups = [setup("prefill"), setup("decode")]
    dispatch = Dispatch(link=INSTANT, router="round-robin", timeout_s=3.0)
    cluster = DisaggregatedCluster(workload, setups, dispatch, Recording())
    for each in setups:
        cluster.add(each)

    def lose_the_decoder() -> Any:
        yield cluster.env.timeout(10**12)
        cluster.fail(1, 10**12)
        assert sum(cluster.by_role.values()) == cluster.outstanding > 0

    cluster.env.process(lose_the_decoder())
    cluster.run()
    found = cluster.result()
    assert_conserved(cluster, found, workload)
    assert 0 < int(found.records.completed.sum()) < 40
    assert found.timed_out == 40 - int(found.records.completed.sum())


@pytest.mark.parametrize("loop", LOOPS)
def test_kv_that_no_decode_replica_can_load_is_freed_and_its_request_rejected(loop: str) -> None:
    """Prompts of 200 tokens exceed the decode model length of 100; the prefill pool has room for one at a time."""
    lengths = np.array([200, 50, 200, 50])
    workload = Workload(
        arrival_s=np.zeros(4), prompt_tokens=lengths, output_tokens=np.full(4, 5), concurrency=1
    )
    short = replace(LIMITS, max_model_len=100)
    setups = [setup("prefill", num_blocks=20), setup("decode", limits=short)]
    found = simulate(workload, setups, link=INSTANT, **on(simulate, loop))
    assert found.status == "complete"
    assert found.rejected == 2
    assert found.records.completed.tolist() == [False, True, False, True]
    cluster, refused = deployed(workload, setups, INSTANT)
    assert_conserved(cluster, refused, workload)


def test_what_is_never_triggered_changes_nothing() -> None:
    workload = requests()
    setups = [setup("prefill"), setup("decode")]
    link = KvLink(bytes_per_token=1e5, bytes_per_s=1e8)
    plain = simulate(workload, setups, link=link)
    idle = Autoscaling(max_replicas=1, target_requests=1, startup_s=1)
    armed = simulate(
        workload,
        setups,
        link=link,
        timeout_s=1e4,
        failures=Failures(mean_time_between_failures_s=1e8, recovery_s=1),
        scaling=idle,
        decode_scaling=idle,
    )
    for column in ("first_scheduled_ps", "first_token_ps", "finish_ps"):
        np.testing.assert_array_equal(getattr(plain.records, column), getattr(armed.records, column))


def test_what_is_not_simulated_is_refused() -> None:
    with pytest.raises(InvalidInput, match="prefill and decode"):
        simulate(requests(), [setup("prefill")], link=INSTANT)
    with pytest.raises(InvalidInput, match="link"):
        simulate(requests(), [setup("prefill"), setup("decode")])
    with pytest.raises(InvalidInput, match="vllm-v0 scheduler cannot transfer KV"):
        simulate(requests(), [setup("prefill"), setup("decode", policy="vllm-v0")], link=INSTANT)
    with pytest.raises(InvalidInput, match="groups of layers"):
        simulate(requests(), [setup("prefill"), setup("decode", kv_windows=(None, 64))], link=INSTANT)
    with pytest.raises(InvalidInput, match="no decode replicas to scale"):
        simulate(requests(), [setup("both")], decode_scaling=GROWS)
    with pytest.raises(InvalidInput, match="rate"):
        KvLink(bytes_per_token=1.0, bytes_per_s=0.0)


def test_kv_that_is_sent_layer_by_layer_is_there_sooner() -> None:
    """100 MB/s: a prompt of 500 tokens, 50 MB, takes 500 ms; less what was computed meanwhile, at least a 10th."""
    workload = requests(40, rate=0.5, prompt=500)
    link = KvLink(bytes_per_token=1e5, bytes_per_s=1e8)
    whole, by_layer = (split(workload, replace(link, layers=layers)) for layers in (0, 10))
    first, second = (run.summary.ttft_ms for run in (whole, by_layer))
    assert first is not None
    assert second is not None
    assert first.mean - 450 <= second.mean < first.mean


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_requests_that_preempt_each_other_for_ever_are_a_stall(engine_loop: str) -> None:
    """19 blocks of 4 tokens: the first needs 19 to end, and the second, loaded beside it, never lets go of its ten."""
    limits = SchedulerLimits(
        max_num_seqs=64, max_num_batched_tokens=8, max_model_len=64, priority=True, reserve_full_isl=False
    )
    engine = EngineSetup(
        step_times=KneedStepTimes(50),
        num_blocks=19,
        block_size=4,
        policy="vllm-v1",
        limits=limits,
        enable_prefix_caching=False,
    )
    result = simulate(
        Workload(arrival_s=[0.1982, 0.1982], prompt_tokens=[35, 40], output_tokens=[38, 55], priority=[0, 2]),
        [replace(engine, role="prefill"), replace(engine, role="decode")],
        link=KvLink(bytes_per_token=1000.0, bytes_per_s=1e7),
        **on(simulate, engine_loop),
    )
    assert result.status == "stalled"
    assert result.reason is not None
    assert "preempt each other without end" in result.reason


def test_prompts_computed_for_ever_in_vain_are_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capacity.simulator.engine.allocate_computed", lambda *_: False)
    result = simulate(requests(3), [setup("prefill"), setup("decode")], link=INSTANT, engine_loop="events")
    assert result.status == "stalled"
    assert result.restarted == 1000
    assert result.reason is not None
    assert "the prefill replicas need more KV blocks" in result.reason


def test_a_prefill_is_repeated_until_its_kv_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV of the longer prompt is lost four times, more than the limit, but a transfer will free blocks."""
    lost = []

    def allocate(pool: Any, table: Any, tokens: int, hit: Any) -> bool:
        if tokens == 200 and len(lost) < 4:
            lost.append(tokens)
            return False
        return allocate_computed(pool, table, tokens, hit)

    monkeypatch.setattr("capacity.simulator.engine.allocate_computed", allocate)
    monkeypatch.setattr("capacity.simulator.disaggregated.MAX_RESTARTED_PREFILLS", 3)
    workload = Workload(arrival_s=[0.0, 0.0], prompt_tokens=[100, 200], output_tokens=[5, 5])
    link = KvLink(bytes_per_token=1e5, bytes_per_s=1e6)  # 10 s for the shorter prompt
    setups = [setup("prefill"), setup("decode")]
    dispatch = Dispatch(link=link, router="round-robin")
    cluster = DisaggregatedCluster(workload, setups, dispatch, Recording(engine_loop="events"))
    for each in setups:
        cluster.add(each)
    cluster.run()
    found = cluster.result()
    assert_conserved(cluster, found, workload)
    assert found.restarted == len(lost) == 4
    assert found.records.completed.all()


# data-parallel ranks


def test_each_rank_has_links_and_blocks_of_its_own() -> None:
    """Two prompts at once: one rank sends them one after the other, two ranks at the same time."""
    workload = Workload(arrival_s=[0.0, 0.0], prompt_tokens=[400, 400], output_tokens=[2, 2])
    link = KvLink(bytes_per_token=1e5, bytes_per_s=1e8)  # 0.4 s for a prompt

    def transfers_s(ranks: int) -> list[float]:
        setups = [setup("prefill", data_parallel_size=ranks), setup("decode", data_parallel_size=ranks)]
        cluster, found = deployed(workload, setups, link)
        assert_conserved(cluster, found, workload)
        assert found.transfer_ps is not None
        return sorted(float(each) / 1e12 for each in found.transfer_ps)

    one, two = transfers_s(1), transfers_s(2)
    assert two[0] == pytest.approx(0.4, abs=0.05)
    assert two[1] == pytest.approx(0.4, abs=0.05)
    assert one[1] > 0.75


def test_a_full_rank_does_not_hold_up_the_others() -> None:
    """Of two decode ranks that hold one prompt each, four prompts run two at a time, and all end."""
    workload = Workload(arrival_s=[0.0] * 4, prompt_tokens=[800] * 4, output_tokens=[20] * 4)
    setups = [setup("prefill"), setup("decode", num_blocks=60, data_parallel_size=2)]
    cluster, found = deployed(workload, setups, INSTANT)
    assert_conserved(cluster, found, workload)
    assert found.data_parallel_requests[-2:] == (2, 2)
    finish = np.sort(found.records.finish_ps)
    assert finish[1] < finish[2]


def test_ranks_that_are_asked_of_the_compiled_engines_are_refused() -> None:
    setups = [setup("prefill", data_parallel_size=2), setup("decode")]
    with pytest.raises(
        InvalidInput, match="data-parallel ranks of prefill or decode engines are not supported"
    ):
        simulate(requests(), setups, link=INSTANT, engine_loop="core")
