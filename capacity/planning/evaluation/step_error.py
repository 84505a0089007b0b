"""Error distribution of predicted step times, to compute the probability that the SLO is met.

Measured / predicted step time is assumed to be log-normal, with separate spreads above and below 1; the ends of the 90
% interval of `estimate` are its 5 % and 95 % points. Prefill and decode errors are assumed to be fully correlated,
which is the pessimistic case: a GPU that is slow in one is slow in both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import cast

from capacity.answers.interval_parts import Z_90
from capacity.answers.intervals import LoadBands, batch_bands
from capacity.answers.phases import RequestLengths, batch_over_ranks
from capacity.pool.resolve import ResolvedPool
from capacity.step import PS_PER_S, DecodePiece, JointStepTimes, StepCost, StepShape, StepTimes
from capacity.step.export import ScaledData
from capacity.step.model import KNOT_BITS, StepModel

REFERENCE_BATCH = 16  # requests in flight; the error depends little on it
REFERENCE_TOKENS = 1000  # of prompts and outputs; likewise
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Factors by which predicted step times of prefill and decode are multiplied."""

    prefill: float = 1.0
    decode: float = 1.0


def factors_at(resolved: ResolvedPool, confidence: float | None, remaining: float = 1.0) -> Factors:
    """Return factors that scale step times to quantile `confidence` of their prediction error; None: factors of 1.

    `remaining`: fraction of the error's standard deviation that measurements at similar loads leave.
    """
    if confidence is None:
        return Factors()
    bands = _reference_bands(resolved)
    deviations = NormalDist().inv_cdf(confidence) / Z_90 * remaining
    end = 1 if deviations > 0 else 0
    prefill, decode = (float(bands.ends(name)[end] ** abs(deviations)) for name in ("ttft", "tpot"))
    return Factors(prefill=prefill, decode=decode)


def error_parts(resolved: ResolvedPool) -> dict[str, float]:
    """Return the standard deviation of the logarithm of each independent part of the error of decode step times."""
    return {part.name: part.deviation for part in _reference_bands(resolved).parts("tpot")}


def _reference_bands(resolved: ResolvedPool) -> LoadBands:
    batch = min(REFERENCE_BATCH, resolved.max_num_seqs)
    lengths = RequestLengths(input_len=REFERENCE_TOKENS, output_len=REFERENCE_TOKENS)
    times = batch_over_ranks(resolved, resolved.limits_from(0.0), batch, lengths)
    bands = batch_bands(resolved, times, lengths, batch)
    return replace(bands, seen=replace(bands.seen, server_s=0.0))


class ScaledSteps:
    """Step times multiplied by one factor for steps with prefill tokens and by another for pure decode steps.

    Times of steps that verify drafts are interpolated linearly between two context lengths (knots), as the step model
    does for plain decode steps, so most steps need no computation of the model.
    """

    def __init__(self, steps: StepTimes, factors: Factors) -> None:
        self._steps = steps
        self._factors = factors
        self._pieces: dict[DecodePiece, DecodePiece] = {}
        self._drafted: dict[tuple[int, int, int], tuple[float, float]] = {}

    def step_seconds(self, shape: StepShape) -> float:
        factor = self._factors.prefill if shape.prefill_tokens else self._factors.decode
        if isinstance(self._steps, StepModel):
            return self._steps.step_seconds(shape) * factor
        return self._steps.step_ps(shape) / PS_PER_S * factor

    def step_cost(self, shape: StepShape) -> StepCost:
        """Return the step model's cost of each operator, with all times multiplied by the same factor."""
        assert isinstance(self._steps, StepModel)
        factor = self._factors.prefill if shape.prefill_tokens else self._factors.decode
        operators = self._steps.step_cost(shape).operators
        return StepCost(operators=tuple(replace(op, seconds=op.seconds * factor) for op in operators))

    def step_ps(self, shape: StepShape) -> int:
        if shape[1] or not shape[7]:
            return max(1, round(self._steps.step_ps(shape) * self._factors.prefill))
        piece = self.decode_piece(shape)
        if piece is not None:
            return piece.base_ps + piece.context_ps * shape[9] + piece.window_context_ps * shape[10]
        if shape[9] != shape[10]:
            return max(1, round(self._steps.step_ps(shape) * self._factors.decode))
        return self._on_line(shape)

    def step_data(self) -> ScaledData:
        """Return these step times in the form that the compiled engine uses."""
        return ScaledData(inner=self._steps, prefill=self._factors.prefill, decode=self._factors.decode)

    def joint_ps(self, shapes: Sequence[StepShape]) -> int:
        """Return the time in ps of a synchronised step of data-parallel ranks, scaled as prefill if any rank
        prefills."""
        factor = self._factors.prefill if any(shape[1] for shape in shapes) else self._factors.decode
        return max(1, round(cast("JointStepTimes", self._steps).joint_ps(shapes) * factor))

    def _on_line(self, shape: StepShape) -> int:
        """Return the time of a decode step in ps, interpolated linearly between two context lengths (knots)."""
        bits = max(shape[9].bit_length() - KNOT_BITS, 0)
        low, width = shape[9] >> bits << bits, 1 << bits
        line = self._drafted.get((shape[7], shape[8], low))
        if line is None:
            first, last = (
                self._steps.step_ps(shape._replace(decode_context_tokens=at, decode_window_context_tokens=at))
                for at in (low, low + width)
            )
            slope = (last - first) / width * self._factors.decode
            line = self._drafted[shape[7], shape[8], low] = (first * self._factors.decode, slope)
        start, slope = line
        return max(1, round(start + slope * (shape[9] - low)))

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:
        piece = self._steps.decode_piece(shape)
        if piece is None:
            return None
        scaled = self._pieces.get(piece)
        if scaled is None:
            factor = self._factors.decode
            scaled = self._pieces[piece] = piece._replace(
                base_ps=round(piece.base_ps * factor),
                context_ps=round(piece.context_ps * factor),
                window_context_ps=round(piece.window_context_ps * factor),
            )
        return scaled
