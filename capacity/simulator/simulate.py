"""One workload on one engine: build the parts, run the clock, add up the result."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import simpy

from capacity.base.errors import InvalidInput
from capacity.simulator.chains import Chains
from capacity.simulator.client import Arrivals, client_of
from capacity.simulator.data_parallel import data_parallel
from capacity.simulator.engine import Engine, StepObserver
from capacity.simulator.frontend import FrontendTimes, StreamingLedger, client_behind, to_client_clock
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.content_pool import ContentPool
from capacity.simulator.kv_cache.contiguous_pool import ContiguousPool
from capacity.simulator.kv_cache.offload import TierUse
from capacity.simulator.kv_cache.run_pool import RunPool
from capacity.simulator.ledger import Ledger, Sample
from capacity.simulator.metrics import GapCounter, LatencySummary, RequestTable, summarize
from capacity.simulator.schedulers import SchedulerLimits, Sequence, Speculation, make_policy
from capacity.simulator.step_work import StepWork
from capacity.step import PS_PER_S, StepTimes, picoseconds
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What one engine did with one workload.

    `status`: complete; stalled (`reason` says why nothing can proceed); interrupted. KV utilisation and batch size
    are means over the time and the steps in which the engine was busy. `prefix_cache_hit_fraction` is of the prompt
    tokens at first admission, found on the GPU; None where prefix caching is off. What was found below it is in
    `kv_tiers`. `data_parallel_requests` are those given to each rank; empty where there are no ranks.
    """

    summary: LatencySummary
    records: RequestTable
    series: tuple[Sample, ...]
    status: Literal["complete", "stalled", "interrupted"]
    reason: str | None
    steps: int
    preemptions: int
    rejected: int
    prefix_cache_hit_fraction: float | None
    kv_utilization_mean: float
    kv_utilization_peak: float
    mean_batch_size: float
    busy_s: float
    kv_tiers: tuple[TierUse, ...] = ()
    data_parallel_requests: tuple[int, ...] = ()
    gaps: GapCounter | None = None  # between deliveries, in order of time
    step_work: tuple[StepWork, ...] = ()  # of each engine, where it was asked for

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.summary.to_dict(),
            "status": self.status,
            "reason": self.reason,
            "rejected": self.rejected,
            "preemptions": self.preemptions,
            "prefix_cache_hit_fraction": self.prefix_cache_hit_fraction,
            "kv_utilization_mean": self.kv_utilization_mean,
            "kv_utilization_peak": self.kv_utilization_peak,
            "mean_batch_size": self.mean_batch_size,
            "steps": self.steps,
            "kv_tiers": [asdict(tier) for tier in self.kv_tiers],
            "data_parallel_requests": list(self.data_parallel_requests),
        }


