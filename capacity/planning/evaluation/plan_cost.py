"""What a deployment serves of a load that it was tried on, and what that costs: for plans and points of a curve."""

from __future__ import annotations

from dataclasses import replace

from capacity.answers.costs import Pools, ServedLoad, most_per_s
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.workload import Workload


def trial_load(
    pools: Pools,
    trial: Evaluation,
    workload: Workload,
    *,
    offered_per_s: float | None,
    capacity_per_s: float | None = None,
) -> ServedLoad | None:
    """What `pools` serve of the workload in the long run; None where the trial served nothing.

    `offered_per_s`: how many requests come by the clock, and are served up to `capacity_per_s`, by step times alone
    where that is not known; None: of a closed loop, whose rate is the trial's. Generated requests that arrive by the
    clock have the lengths they were drawn from.
    """
    if not trial.requests_per_s:
        return None
    load = ServedLoad(
        requests_per_s=offered_per_s or trial.requests_per_s,
        input_tokens=trial.input_tokens_per_s / trial.requests_per_s,
        output_tokens=trial.output_tokens_per_s / trial.requests_per_s,
        in_flight=None if workload.concurrency is None else float(workload.concurrency),
        hit_fraction=trial.hit_fraction,
    )
    if offered_per_s is None:
        return load
    load = load.at_most(capacity_per_s or max(most_per_s(pools, load), trial.requests_per_s))
    if workload.expected_over_mean is None:
        return load
    input_tokens, output_tokens = workload.long_run_tokens
    return replace(load, input_tokens=input_tokens, output_tokens=output_tokens)
