"""A deployment with as many requests in flight as it holds, for ever: the load that its price is best divided by."""

from __future__ import annotations

from capacity.answers.costs import ServedLoad, most_per_s
from capacity.answers.deployment_run import measured_capacity
from capacity.answers.intervals import load_bands
from capacity.answers.phases import check_length
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload


def full_load(
    engines: ResolvedPool, workload: Workload, load: ServedLoad | None = None
) -> tuple[ServedLoad, tuple[float, float]]:
    """Return the most of these requests that the engines serve, with lengths and hits as of `load`, where one is known.

    The rate is the measured capacity, that of every verdict; by step times alone where no backlog forms. The second
    value is the 90 % interval of what a request takes at full load over its prediction: that of the rate is one over
    it. Raises InvalidInput for requests that are too long.
    """
    if load is None:
        prompt, output = workload.long_run_tokens
        check_length(engines, round(prompt + output))
        load = ServedLoad(requests_per_s=1.0, input_tokens=prompt, output_tokens=output)
    capacity = measured_capacity([engines], workload)
    rate = (
        most_per_s([(engines, engines.pool.replicas)], load) if capacity is None else capacity.requests_per_s
    )
    if workload.is_closed_loop:  # which shows that this much is possible
        rate = max(rate, load.requests_per_s)
    ends = (1.0, 1.0)
    if capacity is not None and capacity.means is not None:
        lengths = (load.input_tokens, load.output_tokens)
        bands = load_bands(engines, capacity.means, lengths, client_latency_s=0.0, load_fraction=None)
        ends = bands.ends("e2e")
    return load.at(rate), ends