def simulate_engine(
    workload: Workload,
    *,
    step_times: StepTimes,
    num_blocks: int,
    block_size: int = 16,
    policy: str = "vllm-v1-async",
    policy_options: Mapping[str, Any] | None = None,
    limits: SchedulerLimits | None = None,
    frontend: FrontendTimes | None = None,
    enable_prefix_caching: bool = True,
    kv_windows: tuple[int | None, ...] = (None,),
    kv_contiguous_tokens: int | None = None,
    window_tokens: int | None = None,
    data_parallel_size: int = 1,
    data_parallel_balance: str = "published-queues",
    speculation: Speculation | None = None,
    goodput_ms: Mapping[str, float] | None = None,
    sample_interval_s: float | None = None,
    keep_work: bool = False,
    keep_interrupted: bool = False,
    mode: Literal["jump", "step"] = "jump",
    observer: StepObserver | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Simulate `workload` on one engine.

    `num_blocks` are usable KV blocks of `block_size` tokens (vLLM's log figure less its null block). `kv_windows`
    lists the groups of layers that share the pool; `kv_contiguous_tokens` reserves that much for every request in
    one piece instead, as before paging. `window_tokens` clips contexts in the step shapes.
    Every request runs to its `output_tokens` or to `limits.max_model_len`; a prompt that leaves no room for one
    token is turned away, as vLLM's front-end does, and counts as failed.
    With `data_parallel_size` above 1 the engine has so many ranks, each with a scheduler, `limits` and `num_blocks` of
    its own, which take every step together: see `capacity.simulator.schedulers.lockstep`.
    `policy_options` are further keywords of the policy; `frontend` says what lies between client and engine (none:
    nothing), and records are then on the client's clock, save for the instant of first scheduling.
    `keep_work` keeps what the steps were like (`step_work`), to tell what bound them. `keep_interrupted`: on Ctrl-C
    the result is what was simulated so far; else the interrupt goes on to the caller, who asked for a whole run.
    `mode` "step" takes one step at a time, block by block: the reference that "jump" equals bit for bit.
    `progress(completed, total)` is called some two hundred times. Raises InvalidInput.
    """
    limits = limits or SchedulerLimits()
    if num_blocks < 1 or block_size < 1:
        raise InvalidInput(
            f"the KV cache must have at least 1 block of at least 1 token, not {num_blocks} of {block_size}"
        )

    def empty_pool() -> Any:
        if policy == "vllm-v0":
            return ContentPool(num_blocks, block_size, prefix_caching=enable_prefix_caching)
        if kv_contiguous_tokens is not None:
            return ContiguousPool(num_blocks, block_size, reserved_tokens=kv_contiguous_tokens)
        if mode == "jump" and kv_windows == (None,):
            return RunPool(num_blocks, block_size, prefix_caching=enable_prefix_caching)
        return BlockPool(
            num_blocks,
            block_size,
            prefix_caching=enable_prefix_caching,
            windows=kv_windows,
            max_model_len=limits.max_model_len,
            in_flight_tokens=limits.max_num_batched_tokens,
        )

    options = dict(policy_options or {}) | ({} if speculation is None else {"speculation": speculation})
    if data_parallel_size > 1:
        pool, scheduler = data_parallel(
            [empty_pool() for _ in range(data_parallel_size)],
            policy,
            limits,
            balance=data_parallel_balance,
            **options,
        )
    else:
        pool = empty_pool()
        scheduler = make_policy(policy, limits, pool, **options)
    streams = frontend is not None and frontend.streams
    ledger = StreamingLedger(workload, frontend) if frontend is not None and streams else Ledger(workload)
    if keep_work:
        ledger.work = StepWork(step_times)
    if progress is not None:
        total = len(workload)
        ledger.report = lambda completed: progress(completed, total)
        ledger.report_at = ledger.report_every = max(1, total // 200)
    client: Arrivals = client_of(workload)
    if frontend is not None and frontend.delays:
        client = client_behind(workload, ledger, frontend)
    env = simpy.Environment(initial_time=0)
    engine = Engine(
        env,
        scheduler,
        pool,
        step_times,
        client=client,
        ledger=ledger,
        new_sequence=_sequence_maker(workload, pool, limits.max_model_len),
        jumps=mode == "jump"
        and observer is None
        and not streams
        and (not enable_prefix_caching or _answers_stay_private(workload)),
        pipeline_stages=limits.pipeline_stages,
        window_tokens=window_tokens,
        sample_ps=None if sample_interval_s is None else picoseconds(sample_interval_s),
        observer=observer,
    )
    env.process(engine.run())
    status: Literal["complete", "stalled", "interrupted"] = "complete"
    reason = None
    try:
        env.run()
    except KeyboardInterrupt:
        if not keep_interrupted:
            raise
        status, reason = "interrupted", f"interrupted at {engine.now_ps / PS_PER_S:.3f} s of simulated time"
    if engine.stalled_by is not None:
        status, reason = "stalled", engine.stalled_by
    elif status == "complete":  # facts about our own code, cheap enough to check always
        assert pool.free_blocks == pool.num_blocks, "KV blocks leaked"
        assert ledger.completed + ledger.rejected == len(workload), "requests were lost"
    if frontend is not None and frontend.delays:
        to_client_clock(ledger, frontend)
    records = ledger.table(workload)
    busy_ps = ledger.kv_busy_ps
    return SimulationResult(
        summary=summarize(records, gaps=ledger.gaps, goodput_ms=goodput_ms),
        records=records,
        series=tuple(ledger.samples),
        status=status,
        reason=reason,
        steps=ledger.steps,
        preemptions=ledger.total_preemptions,
        rejected=ledger.rejected,
        prefix_cache_hit_fraction=(
            ledger.hit_tokens / max(1, ledger.queried_tokens) if enable_prefix_caching else None
        ),
        kv_utilization_mean=ledger.kv_block_ps / (busy_ps * pool.num_blocks) if busy_ps else 0.0,
        kv_utilization_peak=ledger.kv_peak_blocks / pool.num_blocks,
        mean_batch_size=ledger.rows / ledger.steps if ledger.steps else 0.0,
        busy_s=busy_ps / PS_PER_S,
        kv_tiers=getattr(scheduler, "tier_use", ()),
        data_parallel_requests=tuple(getattr(scheduler, "rank_requests", ())),
        gaps=ledger.gaps,
        step_work=() if ledger.work is None else (ledger.work,),
    )


def _sequence_maker(workload: Workload, pool: Any, max_model_len: int) -> Any:
    """A function that turns request `index` into a Sequence when it is sent; None: it is turned away."""
    prompts = array("q", workload.prompt_tokens.tobytes())
    outputs = array("q", workload.output_tokens.tobytes())
    priorities = workload.priority.tolist() if workload.priority is not None else None
    chains = Chains(workload, pool.block_size) if pool.prefix_caching else None
    table = pool.table

    def new_sequence(index: int, sent_ps: int) -> Sequence | None:
        prompt_tokens = prompts[index]
        if prompt_tokens >= max_model_len:
            return None
        max_known = prompt_tokens + outputs[index]
        return Sequence(
            index,
            id=index,
            arrival=sent_ps,
            prompt_tokens=prompt_tokens,
            max_known=max_known if max_known < max_model_len else max_model_len,
            priority=priorities[index] if priorities is not None else 0,
            table=table(Content(~index) if chains is None else chains.content(index)),
        )

    return new_sequence


def _answers_stay_private(workload: Workload) -> bool:
    """Whether no prompt can meet an answer that is still being generated: needed to jump with prefix caching.

    Answers that a prompt repeats must belong to requests that this one, by the workload's links, waits for.
    """
    content = workload.content
    if content is None:
        return True
    if (
        len(np.unique(content.answer_ids)) == len(workload)
        and not np.isin(content.segment_ids, content.answer_ids).any()
    ):
        return True
    owner: dict[int, int] = {}
    for request, answer in enumerate(content.answer_ids.tolist()):
        if owner.setdefault(answer, request) != request:
            return False
    after = workload.after_request.tolist() if workload.after_request is not None else None
    offsets = content.offsets.tolist()
    segments = content.segment_ids.tolist()
    for request in range(len(workload)):
        owners = {owner[s] for s in segments[offsets[request] : offsets[request + 1]] if s in owner}
        at = request
        while owners and after is not None and after[at] >= 0:
            at = after[at]
            owners.discard(at)
        if owners:
            return False
    return True
