"""Steps of one shape do not take the same time: a factor on every step, drawn from a distribution as data.

Its shape is that of a scheduler's log: vLLM 0.15 serving gpt-oss-120b on 4 GPUs (openshift-psap/profilemate, iteration
log of 2026-02), 3,197 decode steps held against the median of the 21 steps of the same batch size around each. Half of
them are within 0.8 %, 5 % are over 1.028, 1 % over 1.066, 0.1 % over 1.169 times that median; a normal body of 1.2 %
and 5 % stragglers, late by an exponential of 4 % of the step, meet these quantiles within 0.5 % of a step (the last,
of three steps, within 2 %). That is a coefficient of variation of 1.7 %, and `MEASURED_CV`; another one stretches the
shape. Measured with the few steps that were short (the log's clock splits some between two), it is 2.9 %.
Not in it: steps with prompts (the log tells no contexts, so their spread is not known), noise that lasts (clocks that
throttle, a slow GPU), and that stragglers of several ranks add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from capacity.base.errors import InvalidInput
from capacity.simulator.schedulers.sequence import mix_bits

FACTORS = 4096  # 2**12: the highest bits of a draw are the index
STRAGGLERS = 205  # of them: 5 %
MEASURED_CV = 0.017
MOST_CV = 0.5
LEAST_CV = 1e-9  # below, no step of seconds is a picosecond longer
BODY, LATE = 0.012 / MEASURED_CV, 0.04 / MEASURED_CV  # deviation of the body, mean lateness, for a cv of 1


@dataclass(frozen=True, slots=True)
class StepNoise:
    """Equally likely `factors` of a step's time, of mean 1, and the seed of the draws; another table, another noise."""

    factors: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.factors) != FACTORS or not all(0 < factor < math.inf for factor in self.factors):
            raise InvalidInput(f"the noise of steps needs {FACTORS} finite factors above 0")

    def noisy(self, duration_ps: int, engine_number: int, step_number: int) -> int:
        """The time of an engine's step, by its number from 0, that would take `duration_ps`; at least 1 ps.

        The draw depends on the seed and these two numbers alone, whatever else happens. Rounded half to even.
        """
        factor = self.factors[mix_bits(self.seed, engine_number, step_number) >> 52]
        return max(round(duration_ps * factor), 1)


def step_noise(cv: float, seed: int = 0) -> StepNoise | None:
    """Noise of this coefficient of variation; None where it is 0, or no step would differ. Raises InvalidInput."""
    if not 0 <= cv <= MOST_CV:
        raise InvalidInput(f"the noise of steps must be from 0 to {MOST_CV:g}, not {cv}")
    return StepNoise(noise_factors(cv), seed) if cv >= LEAST_CV else None


def noise_factors(cv: float) -> tuple[float, ...]:
    """Middles of equally likely slices: a lognormal body, and stragglers that are late by an exponential.

    Mean 1 and `cv` are exact, the shape around them is stretched for it by a few percent.
    """
    body, normal = FACTORS - STRAGGLERS, NormalDist()
    drawn = [math.exp(cv * BODY * normal.inv_cdf((place + 0.5) / body)) for place in range(body)]
    drawn += [1 - cv * LATE * math.log1p(-(place + 0.5) / STRAGGLERS) for place in range(STRAGGLERS)]
    mean = math.fsum(drawn) / FACTORS
    deviation = math.sqrt(math.fsum((factor - mean) ** 2 for factor in drawn) / FACTORS)
    return tuple(1 + (factor - mean) * cv / deviation for factor in drawn)
