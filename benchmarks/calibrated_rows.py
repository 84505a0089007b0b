"""Served rows made ready to be learnt from and to be judged: predictions by theta, derivatives, intervals.

`benchmarks/calibration.py` draws them, learns and judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from capacity_validate.posterior import DIFFERENCE, Matrix, MeasuredFigure, Vector
from capacity_validate.replaying import engine_and_gpu, make_adjustment
from served_data import ServedRow
from served_rows import Server, client_seconds, server_of, simulated

from capacity.answers.interval_parts import PredictionContext, interval_parts, kind_of, relative_ends
from capacity.answers.sensitivity import ObservedLoad, Shares, sensitivities
from capacity.base.errors import CapacityError
from capacity.hardware.adjustment import NAMES, Adjustment
from capacity.hardware.spreads import Metric, Spreads, metric_deviation, prior_adjustment

METRICS: tuple[Metric, ...] = ("tpot", "ttft", "e2e")
LEARNT_FROM = METRICS[:2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A served row with its server, and the derivatives of the logarithms of TPOT and TTFT by theta at the prior.

    `asked` and `sensitivity` are what its intervals are of, by `spread`.
    """

    row: ServedRow
    server: Server
    slopes: Matrix
    spread: Spreads
    asked: PredictionContext
    sensitivity: Mapping[Metric, Shares]
    known: dict[bytes, Vector] = field(default_factory=dict)  # by theta: every draw begins at the same ones

    @property
    def measured(self) -> Vector:
        return with_e2e(np.log([self.row.tpot_s, self.row.ttft_s]), self.row)

    def predicted(self, theta: Vector) -> Vector:
        key = np.round(theta, 12).tobytes()
        if key not in self.known:
            self.known[key] = predicted(self.row, self.server, theta)
        return self.known[key]

    def deviation(self, metric: str) -> float:
        """From one row of such a deployment to the next."""
        return metric_deviation(metric, is_moe=not self.row.dense, known=self.spread)

    @property
    def figures(self) -> list[MeasuredFigure]:
        values = (self.row.tpot_s, self.row.ttft_s)
        return [
            MeasuredFigure(
                name=metric, value=value, deviation=self.deviation(metric), shared=f"{id(self)} {metric}"
            )
            for metric, value in zip(LEARNT_FROM, values, strict=True)
        ]

    @property
    def prior(self) -> Adjustment:
        """What is known of such deployments."""
        return prior_adjustment(
            *engine_and_gpu(self.server.resolved), is_moe=not self.row.dense, known=self.spread
        )

    def ends(self, metric: Metric, adjustment: Adjustment | None) -> tuple[float, float]:
        """Of the 90 % interval of measured over predicted, as every verb makes it; None: nothing was learnt."""
        asked = replace(self.asked, adjustment=adjustment)
        parts = interval_parts(metric, self.sensitivity[metric], asked, self.spread)
        return relative_ends(parts, kind_of(metric, asked, self.spread))


def with_e2e(of_tpot_and_ttft: Vector, row: ServedRow) -> Vector:
    """Logarithms of TPOT and TTFT with that of E2E, which in a closed loop is its throughput too."""
    tpot, ttft = np.exp(of_tpot_and_ttft)
    e2e = ttft + (row.output_len * row.length_scale - 1) * tpot
    return np.asarray(np.append(of_tpot_and_ttft, np.log(e2e)), dtype=np.float64)


def predicted(row: ServedRow, server: Server, theta: Vector) -> Vector:
    """Logarithms of TPOT and TTFT; not-a-number where the server does not get that far."""
    adjustment = make_adjustment(theta)
    beyond = np.array([adjustment.mean(metric) for metric in LEARNT_FROM])
    front = server.frontend
    there_s, back_s = adjustment.adjust_latencies(front.request_latency_s, front.response_latency_s)
    moved = replace(
        server,
        resolved=server.resolved.adjusted_by(adjustment),
        frontend=replace(front, request_latency_s=there_s, response_latency_s=back_s),
    )
    found = simulated(row, moved)
    if found.tpot_s is None or found.ttft_s is None:
        return np.full(2, np.nan)
    return np.log([found.tpot_s, found.ttft_s]) + beyond


def active(row: ServedRow) -> list[int]:
    """The parameters that can matter to served times."""
    ranks = row.tensor_parallel * row.data_parallel
    left_out = {
        "kv_overhead",
        *(("experts", "experts_tilt") if row.dense else ()),
        *(("all_reduce",) if ranks == 1 else ()),
    }
    return [i for i, name in enumerate(NAMES) if name not in left_out]


def prepared(row: ServedRow, known: Spreads) -> Row | None:
    """The row with its derivatives; None where it is not predicted."""
    try:
        server = server_of(row)
    except CapacityError:
        return None
    before = prior_adjustment(*engine_and_gpu(server.resolved), is_moe=not row.dense, known=known)
    steps = DIFFERENCE * np.sqrt(np.diag(before.covariance_matrix))
    origin = np.zeros(len(NAMES))
    at = predicted(row, server, origin)
    slopes = np.zeros((2, len(NAMES)))
    for i in active(row):
        moved = origin.copy()
        moved[i] = steps[i]
        slopes[:, i] = (predicted(row, server, moved) - at) / steps[i]
    if not np.isfinite(slopes).all():
        return None
    load = load_of(row, server, at)
    found = sensitivities(server.resolved, load)
    assert found.tpot is not None
    return Row(
        row=row,
        server=server,
        slopes=slopes,
        spread=known,
        asked=PredictionContext(
            engine=server.resolved.engine.name,
            engine_label=server.resolved.engine.label,
            gpu=engine_and_gpu(server.resolved)[1],
            model=server.resolved.model.name,
            is_moe=not row.dense,
            ttft_share=load.ttft_s / load.e2e_s,
        ),
        sensitivity={"tpot": found.tpot, "ttft": found.ttft, "e2e": found.e2e},
    )


def load_of(row: ServedRow, server: Server, at: Vector) -> ObservedLoad:
    """The load of a row whose TPOT and TTFT are predicted so."""
    tpot_s, ttft_s, e2e_s = map(float, np.exp(with_e2e(at, row)))
    engine = server.resolved.engine
    client_s = client_seconds(row)
    return ObservedLoad(
        input_len=row.input_len * row.length_scale,
        output_len=row.output_len * row.length_scale,
        in_flight=server.concurrency,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        server_s=client_s + engine.request_latency_s + engine.response_latency_s,
    )
