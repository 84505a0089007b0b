"""The number of replicas that serve a load, in one line."""

from capacity.answers.records import ReplicaCount, ReplicasNeeded
from capacity.report.display import count_noun, money_phrase, phrase

PEAK_SHOWN_FROM = 1.05  # times the mean rate from which the busiest rate is shown


def replicas_text(answer: ReplicasNeeded) -> str:
    """Return how many replicas serve the load, with GPUs, monthly cost and the service levels that they meet."""
    from capacity.simulator.verdict import STABLE_LOAD  # loads the simulator

    load = "the load" if answer.requests_per_s is None else f"{answer.requests_per_s:,.4g} requests/s"
    mean, busiest = answer.requests_per_s, answer.busiest_requests_per_s or 0.0
    if mean is not None and busiest > PEAK_SHOWN_FROM * mean:
        load += f" ({busiest:,.4g}/s at peak)"
    levels = " and ".join(answer.slos) + phrase(" in {}", answer.judged_in)
    if answer.within_slo is not None:
        count = count_text(answer.within_slo)
        return f"{count}, for {load} within {levels} at {answer.confidence:.0%} confidence"
    stable = ""
    if answer.stable is not None:
        stable = (
            f"{count_text(answer.stable)}, for {load} at {STABLE_LOAD:.0%} utilization or less "
            f"(one replica completes {answer.stable.requests_per_s_per_replica:.3g}/s)"
        )
    if not answer.slos:
        return stable or "unknown: the capacity of one replica could not be measured"
    return f"no number of replicas meets {levels} ({answer.reason}){phrase('; without these limits: {}', stable)}"


def needed_text(answer: ReplicasNeeded | None) -> str:
    """Return a line on the replicas that serve the load; empty if they were not computed."""
    return "" if answer is None else f"needed: {replicas_text(answer)}"


def count_text(count: ReplicaCount) -> str:
    """Return replicas, GPUs and $ per month as text."""
    gpus = count_noun(count.num_gpus, "GPU")
    bill = money_phrase(", {} a month", count.usd_per_month, ",.0f")
    return f"{count_noun(count.replicas, 'replica')} ({gpus}){bill}"


def replica_noun(role: str) -> str:
    """Return what replicas of a role are called: `replica`, `prefill replica`, or `decode replica`."""
    return "replica" if role == "both" else f"{role} replica"
