"""`capacity watch`: a model of a running server, calibrated on the server's own /metrics.

The report depends only on the scrapes and the settings, so after a restart the state file is enough to continue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.flags import with_flags
from capacity.base.latency_metrics import HISTOGRAMS
from capacity.deployment import Pool, build
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.load.highest_rate import Served
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Slo, parse_slos
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.benchmark_results.metrics_scrape import PERCENTS, RELEASE, run_of_metrics
from capacity_validate.calibrating_runs import build_replay, fit_adjustment
from capacity_validate.campaigns import parse_budget
from capacity_validate.comparing import compare_run
from capacity_validate.comparison import MetricRow
from capacity_validate.evidence import Evidence
from capacity_validate.rate_growth import rate_growth
from capacity_validate.rebuilt_load import rebuild_workload, split_options
from capacity_validate.replaying import calibration_prior
from capacity_validate.scrape_history import (
    MIN_REQUESTS,
    MIN_RESIDENCES,
    RANGE_PATH,
    Window,
    extend_history,
    read_scrapes,
    read_state,
    split_history,
    write_state,
)
from capacity_validate.server_metrics import ServerMetrics
from capacity_validate.server_settings import release_notes
from capacity_validate.watch_limits import (
    Correction,
    correction_notes,
    find_corrections,
    find_limits,
    in_flight,
)
from capacity_validate.watch_report import Scenario, WatchedLevel, WatchReport, compare_windows, report_notes

MIN_WINDOWS = 4
CALIBRATION_RUNS = 4
TESTED_WINDOWS = 64  # the latest ones are compared with their predictions
REPLAYED = (400, 1000)  # requests of a window's replay
REPLAYED_RESIDENCES = 20  # requests in flight times this
SCENARIO_REQUESTS = 2000  # per replica: enough to fill an engine


@validate_arguments
@with_flags
def watch(
    source: str,
    *,
    slo: Sequence[str] | str = (),
    model: str | None = None,
    state: str | Path | None = None,
    changed: Sequence[str] = (),
    profiles: str | Path | None = None,
    download: bool = False,
    window: str = "1s",
    **options: Any,
) -> WatchReport:
    """Read a server's metrics once, and report its headroom, limits and growth, and whether it has changed.

    `source`: the http(s) address of /metrics or of Prometheus' query_range, or a file that contains such a response,
    or a state file. Earlier scrapes are read from `state`. `options` describe the deployment as in `compare`. Raises
    InvalidInput with fewer than 4 windows, or if the source cannot be read; MalformedFile.
    """
    watcher = Watcher(
        source=source,
        slos=parse_slos(slo),
        model=model,
        options=options,
        changed=tuple(changed),
        profiles=profiles,
        download=download,
        window_s=parse_budget(window, "--window"),
        history=() if state is None else read_state(state),
    )
    watcher.scrape(state)
    report = watcher.report()
    if report is None:
        raise InvalidInput(watcher.missing)
    return report


@dataclass(kw_only=True)
class Watcher:
    """The scrapes of a server, and the calibrations and predictions computed from them."""

    source: str
    slos: tuple[Slo, ...]
    model: str | None
    options: dict[str, Any]
    changed: tuple[str, ...] = ()
    profiles: str | Path | None = None
    download: bool = False
    window_s: float = 1.0
    history: tuple[ServerMetrics, ...] = ()
    _fits: dict[tuple[float, ...], ResolvedPool] = field(default_factory=dict)
    _fit_notes: dict[tuple[float, ...], tuple[str, ...]] = field(default_factory=dict)
    _rows: dict[tuple[object, ...], tuple[MetricRow, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _, self.traffic = split_options("watch", self.options)
        self.settings = dict(map(_setting, self.changed))
        for slo in self.slos:
            if slo.percentile not in PERCENTS:
                known = ", ".join(f"p{percent}" for percent in PERCENTS)
                raise InvalidInput(
                    f"--slo {slo}: /metrics contains histograms, so the percentile must be one of {known}"
                )

    def scrape(self, state: str | Path | None) -> None:
        """Read the source and write the state file. Raises InvalidInput, MalformedFile."""
        self.history = extend_history(self.history, read_scrapes(self.source))
        if state is not None:
            write_state(state, self.history)

    @property
    def missing(self) -> str:
        """Return the message for too few windows, with the requirements of a window."""
        found = len(split_history(self.history, self.window_s))
        remedy = "scrape again later with the same --state"
        if RANGE_PATH in self.source:
            remedy = "add start, end and a shorter step to the address"
        return (
            f"{found} of {MIN_WINDOWS} windows so far: each needs {MIN_REQUESTS} completed requests between two "
            f"scrapes, and a length of {MIN_RESIDENCES:g} mean E2E latencies (at least {self.window_s:g} s); {remedy}"
        )

    def report(self) -> WatchReport | None:
        """Return the report of the scrapes so far; None while there are fewer than `MIN_WINDOWS` windows."""
        windows = split_history(self.history, self.window_s)
        if len(windows) < MIN_WINDOWS:
            return None
        tested, now = windows[-TESTED_WINDOWS:], windows[-1]
        # an early part, so that the fit is of a time before a change
        early = tested[: 2 ** int(math.log2(len(tested))) // 2]
        reference = self._fit(early)
        points, changes = compare_windows([(each, self._metrics(each, reference, early)) for each in tested])
        since_s = min((change.since_s for change in changes), default=0.0)
        later = [each for each in tested if each.end_s > since_s]
        present = self._fit(later)
        corrections = find_corrections(
            self.slos,
            present,
            [
                (self._run(each), self._metrics(each, present, later))
                for each in {each.end_s: each for each in (*_calibration_windows(later), now)}.values()
            ],
        )
        growth = rate_growth(
            *([getattr(each, name) for each in windows] for name in ("end_s", "seconds", "offered_per_s"))
        )
        scenarios = tuple(self._scenarios(present, now, corrections))
        limit = scenarios[0].highest_rate_per_s if scenarios else None
        return WatchReport(
            source=self.source,
            model=present.model.name,
            gpu=present.profile.name,
            num_gpus=present.pool.num_gpus,
            engine=present.engine.label,
            request_rate_per_s=now.offered_per_s,
            growth=growth,
            hours_to_saturation=None if growth is None or limit is None else growth.hours_until(limit),
            levels=tuple(self._levels(now, scenarios)),
            scenarios=scenarios,
            changes=changes,
            windows=points,
            notes=(
                *report_notes(growth, changes),
                self._release_note(present, now),
                *self._fit_notes[_key(later)],
                *(() if limit is None else correction_notes(corrections, scenarios[0])),
                *(() if limit is None else launch_notes(present)),
            ),
        )

    def _run(self, window: Window, replayed: int | None = None) -> MeasuredRun:
        """Return a window as a run at its arrival rate, long enough that start and end have little effect."""
        run = replace(run_of_metrics(window.metrics), request_rate=window.offered_per_s)
        number = replayed or int(min(max(REPLAYED[0], REPLAYED_RESIDENCES * in_flight(run)), REPLAYED[1]))
        run = run_of_metrics(window.metrics, replayed=number)
        return replace(run, request_rate=window.offered_per_s, notices=())

    def _fit(self, windows: Sequence[Window]) -> ResolvedPool:
        """Return the deployment calibrated on `CALIBRATION_RUNS` of these windows, without their remaining errors."""
        chosen = _calibration_windows(windows)
        key = _key(windows)
        if key not in self._fits:
            replay = build_replay(
                Evidence(sources=(self.source,), runs=tuple(map(self._run, chosen))),
                model=self.model,
                profiles=self.profiles,
                download=self.download,
                options=self.options,
            )
            adjustment, _, guess = fit_adjustment(replay, calibration_prior(replay.resolved))
            fitted = replay.resolved.adjusted_by(adjustment)
            notes = (*([] if guess is None else [guess]), *fitted.step_model.peak_notes)
            self._fit_notes[key] = tuple(f"{note[0].upper()}{note[1:]}." for note in notes)
            self._fits[key] = fitted
        return self._fits[key]

    def _metrics(
        self, window: Window, fitted: ResolvedPool, early: Sequence[Window]
    ) -> tuple[MetricRow, ...]:
        key = (window.metrics.since_s, window.end_s, early[0].end_s, len(early))
        if key not in self._rows:
            run = self._run(window)
            workload = rebuild_workload(run, self.traffic)
            found = compare_run(fitted, run, workload, self.traffic, None, run.server)
            self._rows[key] = tuple(row for row in found.metrics if row.low and row.high)
        return self._rows[key]

    def _scenarios(
        self, present: ResolvedPool, now: Window, corrections: Sequence[Correction]
    ) -> Iterator[Scenario]:
        """Yield the highest load within the SLO for one replica, for two, and for one with the settings of --try."""
        chosen = [("now", present, 1), ("one more replica", present, 2)]
        if self.settings:
            fields = {**present.pool.model_dump(exclude_unset=True), **self.settings}
            other = resolve(present.model, build(Pool, fields), profiles=self.profiles)
            other.memory.require_fit()
            chosen.append((" ".join(self.changed), other.adjusted_by(present.profile.adjustment), 1))
        for name, resolved, replicas in chosen if self.slos else ():
            run = self._run(now, SCENARIO_REQUESTS * replicas)
            workload, _ = rebuild_workload(run, self.traffic)
            own = workload.select(np.arange(0, len(workload), replicas))  # those of one replica
            served = Served(resolved=resolved, workloads=(own,), goal=Goal(slos=self.slos), replicas=1)
            yield find_limits(name, served, now.offered_per_s, corrections, replicas)

    def _levels(self, now: Window, scenarios: Sequence[Scenario]) -> Iterator[WatchedLevel]:
        for slo in self.slos:
            histogram = now.metrics.histogram(*HISTOGRAMS.get(slo.metric, ()))
            share = (slo.percentile or 0.0) / 100  # always given: see __post_init__
            value = None if histogram is None else histogram.quantile(share)
            bucket = None if histogram is None else histogram.bucket(share)
            yield WatchedLevel(
                slo=str(slo),
                limit_s=slo.limit_s,
                measured_s=None if value is None else value[0],
                bucket_s=None if bucket is None else bucket[:2],
                predicted_s=scenarios[0].levels_s[str(slo)],
            )

    def _release_note(self, present: ResolvedPool, now: Window) -> str:
        """Return a note on how the release of the server's engine is known."""
        label, own = present.engine.label, str(self.options.get("engine", ""))
        if "@" in own:
            return f"{label} is the release given for this server."
        if (stated := now.metrics.labels.get(RELEASE)) is not None:
            return f"The server states release {stated['version']}, predicted as {label}."
        return " ".join(f"{note}." for note in release_notes(present))


