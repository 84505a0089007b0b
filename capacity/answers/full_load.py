"""Full load of a deployment: it always has as many requests in flight as it can run. Costs per token use this load."""

from capacity.answers.costs import ServedLoad, max_requests_per_s
from capacity.answers.deployment_run import measured_capacity
from capacity.answers.intervals import load_bands
from capacity.answers.phases import check_length
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload


def full_load(
    engines: ResolvedPool, workload: Workload, load: ServedLoad | None = None
) -> tuple[ServedLoad, tuple[float, float]]:
    """Return the maximum load of these requests that the engines can serve, and the 90 % interval of E2E at that load.

    Lengths and prefix hits are those of `load` if given. The rate is the measured capacity or, if no backlog forms in
    the measurement, the rate by step times. The interval is that of measured over predicted E2E; its reciprocal is the
    interval of the rate. Raises InvalidInput for requests that are too long.
    """
    if load is None:
        prompt, output = workload.long_run_tokens
        check_length(engines, round(prompt + output))
        load = ServedLoad(requests_per_s=1.0, input_tokens=prompt, output_tokens=output)
    capacity = measured_capacity([engines], workload)
    rate = (
        max_requests_per_s([(engines, engines.pool.replicas)], load)
        if capacity is None
        else capacity.requests_per_s
    )
    if workload.is_closed_loop:  # its own rate is a lower bound
        rate = max(rate, load.requests_per_s)
    ends = (1.0, 1.0)
    if capacity is not None and capacity.means is not None:
        lengths = (load.input_tokens, load.output_tokens)
        bands = load_bands(engines, capacity.means, lengths, client_latency_s=0.0, load_fraction=None)
        ends = bands.ends("e2e")
    return load.at_rate(rate), ends
