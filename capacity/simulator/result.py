"""Result of a simulation: totals over all engines of the deployment, and the records of all requests."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from capacity.simulator.distribution import Distribution
from capacity.simulator.engines import EngineAccount
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.kv_cache.offload import TierUse, sum_tier_use
from capacity.simulator.ledger import Sample
from capacity.simulator.members import Member, ReplicaSummary
from capacity.simulator.metrics import LatencySummary, RequestTable, summarize
from capacity.simulator.setup import Role
from capacity.simulator.step_work import StepWork
from capacity.step import PS_PER_S

Status = Literal["complete", "stalled", "interrupted"]
# fields that `to_dict` copies
ENGINE_FIELDS = (
    "status", "reason", "rejected", "preemptions", "prefix_cache_hit_fraction", "kv_utilization_mean",
    "kv_utilization_peak", "mean_batch_size", "steps",
)  # fmt: skip
DEPLOYMENT_FIELDS = ("router", "decode_router", "timed_out", "restarted", "lost", "replica_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """Load at one time: number of replicas that serve requests, and number of outstanding requests, in disaggregated
    deployments also by role (prefill, decode)."""

    time_s: float
    replicas: int
    outstanding: int
    by_role: Mapping[Role, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CascadeUse:
    """Answers in a cascade: requests `answered` by each pool, in order, and `from_cache`.

    `unseen_answers`, with `unseen_tokens` tokens in total, were discarded by the judge. For each request: `cached`:
    whether the cache answered it; `made_ps`: time of the answer's first token, before the judge accepted it;
    `sent_on_ps`: arrival at the pool that answered, if it was not the first pool. Times that do not apply are MISSING.
    """

    by_answer: bool
    judge_s: float
    answered: tuple[int, ...]
    from_cache: int
    unseen_answers: int
    unseen_tokens: int
    cached: npt.NDArray[np.bool_]
    made_ps: npt.NDArray[np.int64]
    sent_on_ps: npt.NDArray[np.int64]

    def to_dict(self) -> dict[str, object]:
        names = ("by_answer", "judge_s", "answered", "from_cache", "unseen_answers", "unseen_tokens")
        return {name: getattr(self, name) for name in names} | {"answered": list(self.answered)}


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """Totals of a deployment's engines for a workload, and the record of each request.

    `status` is complete, stalled (`reason` gives the cause) or interrupted. `kv_utilization_mean` is the mean over the
    time in which engines were busy (`busy_s`), `mean_batch_size` the mean over all steps. `preempted_tokens` counts
    tokens that were computed again because a preemption discarded their KV. `prefix_cache_hit_fraction` is the share of
    prompt tokens that hit the GPU's prefix cache when requests were first admitted; None without prefix caching.
    `kv_tiers` has the hits in lower tiers. `data_parallel_requests` counts requests by rank; empty without ranks.
    `gaps` between deliveries are in time order. `step_work` (per engine), `series` and `load` (samples over time) are
    empty unless requested from `simulate`. `readable_because` is the reason why the compiled engines did not run; None
    if they did. `router` is None if a single engine gets requests directly from the clients; `to_dict` then omits the
    fields about several engines.

    `timed_out` requests were cancelled by their client, `restarted` ones were started again after their KV was lost,
    `lost` ones failed with their replica, `rejected` ones were refused; the summary's `failed` counts all that did not
    complete. `replica_s` is the total lifetime of all replicas, which users pay for, until the last request ended.
    `replica_of` is the last replica of each request, or MISSING.

    For disaggregated deployments `prefilled_ps` is the end of prefill (or MISSING), `transfer_ps` the time from then to
    the arrival of the KV, and `transfers` counts transfers begun, arrived and aborted.
    """

    records: RequestTable
    status: Status
    reason: str | None
    steps: int
    preemptions: int
    preempted_tokens: int
    rejected: int
    prefix_cache_hit_fraction: float | None
    kv_utilization_mean: float
    kv_utilization_peak: float
    mean_batch_size: float
    busy_s: float
    gaps: GapCounter
    kv_tiers: tuple[TierUse, ...] = ()
    data_parallel_requests: tuple[int, ...] = ()
    step_work: tuple[StepWork, ...] = ()
    series: tuple[Sample, ...] = ()
    load: tuple[LoadSample, ...] = ()
    replicas: tuple[ReplicaSummary, ...] = ()
    replica_s: float = 0.0
    router: str | None = None
    goodput_ms: Mapping[str, float] | None = None
    timed_out: int = 0
    restarted: int = 0
    lost: int = 0
    decode_router: str | None = None
    prefilled_ps: npt.NDArray[np.int64] | None = None
    transfer_ps: npt.NDArray[np.int64] | None = None
    transfers: Mapping[str, int] | None = None
    readable_because: str | None = None
    cascade: CascadeUse | None = None
    replica_of: npt.NDArray[np.int64] | None = None

    @cached_property
    def summary(self) -> LatencySummary:
        """Latency summary with the names of `vllm bench serve` and goodput within `goodput_ms`; computed once."""
        return summarize(self.records, gaps=self.gaps, goodput_ms=self.goodput_ms)

    @property
    def recomputed_fraction(self) -> float:
        """Share of all computed tokens that preemptions discarded."""
        done = self.records.completed
        needed = self.records.prompt_tokens + self.records.output_tokens - self.records.cached_tokens
        computed = int(needed[done].sum()) + self.preempted_tokens
        return self.preempted_tokens / computed if computed else 0.0

    @property
    def duration_s(self) -> float:
        """Simulated time of the last token, in seconds from the start of the run."""
        return max(int(self.records.finish_ps.max()), 0) / PS_PER_S if len(self.records) else 0.0

    def to_dict(self) -> dict[str, object]:
        shared: dict[str, object] = {
            **self.summary.to_dict(),
            **{name: getattr(self, name) for name in ENGINE_FIELDS},
            "kv_tiers": [asdict(tier) for tier in self.kv_tiers],
            "data_parallel_requests": list(self.data_parallel_requests),
        }
        return shared if self.router is None else shared | self._deployment_fields()

    def _deployment_fields(self) -> dict[str, object]:
        return {
            **{name: getattr(self, name) for name in DEPLOYMENT_FIELDS},
            "transfer_ms": None if self.transfer_ps is None else _time_statistics_ms(self.transfer_ps),
            "transfers": None if self.transfers is None else dict(self.transfers),
            "replicas": [asdict(replica) for replica in self.replicas],
            **({} if self.cascade is None else {"cascade": self.cascade.to_dict()}),
        }


def _time_statistics_ms(times_ps: npt.NDArray[np.int64]) -> dict[str, float] | None:
    """Return mean and percentiles (ms) of the times that are not MISSING; None if there are none."""
    times = Distribution.from_values(times_ps[times_ps >= 0] * (1e3 / PS_PER_S))
    if times is None:
        return None
    return {"mean": times.mean, **{f"p{percent}": value for percent, value in times.percentiles.items()}}


def sum_engines(
    members: Sequence[Member],
    accounts: Sequence[EngineAccount],
    records: RequestTable,
    *,
    gaps: GapCounter,
    goodput_ms: Mapping[str, float] | None,
    status: Status,
    reason: str | None,
) -> SimulationResult:
    """Return the result summed over all engines; the caller adds the router's counts, such as timeouts."""
    capacity_ps = sum(account.kv_busy_ps * account.num_blocks for account in accounts)
    steps = sum(account.steps for account in accounts)
    hit_tokens = sum(account.hit_tokens for account in accounts)
    queried_tokens = sum(account.queried_tokens for account in accounts)
    caching = any(member.setup.enable_prefix_caching for member in members)
    replicas = tuple(
        member.summary(number, account)
        for number, (member, account) in enumerate(zip(members, accounts, strict=True))
    )
    end_ps = max(int(records.finish_ps.max()), 0) if len(records) else 0
    return SimulationResult(
        records=records,
        status=status,
        reason=reason,
        steps=steps,
        preemptions=sum(account.preemptions for account in accounts),
        preempted_tokens=sum(account.lost_tokens for account in accounts),
        rejected=sum(account.rejected for account in accounts),
        prefix_cache_hit_fraction=hit_tokens / max(1, queried_tokens) if caching else None,
        kv_utilization_mean=sum(account.kv_block_ps for account in accounts) / capacity_ps
        if capacity_ps
        else 0.0,
        kv_utilization_peak=max((replica.kv_utilization_peak for replica in replicas), default=0.0),
        mean_batch_size=sum(account.rows for account in accounts) / steps if steps else 0.0,
        busy_s=sum(account.kv_busy_ps for account in accounts) / PS_PER_S,
        gaps=gaps,
        kv_tiers=sum_tier_use(use for account in accounts for use in account.tier_use),
        data_parallel_requests=tuple(count for account in accounts for count in account.rank_requests),
        step_work=tuple(account.work for account in accounts if account.work is not None),
        replicas=replicas,
        replica_s=sum(member.alive_ps(end_ps) for member in members) / PS_PER_S,
        goodput_ms=goodput_ms,
    )