def _calibration_windows(windows: Sequence[Window]) -> list[Window]:
    """Return `CALIBRATION_RUNS` of these windows, from the lowest to the highest rate."""
    ranked = sorted(windows, key=lambda each: each.offered_per_s)
    places = {round(i * (len(ranked) - 1) / (CALIBRATION_RUNS - 1)) for i in range(CALIBRATION_RUNS)}
    return [ranked[place] for place in sorted(places)]


def _key(windows: Sequence[Window]) -> tuple[float, ...]:
    return tuple(each.end_s for each in _calibration_windows(windows))


def launch_notes(resolved: ResolvedPool) -> Iterator[str]:
    """Yield a note if the user and the metrics leave the number of running requests open."""
    if "max_num_seqs" not in resolved.pool.model_fields_set:
        yield (
            f"The highest load assumes {resolved.max_num_seqs:,} --max-num-seqs, the default: /metrics of vLLM "
            "has few launch settings. Give those of your server, or --from-launch."
        )


def _setting(text: str) -> tuple[str, str]:
    """Return field and value of a launch setting. Raises InvalidInput."""
    name, _, value = text.removeprefix("--").replace(" ", "=", 1).partition("=")
    name = name.replace("-", "_")
    if name not in Pool.model_fields or not value:
        raise InvalidInput(f"--try {text!r}: write a launch setting as in --try max-num-seqs=512")
    return name, value
