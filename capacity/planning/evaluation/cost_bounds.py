"""Lower bounds on the replicas and latencies of an engine for a workload, without simulation.

The bounds use the step times of the simulation, so an error of the step model affects bounds and simulation equally.
`SLACK` covers the approximations of the bounds (mean contexts and prompt lengths). A candidate that a bound excludes
cannot meet the SLO under any schedule.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.planning.evaluation.evaluate import most_replicas
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.space import Role
from capacity.pool.resolve import ResolvedPool
from capacity.step import StepShape, decode_shape
from capacity.step.closed_form import prefill_steps
from capacity.workload import Slo, Workload

SLACK = 0.10  # fraction by which a bound must exceed its limit
MEAN_VALID_SHARE = 0.9  # from this percentile on, a request gets about the mean tokens per step
StepSeconds = Callable[[StepShape], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Totals and means of a workload that the bounds use.

    `computed_input_tokens` is the mean prompt length minus the tokens that an unlimited prefix cache could supply.
    `offered_per_s` is the arrival rate of an open loop; None for a closed loop or if all requests arrive at once.
    `endless`: the requests are a sample of traffic that continues at this rate.
    """

    requests: int
    span_s: float
    offered_per_s: float | None
    input_tokens: float
    output_tokens: float
    decode_context_tokens: float
    computed_input_tokens: float
    prompt_tokens: npt.NDArray[np.int64]
    # mean decode context of each request with at least two output tokens
    contexts: npt.NDArray[np.float64]
    open_loop: bool
    endless: bool
    most_replicas: int  # more would leave some idle
    longest_request_tokens: int

    @classmethod
    def average(cls, workloads: Sequence[Workload], *, endless: bool = False) -> "Load":
        """Return the totals and means over `workloads`, which are samples of one traffic with different seeds."""
        prompts = np.concatenate([w.prompt_tokens for w in workloads])
        outputs = np.concatenate([w.output_tokens for w in workloads])
        contexts = prompts + (outputs + 1) / 2
        tokens = np.maximum(outputs - 1, 0)
        decoded = max(int(tokens.sum()), 1)
        first = workloads[0]
        open_loop = not any(w.is_closed_loop for w in workloads) and first.span_s > 0
        return cls(
            requests=len(first),
            span_s=float(np.mean([w.span_s for w in workloads])),
            offered_per_s=float(np.mean([w.offered_per_s for w in workloads])) if open_loop else None,
            input_tokens=float(prompts.mean()),
            output_tokens=float(outputs.mean()),
            decode_context_tokens=float((contexts * tokens).sum() / decoded),
            computed_input_tokens=min(_unshared_tokens(first), float(prompts.mean())),
            prompt_tokens=np.sort(prompts),
            contexts=np.sort(contexts[outputs > 1]),
            open_loop=open_loop,
            endless=open_loop and endless,
            most_replicas=min(most_replicas(workload) for workload in workloads),
            longest_request_tokens=int((prompts + outputs).max()),
        )


