"""Simulate a whole deployment (pools of replicas behind a router), and judge whether it is stable or overloaded."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from capacity.answers.costs import Prices
from capacity.answers.engine_setup import engine_frontend, front_end_limit, setup_of
from capacity.answers.routes import check_routes, escalation, takes_of
from capacity.answers.startup import startup_of
from capacity.base.errors import InvalidInput
from capacity.deployment import Cost, Service
from capacity.hardware import Link
from capacity.hardware.pricing import find_price_for_cost
from capacity.pool.drafting import memory_with_draft
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult, StepObserver, simulate
from capacity.simulator.capacity_probe import Capacity, ProbeResults, probe_capacity
from capacity.simulator.fleet import Autoscaling, Failures
from capacity.simulator.metrics import RequestTable
from capacity.simulator.timeline import Timeline
from capacity.simulator.transfer import KvLink
from capacity.simulator.verdict import MIN_REQUESTS, STABLE, Verdict, judge, limited_capacity
from capacity.step.setting import DIRECT_LINKS
from capacity.workload import Workload
from capacity.workload.slo import parse_goodput_ms
from capacity.workload.windows import WINDOW_S, duration_text, find_windows, take_window, window_rows

NO_SERVICE = Service()
THRASH_SHARE = 0.05  # of the computed tokens; if preemptions discard more, the verdict names them
PROBES_KEPT = 64  # per deployment
KEPT_FOR_PROBES = (  # fields of a service that a capacity depends on
    *("router", "router_ttft_s", "decode_router", "kv_transfer_link", "kv_transfer_bytes_per_s"),
    *("escalate_by", "cache_hit_rate"),
)
# the last deployments whose capacity was measured
_probed: deque[tuple[object, ProbeResults]] = deque(maxlen=8)


def run_service(
    pools: Sequence[ResolvedPool],
    service: Service,
    workload: Workload,
    *,
    scheduling: str = "continuous",
    goodput: Sequence[str] = (),
    seed: int = 0,
    observer: StepObserver | None = None,
    **watched: Any,
) -> SimulationResult:
    """Simulate `workload` on the deployment. An `observer` receives every step; a `Timeline` supports only one engine.

    `goodput`: limits per request in the form of `vllm bench serve` ("ttft:500", ms). `watched`: further keywords of
    `simulator.simulate`, such as the engine loop. Raises InvalidInput.
    """
    pools = with_roles(pools, service)
    settings = dispatch_settings(pools, service, seed=seed)
    setups = [
        like
        for place, pool in enumerate(pools)
        for like in [replace(setup_of(pool, scheduling), takes=takes_of(pool, place, service))]
        * pool.pool.replicas
        * pool.independent_ranks  # data-parallel ranks of a dense model step on their own
    ]
    changes = settings["failures"] is not None or settings["scaling"] is not None
    if isinstance(observer, Timeline) and (len(setups) > 1 or changes):
        raise InvalidInput("a timeline shows one engine: leave out --replicas, --router and similar options")
    if len(setups) == 1 and setups[0].role == "both" and service == NO_SERVICE:
        settings = {**settings, "router": None}
    return simulate(
        workload,
        setups,
        link=kv_link(pools, service) if setups[0].role != "both" else None,
        frontend=engine_frontend(pools[0], workload),
        goodput_ms=parse_goodput_ms(goodput),
        observer=observer,
        **settings,
        **watched,
    )


def dispatch_settings(pools: Sequence[ResolvedPool], service: Service, *, seed: int = 0) -> Mapping[str, Any]:
    """Return the keywords of `simulator.simulate` for the service: router, limits, failures and autoscaling."""
    check_routes(pools, service)
    return {
        "router": service.router,
        "queue_limit": service.max_queued_requests,
        "outstanding_limit": service.max_outstanding_requests,
        "timeout_s": service.request_timeout_s,
        "failures": _failures(service, seed),
        "scaling": _autoscaling_of(service, pools[0]),
        "decode_scaling": _autoscaling_of(service, pools[-1], "decode-"),
        "decode_router": service.decode_router,
        "cascade": escalation(pools, service),
        "seed": seed,
    }


def check_fixed_replicas(service: Service) -> None:
    """Raise InvalidInput for settings of a service that set or change the number of replicas."""
    names = ("prefill_replicas", "autoscale_max_replicas", "decode_autoscale_max_replicas")
    if given := [name for name in names if getattr(service, name) is not None]:
        raise InvalidInput(
            f"{given[0]} of the service changes the number of replicas: remove it, or use `capacity simulate`"
        )


def with_roles(pools: Sequence[ResolvedPool], service: Service) -> list[ResolvedPool]:
    """Return the pools; with `prefill_replicas`, the single pool is split into a prefill pool and a decode pool."""
    prefill = service.prefill_replicas
    if prefill is None:
        return list(pools)
    replicas = pools[0].pool.replicas
    if len(pools) > 1 or prefill >= replicas:
        raise InvalidInput(
            f"--prefill-replicas {prefill} with --replicas {replicas} and {len(pools)} pools: it needs one pool and at "
            "least one replica for decode; for several pools, set each pool's `role` in a deployment file"
        )
    return [
        replace(pools[0], pool=pools[0].pool.model_copy(update={"replicas": count, "role": role}))
        for count, role in ((prefill, "prefill"), (replicas - prefill, "decode"))
    ]


def kv_link(pools: Sequence[ResolvedPool], service: Service) -> KvLink:
    """Return the link for KV transfer between prefill and decode engines, whose rate is that of the slower of the two.

    A data-parallel rank uses the links of all its GPUs. Raises InvalidInput if a GPU has no such link.
    """
    links = [
        (_link_of(pool, service.kv_transfer_link), pool.pool.num_gpus // pool.lockstep_ranks)
        for pool in pools
    ]
    rate = service.kv_transfer_bytes_per_s or min(link.bytes_per_s * gpus for link, gpus in links)
    return KvLink(
        bytes_per_token=max(  # 0 if every layer has a window or a budget
            pool.memory.kv_bytes_per_token if pool.memory.layout.full_groups else 0 for pool in pools
        ),
        bytes_per_s=rate,
        latency_s=max(link.latency_s for link, _ in links),
        window_bytes_per_token=max(pool.memory.kv_window_bytes_per_token for pool in pools),
        window_tokens=pools[0].model.window_tokens or 0,
        bytes_per_request=max(pool.memory.linear_state_bytes_per_request for pool in pools),
        layers=pools[0].model.num_layers if service.kv_transfer_layerwise else 0,
    )


def _link_of(pool: ResolvedPool, kind: str) -> Link:
    profile = pool.profile
    if kind == "nvlink" and profile.scale_up.kind not in DIRECT_LINKS:
        raise InvalidInput(f"{profile.name} has no NVLink: use --kv-transfer-link pcie or infiniband")
    return {"infiniband": profile.inter_node, "nvlink": profile.scale_up, "pcie": profile.pcie}[kind]


def _failures(service: Service, seed: int) -> Failures | None:
    if service.mean_time_between_failures_s is None:
        return None
    if service.recovery_s is None:
        raise InvalidInput("--mean-time-between-failures-s needs --recovery-s, the time to replace a replica")
    return Failures(
        mean_time_between_failures_s=service.mean_time_between_failures_s,
        recovery_s=service.recovery_s,
        requests=service.requests_of_lost_replicas,
        seed=seed,
    )


def _autoscaling_of(
    service: Service, pool: ResolvedPool, kind: Literal["", "decode-"] = ""
) -> Autoscaling | None:
    """Return the autoscaling settings of a pool; None without autoscaling. `kind`: prefix of the autoscaling flags."""
    max_replicas, target_requests = service.autoscale_max_replicas, service.autoscale_target_requests
    if kind:
        max_replicas = service.decode_autoscale_max_replicas
        target_requests = service.decode_autoscale_target_requests or target_requests
    if max_replicas is None:
        return None
    if target_requests is None or service.replica_startup_s is None:
        startup = startup_of(pool)
        usual = (
            ""
            if startup is None
            else f" (estimate from public logs: {startup.total_s.value:,.0f} s for this pool)"
        )
        raise InvalidInput(
            f"--{kind}autoscale-max-replicas needs --{kind}autoscale-target-requests and --replica-startup-s{usual}"
        )
    return Autoscaling(
        max_replicas=max_replicas,
        target_requests=target_requests,
        startup_s=service.replica_startup_s,
        interval_s=service.autoscale_interval_s,
        scale_down_delay_s=service.scale_down_delay_s,
    )


def deployment_prices(pools: Sequence[ResolvedPool], service: Service, cost: Cost) -> Prices | None:
    """Return the price of a GPU-hour by GPU. Raises InvalidInput if a single price would apply to several GPUs."""
    prices = {
        name: find_price_for_cost(name, cost) for name in dict.fromkeys(pool.profile.name for pool in pools)
    }
    priced = {name: price for name, price in prices.items() if price is not None}
    if not priced:
        return None
    names = " and ".join(sorted(priced))
    if len(priced) > 1 and cost.price is not None and "=" not in cost.price:
        raise InvalidInput(
            f"--price {cost.price} is one price, but the pools use {names}: give a price for "
            "each (h100=2.50,a10=0.80), or --price-tier"
        )
    if len(priced) > 1 and cost.owned_cost is not None and "gpu=" not in cost.owned_cost:
        raise InvalidInput(
            f"--owned-cost has one cost, but the pools use {names}: give one for each GPU, with gpu= in each, "
            "separated by ;"
        )
    if service.autoscale_max_replicas is not None:
        raise InvalidInput(
            "an autoscaled deployment has no constant cost per hour: leave the price out, and use "
            "`capacity curve --hourly-rates` for the cost of a day"
        )
    return priced


def verdict_on(
    run: SimulationResult,
    pools: Sequence[ResolvedPool],
    service: Service,
    workload: Workload,
    *,
    scheduling: str = "continuous",
    engine_loop: str = "auto",
    sample: Workload | None = None,
) -> Verdict | None:
    """Return whether `run` is stable or overloaded, with the means of its steady state; None if it was stopped early.

    The capacity is measured in a simulation in which the requests of `sample` (default: `workload`) queue. With the
    same `sample`, runs that differ only in the number of requests report the same capacity.
    """
    if run.status != "complete":
        return None
    sample = sample or workload
    pools = _scaled_up(with_roles(pools, service), service)
    capacity = None
    if not workload.is_closed_loop and len(sample) >= MIN_REQUESTS:
        capacity = _engines_capacity(pools, service, sample, scheduling, engine_loop)
    verdict = judge(
        run.records,
        workload,
        capacity=capacity,
        gaps=run.gaps,
        losses=_losses(run, pools, workload),
        front_end=front_end_limit(pools, sample),
        way_s=engine_frontend(pools[0])
        .add_client_latency(workload.client_latency_s or 0.0)
        .request_latency_s,
    )
    verdict = _in_busiest_window(verdict, run, workload, capacity)
    return _name_preemptions(verdict, run, pools[0]) if len(pools) == 1 else verdict


def _in_busiest_window(
    verdict: Verdict, run: SimulationResult, workload: Workload, capacity: Capacity | None
) -> Verdict:
    """Return the verdict on the busiest window of a long run if that is saturated or overloaded, else `verdict`."""
    windows = () if workload.is_closed_loop else find_windows([workload], WINDOW_S)
    if not windows or verdict.verdict == "overloaded":
        return verdict
    busiest = windows[0]
    records = run.records.rows(window_rows(workload, busiest))
    own = judge(records, take_window(workload, busiest), capacity=capacity)
    where = f"the busiest {duration_text(WINDOW_S)}, {busiest.label}"
    if own.verdict == "overloaded" or (own.verdict == "saturated" and verdict.verdict in STABLE):
        return replace(
            verdict,
            verdict=own.verdict,
            reason=f"in {where}: {own.reason}",
            load_fraction=own.load_fraction,
            growth_fraction=own.growth_fraction,
            steady=None if own.verdict == "overloaded" else verdict.steady,
            is_stable=False,
            intervals_ms=dict.fromkeys(verdict.intervals_ms),
        )
    share = "" if own.load_fraction is None else f", {own.load_fraction:.0%} of capacity"
    return replace(verdict, reason=f"{verdict.reason}; {where}: {busiest.requests_per_s:,.3g}/s{share}")


def _name_preemptions(verdict: Verdict, run: SimulationResult, pool: ResolvedPool) -> Verdict:
    """Return the verdict. If preemptions discard much work, its reason states how much, and what avoids them."""
    share, done = run.recomputed_fraction, run.records.completed
    if share < THRASH_SHARE or not done.any():
        return verdict
    length = float((run.records.prompt_tokens + run.records.output_tokens)[done].mean())
    memory = memory_with_draft(pool)
    blocks, tokens = memory.kv_capacity_blocks, memory.kv_capacity_tokens
    fitting = max(blocks // math.ceil((length + 1) * blocks / tokens), 1)
    text = (
        f"KV cache thrash: {share:.0%} of the computed tokens are computed again after preemptions, "
        f"{run.preemptions / len(done):.3g} per request; "
        f"to avoid preemptions, set --max-num-seqs {fitting} or add KV cache"
    )
    return replace(verdict, reason=f"{verdict.reason}; {text}")


def measured_capacity(
    pools: Sequence[ResolvedPool],
    workload: Workload,
    service: Service = NO_SERVICE,
    *,
    scheduling: str = "continuous",
) -> Capacity | None:
    """Return the capacity of a deployment for these requests, in requests/s, from a simulation in which they queue.

    None if no queue forms. Verdicts, costs and numbers of replicas use this capacity.
    """
    pools = _scaled_up(with_roles(pools, service), service)
    capacity = _engines_capacity(pools, service, workload, scheduling, "auto")
    return limited_capacity(capacity, front_end_limit(pools, workload))


def _engines_capacity(
    pools: Sequence[ResolvedPool], service: Service, workload: Workload, scheduling: str, engine_loop: str
) -> Capacity | None:
    """Return the capacity of the engines, without the limit of the API servers. For identical engines it is computed
    from one engine, unless prompts share prefixes, because each engine has its own prefix cache."""
    replicas = 1
    if len(pools) == 1 and pools[0].pool.role == "both" and workload.content is None:
        replicas, pools = pools[0].pool.replicas, [with_replicas(pools[0], 1)]
    patient = NO_SERVICE.model_copy(update={name: getattr(service, name) for name in KEPT_FOR_PROBES})

    def probe(backlog: Workload) -> RequestTable:
        return run_service(pools, patient, backlog, scheduling=scheduling, engine_loop=engine_loop).records

    known = _known_capacities((tuple(pools), patient, scheduling))
    found = probe_capacity(workload, probe, in_flight=_in_flight(pools, workload), known=known)
    return None if found is None else found.scale(replicas)


def _known_capacities(deployment: tuple[object, ...]) -> ProbeResults:
    """Return the cached capacity measurements of this deployment, which are valid for any rate of the same requests."""
    for asked, known in tuple(_probed):
        if asked == deployment and len(known) < PROBES_KEPT:
            return known
    found: ProbeResults = {}
    _probed.appendleft((deployment, found))
    return found


def forget_capacities() -> None:
    """Clear the cached capacity measurements, so that the next call measures again."""
    _probed.clear()


def _losses(run: SimulationResult, pools: Sequence[ResolvedPool], workload: Workload) -> dict[str, int]:
    longest = max(pool.max_model_len for pool in pools)
    too_long = int((workload.prompt_tokens >= longest).sum())
    return {
        f"rejected because the prompt fills max_model_len {longest:,}": too_long,
        "rejected because the queue was full": max(run.rejected - too_long, 0),
        "timed out": run.timed_out,
    }


def _scaled_up(pools: Sequence[ResolvedPool], service: Service) -> list[ResolvedPool]:
    most = {"decode": service.decode_autoscale_max_replicas}
    return [
        with_replicas(
            pool, max(most.get(pool.pool.role, service.autoscale_max_replicas) or 0, pool.pool.replicas)
        )
        for pool in pools
    ]


def with_replicas(pool: ResolvedPool, replicas: int) -> ResolvedPool:
    """Return the pool with this many replicas; if that is no change, the same object, because it caches step times."""
    if pool.pool.replicas == replicas:
        return pool
    return replace(pool, pool=pool.pool.model_copy(update={"replicas": replicas}))


def one_replica(pool: ResolvedPool) -> ResolvedPool:
    """Return the pool with one replica for prefill and decode; if that is no change, the same object."""
    if pool.pool.replicas == 1 and pool.pool.role == "both":
        return pool
    return replace(pool, pool=pool.pool.model_copy(update={"replicas": 1, "role": "both"}))


def _in_flight(pools: Sequence[ResolvedPool], workload: Workload) -> float:
    """Return an estimate of the number of requests of `workload` that run at once in the whole deployment."""
    tokens = float((workload.prompt_tokens + workload.output_tokens).mean())
    return sum(
        pool.pool.replicas
        * pool.pool.data_parallel_size
        * min(pool.max_num_seqs, pool.memory.kv_capacity_tokens / tokens)
        for pool in pools
    )
