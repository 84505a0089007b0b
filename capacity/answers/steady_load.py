"""Steady-state load of a run, without warm-up and drain, from which the cost of the run is computed."""

import math

from capacity.answers.costs import Pools, ServedLoad, max_requests_per_s
from capacity.base.errors import InvalidInput
from capacity.simulator.metrics import RequestTable
from capacity.simulator.verdict import Verdict
from capacity.step import PS_PER_S
from capacity.workload import Workload


def steady_load(
    records: RequestTable, verdict: Verdict | None, workload: Workload, pools: Pools
) -> ServedLoad:
    """Return the load of `workload` that `pools` serve in the long run, from the request records and verdict of a run.

    Lengths are means over the completed requests. For generated open-loop arrivals, lengths and rate are the means of
    their distributions, because the requests of a run are only a sample. Raises InvalidInput if no request completed.
    """
    done = records.completed
    if not done.any():
        raise InvalidInput("no request completed, so there is no cost per request or token")
    prompts, outputs = records.prompt_tokens[done], records.output_tokens[done]
    expected_input, expected_output = workload.long_run_tokens
    input_tokens = float(prompts.mean()) * expected_input / workload.mean_prompt_tokens
    output_tokens = float(outputs.mean()) * expected_output / float(workload.output_tokens.mean())
    load = ServedLoad(
        requests_per_s=1.0,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        in_flight=None if workload.concurrency is None else float(workload.concurrency),
        hit_fraction=float(records.cached_tokens[done].sum() / max(prompts.sum(), 1)),
    )
    return load.at_rate(long_run_rate(records, verdict, workload, most_per_s=max_requests_per_s(pools, load)))


def long_run_rate(
    records: RequestTable, verdict: Verdict | None, workload: Workload, *, most_per_s: float = math.inf
) -> float:
    """Return the long-run rate of completed requests, in requests per second.

    In an open loop this is the arrival rate minus the rate of requests that are not completed. For an overloaded
    deployment it is the completion rate, at most `most_per_s`, measured during a backlog or else derived from the
    growth of the queue. In a closed loop it is the rate of the steady part, else of the whole run.
    """
    if workload.is_closed_loop:
        steady = None if verdict is None else verdict.steady
        return _whole_run(records) if steady is None else steady.requests_per_s
    served_share = float(records.completed.mean())
    offered = workload.offered_per_s
    if verdict is not None and verdict.capacity_requests_per_s is not None:
        api_servers_limit = verdict.capacity_error_fraction == 0  # the engines' own maximum may be lower
        most = min(verdict.capacity_requests_per_s, most_per_s if api_servers_limit else math.inf)
        return min(offered * served_share, most)
    if verdict is None or verdict.verdict in ("stable", "saturated"):
        return offered * served_share
    worked_off = min(offered * (1 - (verdict.growth_fraction or 0.0)), most_per_s) * served_share
    return worked_off if 0 < worked_off < math.inf else _whole_run(records)


def _whole_run(records: RequestTable) -> float:
    """Return the completed requests per second, from the first arrival to the last token."""
    seconds = (int(records.finish_ps.max()) - int(records.arrival_ps.min())) / PS_PER_S
    return int(records.completed.sum()) / seconds if seconds > 0 else 0.0
