"""Capacity of a deployment: send all requests at once and measure the rate at which the backlog drains."""

import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.simulator.intervals import t_quantile
from capacity.simulator.load_means import LoadMeans, steady_means
from capacity.simulator.metrics import MISSING, RequestTable
from capacity.step import PS_PER_S
from capacity.workload import PromptContent, Workload
from capacity.workload.columns import FloatArray

WINDOWS = 10
PROBE_REQUESTS = (1500, 20_000)
PROBE_BATCHES = 10  # requests of a probe, as a multiple of those that run at once
PROBE_COPIES = 4  # upper bound, as a multiple of the run or of the requests that run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Rate at which a backlog of requests drains, and the relative half-width of its confidence interval.

    `means`: mean latencies at full load, measured from the first scheduling of a request, so without queueing.
    """

    requests_per_s: float
    error_fraction: float
    means: LoadMeans | None = None

    def scale(self, factor: float) -> "Capacity":
        """Return the capacity of `factor` times as many engines, or of engines that are `factor` times as fast."""
        return replace(self, requests_per_s=self.requests_per_s * factor)


ProbeResults = MutableMapping[str, Capacity | None]  # results of probes of one deployment, by backlog


def probe_capacity(
    workload: Workload,
    run: Callable[[Workload], RequestTable],
    *,
    in_flight: float,
    known: ProbeResults | None = None,
) -> Capacity | None:
    """Send the requests of `workload` all at once and return the rate at which they drain; None if no backlog forms.

    `run` simulates a workload on the deployment without queue limits. `in_flight` is the approximate number of
    requests that run at once; the probe sends ten times as many, within fixed limits. The rate (requests/s) counts
    completed work: a request's prompt counts as half a request, its output as the other half. It is measured from the
    time when a fifth of the requests are done to the time when the last request starts, and depends little on which
    requests end in that window. `known` caches results by backlog, so no backlog is simulated twice.
    """
    least, most = PROBE_REQUESTS
    copies = PROBE_COPIES * max(len(workload), in_flight)
    backlog = _make_backlog(
        workload, int(min(max(PROBE_BATCHES * in_flight, least), most, max(copies, least)))
    )
    if known is None:
        return _measure_capacity(run(backlog))
    name = backlog.fingerprint()
    if name not in known:
        known[name] = _measure_capacity(run(backlog))
    return known[name]


def _measure_capacity(records: RequestTable) -> Capacity | None:
    """Return the capacity computed from the records of a simulated backlog; None if no backlog formed."""
    done = records.completed & (records.first_token_ps != MISSING)
    if not done.any():
        return None
    begun, first, finish = (
        column[done] / PS_PER_S
        for column in (records.first_scheduled_ps, records.first_token_ps, records.finish_ps)
    )
    start_s, end_s = float(np.quantile(finish, 0.2)), float(begun.max())
    if end_s < 1.1 * start_s:
        return None
    prompts, outputs = records.prompt_tokens[done], records.output_tokens[done]
    edges = np.linspace(start_s, end_s, WINDOWS + 1)
    work = 0.5 * _work_done(begun, first, prompts / prompts.mean(), edges)
    work += 0.5 * _work_done(first, finish, outputs / outputs.mean(), edges)
    per_window = np.diff(work)
    rate = float(work[-1] - work[0]) / (end_s - start_s)
    if not rate:
        return None
    error = float(per_window.std(ddof=1)) / math.sqrt(WINDOWS) / float(per_window.mean())
    scheduled = replace(records, arrival_ps=records.first_scheduled_ps)
    full = np.flatnonzero(done & (records.finish_ps >= start_s * PS_PER_S))
    rows = full[np.argsort(records.first_scheduled_ps[full], kind="stable")]
    return Capacity(
        requests_per_s=rate,
        error_fraction=t_quantile(0.95, WINDOWS - 1) * error,
        means=steady_means(scheduled, rows, clocked=False),
    )


def _work_done(begin: FloatArray, end: FloatArray, weight: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the work done until each time in `edges` (s); request i does `weight[i]` from `begin[i]` to `end[i]`."""
    length = np.maximum(end - begin, 1e-12)
    return np.array([float((np.clip((at - begin) / length, 0, 1) * weight).sum()) for at in edges])


def _make_backlog(workload: Workload, count: int) -> Workload:
    """Return about `count` requests that arrive at once: 8 excerpts of a long workload, or copies of a short one."""
    size = len(workload)
    if size > count:
        stretches = 8
        length = count // stretches
        starts = np.linspace(0, size - length, stretches).astype(np.int64)
        part = workload.in_open_loop().select(np.unique((starts[:, None] + np.arange(length)).ravel()))
        return part.all_at_once()
    copies = -(-count // size)
    rows = np.arange(size * copies) % size
    if workload.session is None and workload.sample_of is None:  # so that no router repeats its assignment
        rows = (rows + np.arange(copies).repeat(size)) % size
    given = workload.in_open_loop().optional_columns
    columns: Mapping[str, Any] = {
        name: _copy_sessions(values, copies) if name in ("session", "sample_of") else values[rows]
        for name, values in given.items()
    }
    return Workload(
        arrival_s=np.zeros(size * copies),
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        content=None if workload.content is None else _copy_content(workload.content, rows, copies),
        name=workload.name,
        **columns,
    )


def _copy_content(content: PromptContent, rows: npt.NDArray[np.int64], copies: int) -> PromptContent:
    """Return the prompts' content repeated `copies` times; copies share only segments that several prompts share."""
    taken = content.take(rows)
    ids, answers = taken.segment_ids, taken.answer_ids
    unique, users = np.unique(content.segment_ids, return_counts=True)
    own = users[np.searchsorted(unique, ids)] == 1
    copy = np.repeat(np.arange(copies), len(content.segment_ids))
    step = int(max(ids.max(), answers.max())) + 1
    return PromptContent(
        offsets=taken.offsets,
        segment_ids=np.where(own, ids + step * copy, ids),
        segment_tokens=taken.segment_tokens,
        answer_ids=answers + step * np.repeat(np.arange(copies), len(content)),
    )


def _copy_sessions(session: npt.NDArray[Any], copies: int) -> npt.NDArray[np.int64]:
    step = int(session.max()) + 1
    spread: npt.NDArray[np.int64] = (session + step * np.arange(copies)[:, None]).ravel()
    return spread
