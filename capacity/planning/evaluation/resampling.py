"""Draw the same traffic with several seeds to measure the effect of random arrivals and lengths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from capacity.answers.engine_setup import make_workload, requests_of
from capacity.deployment import Traffic
from capacity.simulator.peaks import MIN_RESIDENCES
from capacity.simulator.replications import check_replications
from capacity.workload import Workload

MAX_REQUESTS = 60_000  # limit of all draws together, unless --num-prompts is given
SHORTEST_RUN = 5  # in mean end-to-end latencies: a shorter run is mostly warm-up


def resample_traffic(
    traffic: Traffic, workload: Workload | None, count: int, max_model_len: int | None = None
) -> tuple[Workload, ...]:
    """Return `count` workloads drawn with different seeds; one for a trace or a given workload. Raises InvalidInput."""
    check_replications(count)
    if workload is not None:
        return (requests_of(traffic, workload),)
    if traffic.trace is not None:
        return (make_workload(traffic),)
    seeds = range(traffic.seed, traffic.seed + count)
    drawn = (traffic.model_copy(update={"seed": seed}) for seed in seeds)
    return tuple(make_workload(each, max_model_len) for each in drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyTraffic:
    """Traffic at a constant mean rate without a fixed number of requests.

    The number of requests that a sample needs depends on the deployment's end-to-end latency, with step times at
    quantile `confidence` of their prediction error.
    """

    traffic: Traffic
    max_model_len: int
    confidence: float

    @classmethod
    def from_traffic(
        cls, traffic: Traffic, workload: Workload | None, max_model_len: int, confidence: float
    ) -> "SteadyTraffic | None":
        """Return the steady traffic; None for a closed loop, a load that varies over the day, or a fixed number of
        requests (trace, `num_prompts`, `workload`)."""
        rate, has_length = traffic.request_rate, traffic.num_prompts is not None or traffic.trace is not None
        endless = rate is not None and 0 < rate < math.inf and not has_length and traffic.arrivals == "steady"
        if workload is not None or not endless:
            return None
        return cls(traffic=traffic, max_model_len=max_model_len, confidence=confidence)

    def requests_for(self, workloads: Sequence[Workload], mean_e2e_s: float) -> int | None:
        """Return the number of requests that a sample needs to reach steady state; None if `workloads` are long enough.

        `mean_e2e_s` is the mean end-to-end latency. The number is that of the first sample times a power of two, so
        that most deployments use the same samples.
        """
        first, most = workloads[0], MAX_REQUESTS // len(workloads)
        if first.is_closed_loop or first.span_s >= SHORTEST_RUN * mean_e2e_s or len(first) >= most:
            return None
        needed = MIN_RESIDENCES * mean_e2e_s * first.offered_per_s
        return min(len(first) << math.ceil(math.log2(max(needed / len(first), 2))), most)

    def draw(self, requests: int, workloads: Sequence[Workload]) -> tuple[Workload, ...]:
        """Return new samples of `requests` requests each, with lengths limited to the longest one in `workloads`."""
        longest = max(int((w.prompt_tokens + w.output_tokens).max()) for w in workloads)
        traffic = self.traffic.model_copy(update={"num_prompts": requests})
        drawn = resample_traffic(traffic, None, len(workloads), self.max_model_len)
        return tuple(each.fit_to(longest, how="clip") for each in drawn)
