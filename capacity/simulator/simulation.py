"""Entry point of the simulator: it builds the deployment, runs the clock, and returns the result."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from capacity.base.clock import check_time
from capacity.base.errors import InvalidInput
from capacity.deployment.routing import Router
from capacity.simulator.admission import Admission
from capacity.simulator.cascading import CascadeCluster
from capacity.simulator.cluster import Cluster
from capacity.simulator.disaggregated import DisaggregatedCluster, check_roles
from capacity.simulator.dispatch import Dispatch
from capacity.simulator.engine import StepObserver
from capacity.simulator.engine_loop import readable_loop_reason
from capacity.simulator.escalation import Escalation
from capacity.simulator.fleet import Autoscaling, Failures, autoscale_pool
from capacity.simulator.front_end_process import FrontendTimes
from capacity.simulator.members import Recording, parse_engine_loop
from capacity.simulator.result import SimulationResult
from capacity.simulator.setup import EngineSetup, Role
from capacity.simulator.transfer import KvLink
from capacity.workload import Workload


def simulate(
    workload: Workload,
    setups: EngineSetup | Sequence[EngineSetup],
    *,
    router: str | type[Router] | None = None,
    queue_limit: int | None = None,
    outstanding_limit: int | None = None,
    admission: Admission | Sequence[Admission] = (),
    timeout_s: float | None = None,
    failures: Failures | None = None,
    scaling: Autoscaling | None = None,
    decode_scaling: Autoscaling | None = None,
    link: KvLink | None = None,
    decode_router: str | type[Router] = "least-outstanding",
    cascade: Escalation | None = None,
    seed: int = 0,
    frontend: FrontendTimes | None = None,
    sample_interval_s: float | None = None,
    goodput_ms: Mapping[str, float] | None = None,
    keep_work: bool = False,
    keep_interrupted: bool = False,
    observer: StepObserver | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    engine_loop: str = "auto",
) -> SimulationResult:
    """Simulate `workload` on a deployment with one engine for each of `setups`.

    Every request runs to its `output_tokens` or to its engine's max_model_len; a prompt that leaves no room for one
    token is rejected and counts as failed. `router` None means round-robin, or no router for a single engine without
    limits, timeouts and other options, which then gets its requests directly from the clients.

    `Dispatch` documents `queue_limit` to `seed`. `scaling` changes the number of replicas of each pool; new replicas
    have the setup of the pool's first replica. If the setups have roles, prefill replicas send the KV through `link` to
    decode replicas, which `decode_router` chooses; `scaling` then applies to the prefill replicas and `decode_scaling`
    to the decode replicas. With `cascade` the pools of the setups (`takes`) are in sequence, and `router` is "cascade".

    `frontend` is the path between client and engine (default: none); times in the records are then those at the
    client, except the time of first scheduling. `sample_interval_s` enables samples over time. `keep_work`,
    `observer`, `progress`, `check`: see `Recording`. `keep_interrupted`: on Ctrl-C, return the result so far instead
    of raising KeyboardInterrupt. `engine_loop`: "events" is the Python loop, in which every step is an event; "core"
    is compiled and gives the same result; "auto" uses "core" if possible. Raises InvalidInput and UnknownName.
    """
    setups = [setups] if isinstance(setups, EngineSetup) else list(setups)
    if not setups:
        raise InvalidInput("a deployment needs at least 1 replica")
    if timeout_s is not None:
        check_time("client timeout", timeout_s, above_zero=True)
    if sample_interval_s is not None:
        check_time("sampling interval", sample_interval_s, above_zero=True)
    dispatch = Dispatch(
        router="cascade" if cascade is not None and router is None else router,
        decode_router=decode_router,
        queue_limit=queue_limit,
        outstanding_limit=outstanding_limit,
        admission=(admission,) if isinstance(admission, Admission) else tuple(admission),
        timeout_s=timeout_s,
        failures=failures,
        link=link,
        cascade=cascade,
        seed=seed,
        scales=scaling is not None or decode_scaling is not None,
    )
    directly = Dispatch(decode_router=decode_router, seed=seed)  # from the clients to a single engine
    if dispatch.router is None and (len(setups) > 1 or setups[0].role != "both" or dispatch != directly):
        dispatch = replace(dispatch, router="round-robin")
    if workload.client_latency_s:
        frontend = (frontend or FrontendTimes()).add_client_latency(workload.client_latency_s)
    recording = Recording(
        frontend=frontend,
        sample_interval_s=sample_interval_s,
        keep_work=keep_work,
        observer=observer,
        progress=progress,
        check=check,
        engine_loop=parse_engine_loop(engine_loop),
    )
    cluster = _make_cluster(workload, setups, dispatch, recording)
    _start_autoscaling(cluster, setups, "decode", decode_scaling)
    _start_autoscaling(cluster, setups, setups[0].role if link is None else "prefill", scaling)
    result = _run(cluster, goodput_ms, keep_interrupted=keep_interrupted)
    return replace(result, readable_because=readable_loop_reason(recording, setups, cluster.requests))


def _make_cluster(
    workload: Workload, setups: Sequence[EngineSetup], dispatch: Dispatch, recording: Recording
) -> Cluster:
    """Return the cluster, disaggregated cluster or cascade with one empty engine per setup. Raises InvalidInput."""
    if all(setup.role == "both" for setup in setups):
        kind = Cluster if dispatch.cascade is None else CascadeCluster
        cluster = kind(workload, setups, dispatch, recording)
    elif dispatch.cascade is not None:
        raise InvalidInput(
            "a cascade needs engines that both prefill and decode: leave out the roles or the cascade"
        )
    else:
        check_roles(setups)
        cluster = DisaggregatedCluster(workload, setups, dispatch, recording)
    for setup in setups:
        cluster.add(setup)
    return cluster


def _run(
    cluster: Cluster, goodput_ms: Mapping[str, float] | None, *, keep_interrupted: bool
) -> SimulationResult:
    """Run the simulation to its end, or to Ctrl-C if `keep_interrupted`, and return the result."""
    interrupted = False
    with closing(cluster.engines):
        try:
            cluster.run()
        except KeyboardInterrupt:
            if not keep_interrupted:
                raise
            interrupted = True
        return cluster.result(goodput_ms=goodput_ms, interrupted=interrupted)


def _start_autoscaling(
    cluster: Cluster, setups: Sequence[EngineSetup], role: Role, plan: Autoscaling | None
) -> None:
    """Start autoscaling of each pool of a role; new replicas have the setup of the pool's first replica."""
    if plan is None:
        return
    pools: dict[int, list[EngineSetup]] = {}
    for setup in setups:
        if setup.role == role:
            pools.setdefault(setup.takes.pool, []).append(setup)
    if not pools:
        raise InvalidInput(f"there are no {role} replicas to scale")
    for like in pools.values():
        if plan.max_replicas < len(like):
            raise InvalidInput(f"{len(like)} initial replicas exceed the maximum of {plan.max_replicas}")
        cluster.env.process(autoscale_pool(cluster, like[0], plan))
