"""Start times of sessions, for traces with times relative to the start of each session."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.workload import Workload

SESSIONS_START_AT_ONCE = "sessions start at once"  # in a reader's notice


def start_sessions_at_rate(workload: Workload, sessions_per_s: float, rng: np.random.Generator) -> Workload:
    """Return the workload with sessions that start as a Poisson process of this rate, in the same order.

    Gaps and dependencies between the requests of a session are unchanged. Raises InvalidInput if there are no sessions,
    or for a rate that is not finite and above 0.
    """
    if not 0 < sessions_per_s < float("inf"):
        raise InvalidInput(f"the rate of sessions must be finite and above 0, not {sessions_per_s}")
    if workload.session is None:
        raise InvalidInput(f"{workload.name} has no sessions, so their start times cannot be changed")
    _, first, of_session = np.unique(workload.session, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first, kind="stable")] = np.arange(len(first))
    begins_s = np.cumsum(rng.exponential(1 / sessions_per_s, len(first)))[order]
    moved_s = workload.arrival_s - workload.arrival_s[first][of_session] + begins_s[of_session]
    names = ("prompt_tokens", "output_tokens", "content", "concurrency", "name", "source")
    columns: Mapping[str, Any] = {
        **{name: getattr(workload, name) for name in names},
        **workload.optional_columns,
    }
    return Workload.sort_arrivals(
        arrival_s=moved_s,
        notices=tuple(notice for notice in workload.notices if SESSIONS_START_AT_ONCE not in notice),
        remark=False,
        **columns,
    )
