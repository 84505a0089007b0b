"""Random variation of the time of steps with the same shape: a factor per step, drawn from a table.

The distribution comes from a scheduler log: vLLM 0.15 serving gpt-oss-120b on 4 GPUs (openshift-psap/profilemate,
iteration log of 2026-02), 3,197 decode steps, each relative to the median of the 21 nearest steps of the same batch
size. Half of them are within 0.8 % of the median, 5 % are above 1.028, 1 % above 1.066, 0.1 % above 1.169 times the
median. The model is a normal distribution with a standard deviation of 1.2 %, and 5 % stragglers with an exponential
delay of 4 % of the step on average. It matches these quantiles within 0.5 % of a step (the last one, from three steps,
within 2 %). Its coefficient of variation is 1.7 %, `MEASURED_CV`; other values scale the distribution. Including the
few short steps (the log's clock splits some steps in two), the measured value is 2.9 %.

Not modelled: steps with prompts (the log has no context lengths, so their spread is unknown), lasting noise (clock
throttling, a slow GPU), and the accumulation of stragglers over ranks.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from capacity.base.errors import InvalidInput
from capacity.simulator.schedulers.sequence import mix_bits

FACTORS = 4096  # 2**12: the highest bits of a draw are the index
STRAGGLERS = 205  # of them: 5 %
MEASURED_CV = 0.017
MAX_CV = 0.5
MIN_CV = 1e-9  # smaller values change a step of seconds by less than 1 ps
BODY_DEVIATION, MEAN_LATENESS = (
    0.012 / MEASURED_CV,
    0.04 / MEASURED_CV,
)  # deviation of the body, mean lateness, for a cv of 1


@dataclass(frozen=True, slots=True)
class StepNoise:
    """Equally likely `factors` for the time of a step, with mean 1, and the seed of the draws."""

    factors: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.factors) != FACTORS or not all(0 < factor < math.inf for factor in self.factors):
            raise InvalidInput(f"step noise needs {FACTORS} finite factors above 0")

    def apply_noise(self, duration_ps: int, engine_number: int, step_number: int) -> int:
        """Return the time (ps, at least 1) of a step that takes `duration_ps` without noise.

        The draw depends only on the seed, the engine number and the step number (from 0). Rounds half to even.
        """
        factor = self.factors[mix_bits(self.seed, engine_number, step_number) >> 52]
        return max(round(duration_ps * factor), 1)


def make_step_noise(cv: float, seed: int = 0) -> StepNoise | None:
    """Return step-time noise with this coefficient of variation; None if it is negligible. Raises InvalidInput."""
    if not 0 <= cv <= MAX_CV:
        raise InvalidInput(
            f"the coefficient of variation of step times must be from 0 to {MAX_CV:g}, not {cv}"
        )
    return StepNoise(noise_factors(cv), seed) if cv >= MIN_CV else None


def noise_factors(cv: float) -> tuple[float, ...]:
    """Return equally likely factors: quantiles of a lognormal distribution and of exponential stragglers.

    Their mean is exactly 1 and their coefficient of variation `cv`; for this, deviations are scaled by a few percent.
    """
    body, normal = FACTORS - STRAGGLERS, NormalDist()
    drawn = [math.exp(cv * BODY_DEVIATION * normal.inv_cdf((place + 0.5) / body)) for place in range(body)]
    drawn += [1 - cv * MEAN_LATENESS * math.log1p(-(place + 0.5) / STRAGGLERS) for place in range(STRAGGLERS)]
    mean = math.fsum(drawn) / FACTORS
    deviation = math.sqrt(math.fsum((factor - mean) ** 2 for factor in drawn) / FACTORS)
    return tuple(1 + (factor - mean) * cv / deviation for factor in drawn)
