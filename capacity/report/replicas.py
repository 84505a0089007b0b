"""The number of replicas that serve a load, in one line."""

from capacity.answers.records import ReplicaCount, ReplicasNeeded
from capacity.base.money import money_text

PEAK_SHOWN_FROM = 1.05  # times the mean rate from which the busiest rate is shown


def replicas_text(answer: ReplicasNeeded) -> str:
    """Return how many replicas serve the load, with GPUs, monthly cost and the service levels that they meet."""
    from capacity.simulator.verdict import STABLE_LOAD  # loads the simulator

    load = "the load" if answer.requests_per_s is None else f"{answer.requests_per_s:,.4g} requests/s"
    mean, busiest = answer.requests_per_s, answer.busiest_requests_per_s
    if mean is not None and busiest is not None and busiest > PEAK_SHOWN_FROM * mean:
        load += f" ({busiest:,.4g}/s at peak)"
    levels = " and ".join(answer.slos)
    if answer.judged_in is not None:
        levels += f" in {answer.judged_in}"
    if answer.within_slo is not None:
        count = count_text(answer.within_slo)
        return f"{count}, for {load} within {levels} at {answer.confidence:.0%} confidence"
    stable = None
    if answer.stable is not None:
        stable = (
            f"{count_text(answer.stable)}, for {load} at {STABLE_LOAD:.0%} utilization or less "
            f"(one replica completes {answer.stable.requests_per_s_per_replica:.3g}/s)"
        )
    if not answer.slos:
        return stable or "unknown: the capacity of one replica could not be measured"
    reason = f"no number of replicas meets {levels} ({answer.reason})"
    return reason if stable is None else f"{reason}; without these limits: {stable}"


def count_text(count: ReplicaCount) -> str:
    """Return replicas, GPUs and $ per month as text."""
    gpus = "1 GPU" if count.num_gpus == 1 else f"{count.num_gpus:,} GPUs"
    bill = "" if count.usd_per_month is None else f", {money_text(count.usd_per_month, ',.0f')} a month"
    return f"{replica_words(count.replicas)} ({gpus}){bill}"


def replica_words(count: int) -> str:
    """Return a number of replicas as text: `1 replica` or `3 replicas`."""
    return "1 replica" if count == 1 else f"{count:,} replicas"