def _unshared_tokens(workload: Workload) -> float:
    """Return the mean tokens per prompt that even an unlimited prefix cache of prompts and answers cannot supply."""
    content = workload.content
    if content is None:
        return float(workload.prompt_tokens.mean())
    ids, places = np.unique(content.segment_ids, return_inverse=True)
    longest = np.zeros(len(ids), dtype=np.int64)
    np.maximum.at(longest, places, content.segment_tokens)
    own = ~np.isin(ids, content.answer_ids)
    return max(float(longest[own].sum()) / len(workload), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds on replicas, latency and engine time per request for one engine, computed without simulation.

    `min_replicas`: fewer replicas cannot serve the load. `reason`: why no number of replicas can meet the SLO; None if
    one might. `ratio`: the highest ratio of a latency on an empty engine to its limit. `work_s`: engine time of one
    request in seconds at the best batch size within the latency limits.
    """

    min_replicas: int
    work_s: float
    ratio: float
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Speculative decoding step: draft tokens of a request (`rows`), and mean and maximum of the tokens it yields."""

    rows: int = 0
    tokens: float = 1.0
    most_tokens: int = 1

    def tokens_at(self, share: float) -> float:
        """Return an upper bound on the tokens per step of the request whose TPOT is at percentile `share` (0 to 1).

        If `share` is at least `MEAN_VALID_SHARE` (0.9), the bound is the mean; with drafts it is raised by the fraction
        `SLACK`. For a lower `share`, a request may get more tokens per step than the mean, so the bound is the maximum.
        """
        return (
            self.tokens * (1 + SLACK if self.rows else 1)
            if share >= MEAN_VALID_SHARE
            else float(self.most_tokens)
        )


NO_DRAFTING = Drafting()


def bound_engine(
    resolved: ResolvedPool,
    step_seconds: StepSeconds,
    load: Load,
    goal: Goal,
    *,
    role: Role = "both",
    drafting: Drafting = NO_DRAFTING,
    alone_seconds: StepSeconds | None = None,
) -> Bound:
    """Return the bounds of one engine on `load`; `role` is prefill, decode or both.

    `step_seconds` may be the step times of data-parallel ranks that are equally busy; `alone_seconds` are then the
    step times if only one rank has a request.
    """
    # a prefill engine bounds the waiting time, a decode engine the TPOT
    waits, paces = role != "decode", role != "prefill"
    slos = [slo for slo in goal.slos if (waits if slo.includes_wait else paces and slo.metric == "tpot")]
    batches = _Batches(resolved, step_seconds, load, role, drafting)
    ratio, reason = batches.least_latencies(alone_seconds or step_seconds, slos, goal)
    limits_s = (
        slo.limit_s * drafting.tokens_at(_share(slo.percentile, goal)) / drafting.tokens
        for slo in slos
        if slo.metric == "tpot"
    )
    limit_s = min(limits_s, default=math.inf)
    fast_s, any_s = batches.request_s(limit_s * (1 + SLACK)), batches.request_s(math.inf)
    replicas = 1
    if reason is None and load.open_loop:
        in_flight = batches.largest * batches.ranks if paces else 0  # a prefill ends with the first token
        replicas = _least_replicas(load, goal, fast_s, any_s, in_flight)
    return Bound(min_replicas=replicas, work_s=fast_s, ratio=ratio, reason=reason)


def _least_replicas(load: Load, goal: Goal, fast_s: float, any_s: float, in_flight: int) -> int:
    """Return the fewest replicas that can do the work that is due between the first arrival and the last deadline.

    At the last deadline, each request must have its first token, and at most `in_flight` requests per replica may be
    unfinished. Requests that must meet the TPOT limit take `fast_s` of engine time each, in batches small enough to
    meet it; all other requests take `any_s`. Endless traffic has no last deadline, so replicas must also keep up with
    the arrival rate.
    """
    waits = [slo for slo in goal.slos if slo.includes_wait]
    if not waits:
        return 1
    in_time = max(_share(slo.percentile, goal) for slo in waits)
    wait_s = min(slo.limit_s for slo in waits)
    paces = [_share(slo.percentile, goal) for slo in goal.slos if slo.metric == "tpot"]
    slow = 1 - max(paces) if paces else 0.0
    per_request_s = max(in_time - slow, 0.0) * fast_s + min(slow, in_time) * any_s
    work_s = load.requests * per_request_s * (1 - SLACK)
    least = math.ceil(work_s / (load.span_s + wait_s + in_flight * any_s))
    if load.endless and load.offered_per_s is not None:
        endless_s = load.offered_per_s * ((1 - slow) * fast_s + slow * any_s) * (1 - SLACK)
        least = max(least, math.ceil(endless_s))
    return max(1, least)


def _share(percentile: float | None, goal: Goal) -> float:
    return goal.goodput_target if percentile is None else percentile / 100


class _Batches:
    """Engine time of a request by decode batch size, prefill included, and its latencies on an empty engine."""

    def __init__(
        self, resolved: ResolvedPool, step_seconds: StepSeconds, load: Load, role: Role, drafting: Drafting
    ) -> None:
        self._resolved = resolved
        self._seconds = step_seconds
        self._drafting = drafting
        self.ranks = resolved.lockstep_ranks * resolved.independent_ranks  # that work in parallel
        self._load = load
        self._window = resolved.model.window_tokens
        tokens = math.ceil(load.input_tokens + load.output_tokens / 2)
        self.largest = max(1, min(resolved.max_num_seqs, resolved.concurrent_requests(tokens)))
        self._budget = resolved.max_num_batched_tokens
        rounds = max(load.output_tokens - 1, 0.0) / drafting.tokens
        cached = load.computed_input_tokens if resolved.prefix_caching else load.input_tokens
        self._decoded = 0.0 if role == "prefill" else rounds  # decode steps of one request
        self._computed = 0.0 if role == "decode" else cached
        self._prefill_token_s = min(
            self._seconds(self._with_prefill(StepShape(), tokens)) / tokens
            for tokens in {min(size, self._budget) for size in (512, 2048, 8192, self._budget)}
        )
        self.prefill_s = self._computed * self._prefill_token_s / self.ranks  # per request
        sizes = {2**power for power in range(self.largest.bit_length())} | {self.largest}
        sizes |= {3 * size // 2 for size in sizes if 1 < size <= self.largest * 2 // 3}
        self._times = [self._time(batch) for batch in sorted(sizes)]

    def request_s(self, gap_s: float) -> float:
        """Return the lowest engine time of a request at batch sizes with a mean time between tokens of at most `gap_s`.

        If no batch size is that fast, return the time at batch size 1; the latency bound then rejects the engine.
        """
        if not self._decoded:
            return self.prefill_s
        allowed = [work for mean_step_s, work in self._times if mean_step_s <= gap_s]
        return min(allowed, default=self._times[0][1])

    def _time(self, batch: int) -> tuple[float, float]:
        """Return the mean time between tokens and the engine time per request at a batch size, in seconds.

        Prompts are computed either in the decode steps or in separate steps; the faster of the two counts.
        """
        if not self._decoded:
            return 0.0, self.prefill_s
        alone_s = self._seconds(self._decode(batch))
        share = batch * self._computed / self._decoded  # prompt tokens due in each decode step
        apart_s = alone_s + share * self._prefill_token_s
        mixed_s = apart_s
        if share >= 1 and share + batch <= self._budget:
            mixed_s = self._seconds(self._with_prefill(self._decode(batch), int(share)))
        step_s = min(apart_s, mixed_s)
        return step_s / self._drafting.tokens, step_s * self._decoded / batch / self.ranks

    def _decode(self, batch: int) -> StepShape:
        shape = decode_shape(batch, round(self._load.decode_context_tokens), window_tokens=self._window)
        return shape._replace(draft_tokens=batch * self._drafting.rows)

    def _with_prefill(self, shape: StepShape, tokens: int) -> StepShape:
        prompt = max(self._load.input_tokens, 1.0)
        pairs = int(tokens * (min(prompt, self._window or prompt) + 1) / 2)
        return shape._replace(
            prefill_sequences=max(1, int(tokens / prompt)),
            prefill_tokens=tokens,
            prefill_pairs=pairs,
            prefill_context_tokens=tokens,
            prefill_window_pairs=pairs,
            prefill_window_context_tokens=tokens,
            prompts_completed=int(tokens / prompt),
        )

    def least_latencies(
        self, step_seconds: StepSeconds, slos: Sequence[Slo], goal: Goal
    ) -> tuple[float, str | None]:
        """Return the highest ratio of latency to limit on an empty engine, and the reason if an SLO cannot be met."""
        resolved, load, drafting = self._resolved, self._load, self._drafting
        worst, reason = 0.0, None
        for slo in slos:
            share = _share(slo.percentile, goal)
            if (
                slo.metric == "tpot" and slo.percentile is None and len(load.contexts)
            ):  # one token has no TPOT
                share = 1 - (1 - share) * len(load.prompt_tokens) / len(load.contexts)
                if share <= 0:
                    continue
            least_s = 0.0
            if slo.includes_wait:
                if not resolved.prefix_caching or load.computed_input_tokens >= load.input_tokens:
                    prompt = int(_lower_percentile(load.prompt_tokens, share))
                    least_s = sum(step_seconds(shape) for shape in prefill_steps(1, prompt, resolved.limits))
            elif len(load.contexts):
                context = int(_lower_percentile(load.contexts, share))
                shape = decode_shape(1, context, window_tokens=resolved.model.window_tokens)
                round_s = step_seconds(shape._replace(draft_tokens=drafting.rows))
                least_s = round_s / drafting.tokens_at(share)
            ratio = least_s / slo.limit_s
            if ratio > worst:
                worst = ratio
                if ratio > 1:
                    reason = f"{slo} cannot be met: an empty engine needs {least_s * 1e3:,.1f} ms"
        return worst, reason


def _lower_percentile(values: npt.NDArray[Any], share: float) -> float:
    """Return the percentile at fraction `share` of sorted values, rounded down to an existing value."""
    return float(values[math.floor((len(values) - 1) * share)])
