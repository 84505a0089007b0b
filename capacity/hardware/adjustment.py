"""What somebody's own runs say of the step model's constants: a few factors, and how sure they are.

Kernels, hosts and front ends differ from one machine, release and client to the next. Nine numbers carry most of
it: `theta`, of which 0 is the profile as it stands. Six are logarithms of a factor on a *time* (0.1: 10 % slower), one
is in seconds, one in bytes, and one tilts the experts' time: a power of the tokens of a step, for their kernels take
other tiles, and routers other experts, with few tokens than with many. `capacity calibrate` finds their posterior
from measured runs and writes it to `GPU@mine.toml` as the table `[adjustment]`; without one they are 0, known to
`deviation`.

Applied where constants are looked up as a model is built (`Lookup`, `StepSetting.host_time`, the memory plan, the
engine's latencies), so that every step time is made with them. A fraction of a peak stays at most 1: what would be
faster than the roof is not believed (`Lookup.capped` tells). Two more, `ttft` and `tpot`, are no constants: they take
up what the figures of a deployment have in common that no constant explains, so that the constants do not; predictions
of that model on that engine are corrected by them as they get their interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from capacity.base.data_files import read_rows
from capacity.base.spec import Spec

if TYPE_CHECKING:  # quick answers load no numpy
    import numpy as np

    FloatMatrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]

Constants = TypeVar("Constants", bound=Spec)
Unit = Literal["", "power", "s", "bytes"]

MOST_LOG = 3.0  # a factor of 20 either way is another machine
MOST_POWER = 1.0  # twice the tokens, twice the time
SYMMETRY = 1e-6
OVER_ROOF = 0.03  # of a peak: datasheets' clocks are exceeded by so much


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One of the nine: its unit ("": the logarithm of a factor on a time), and how far off it usually is."""

    name: str
    title: str
    deviation: float
    unit: Unit = ""


PARAMETERS = tuple(read_rows(Path(__file__).with_name("adjustment_parameters.toml"), Parameter).values())
NAMES = tuple(parameter.name for parameter in PARAMETERS)
EARLIER = (10,)  # how many there were: new ones are added at the end

_OF_KERNELS = {"moe": "experts", "all_reduce": "all_reduce", "nccl": "all_reduce"}
"""The factor of all constants of a kernel; those of others have "compute" on their compute fraction, else "memory"."""


def _power(field: str) -> int:
    """Of a factor on a time in this constant: 1 of a time, -1 of a fraction of a peak that it is divided by."""
    return field.endswith("_s") - field.endswith("_fraction")


def prior_covariance() -> FloatMatrix:
    """What is known of theta before any run: nothing of one parameter tells of another."""
    import numpy as np

    return np.diag([parameter.deviation**2 for parameter in PARAMETERS])


class Adjustment(Spec):
    """A posterior of theta: `means` and `covariance` in the order of `PARAMETERS`, and what it rests on.

    `rows`: figures that it was made of. `models` and `engines`: of what deployments they were.
    """

    means: dict[str, float] = Field(default_factory=dict)
    covariance: tuple[tuple[float, ...], ...] = ()
    source: str
    date: str
    rows: Annotated[int, Field(ge=0)] = 0
    models: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_fewer(cls, fields: Any) -> Any:
        """Of a variant that was made before the last parameters were known: nothing was learnt of them."""
        rows = fields.get("covariance") if isinstance(fields, Mapping) else None
        if not isinstance(rows, list | tuple) or len(rows) not in EARLIER:
            return fields
        if any(not isinstance(row, list | tuple) or len(row) != len(rows) for row in rows):
            return fields
        later = [parameter.deviation**2 for parameter in PARAMETERS[len(rows) :]]
        wide = [[*row, *(0.0 for _ in later)] for row in rows]
        for place, value in enumerate(later, start=len(rows)):
            wide.append([value if each == place else 0.0 for each in range(len(PARAMETERS))])
        return {**fields, "covariance": wide}

    @model_validator(mode="after")
    def _check(self) -> Adjustment:
        for name, value in self.means.items():
            if name not in NAMES:
                raise ValueError(f"{name!r} is none of {', '.join(NAMES)}")
            if not _parameter(name).unit and abs(value) > MOST_LOG:
                raise ValueError(
                    f"{name} is {value:g}, the logarithm of a factor: from -{MOST_LOG:g} to {MOST_LOG:g}"
                )
            if _parameter(name).unit == "power" and abs(value) > MOST_POWER:
                raise ValueError(
                    f"{name} is {value:g}, a power of tokens: from -{MOST_POWER:g} to {MOST_POWER:g}"
                )
        if self.covariance:
            _check_covariance(self.covariance)
        return self

    def mean(self, name: str) -> float:
        """In the parameter's unit: 0 is as the profile stands."""
        return self.means.get(name, 0.0)

    def factor(self, name: str) -> float:
        """On the times of what `name` is of. For front end and memory overhead there is none."""
        assert not _parameter(name).unit, name
        return math.exp(self.mean(name))

    @property
    def mean_vector(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        import numpy as np

        return np.array([self.mean(name) for name in NAMES])

    @property
    def covariance_matrix(self) -> FloatMatrix:
        """Of theta, in the order of `PARAMETERS`: the posterior's, or what is known without any run."""
        import numpy as np

        return np.array(self.covariance, dtype=np.float64) if self.covariance else prior_covariance()

    def variance(self, weights: Mapping[str, float]) -> float:
        """Of the sum of parameters, each times its weight."""
        places = [(NAMES.index(name), weight) for name, weight in weights.items() if name in NAMES]
        return sum(self.covariance[i][j] * of_i * of_j for i, of_i in places for j, of_j in places)

    def shift_means(self, shift: Mapping[str, float]) -> Adjustment:
        """The same with other means: `shift` is added, in each parameter's unit."""
        moved = {name: self.mean(name) + shift.get(name, 0.0) for name in NAMES}
        return self.model_copy(update={"means": {name: value for name, value in moved.items() if value}})

    def is_of(self, model: str, engine: str) -> bool:
        """Whether runs of this model on this engine, of this version, were learnt from."""
        return model in self.models and engine in self.engines

    def remarks(self, model: str, engine: str) -> tuple[str, ...]:
        """What to say with answers for a model on an engine: what was learnt, and whether of them."""
        if not self.rows:
            return ()
        of = f"{', '.join(self.models)} on {', '.join(self.engines)}"
        said = f"learnt from {self.rows} measured figures of {of} ({self.date})"
        other = [name for name, known in ((model, self.models), (engine, self.engines)) if name not in known]
        return (
            f"{said}; nothing of {' or '.join(other)}, whose kernels and host may differ" if other else said,
        )

    # where it is applied

    def adjust(self, operator: str, constants: Constants) -> tuple[Constants, tuple[str, ...]]:
        """The constants of a kernel (`operator` as in `KernelFamily`, or "nccl") with its factors on them.

        Besides, the parameters by which a fraction of a peak would be well above 1; it is held there.
        """
        values: dict[str, float] = {}
        capped = []
        if operator == "moe" and self.mean("experts_tilt"):
            values["tilt"] = getattr(constants, "tilt", 0.0) + self.mean("experts_tilt")
        whole = _OF_KERNELS.get(operator)
        for name in ("memory", "compute") if whole is None else (whole,):
            if not self.mean(name):
                continue
            factor = self.factor(name)
            for field, before in constants:
                power = _power(field)
                own = whole is not None or (field == "compute_fraction") is (name == "compute")
                if not power or not own or before is None:
                    continue
                value = before * factor**power
                if power < 0 and value > 1.0:
                    if before < 1.0 < value - OVER_ROOF:
                        capped.append(name)
                    value = 1.0
                values[field] = value
        return (constants.model_copy(update=values) if values else constants), tuple(dict.fromkeys(capped))

    def latencies(self, request_s: float, response_s: float) -> tuple[float, float]:
        """The front end's way there and back with half of what it takes more on each, never below 0."""
        half = self.mean("front_end") / 2
        return max(request_s + half, 0.0), max(response_s + half, 0.0)

    @property
    def overhead_bytes(self) -> int:
        """More memory of a GPU that neither weights nor KV cache hold; negative: less."""
        return round(self.mean("kv_overhead"))


NONE = Adjustment(source="none", date="2026-11-22")


def _parameter(name: str) -> Parameter:
    return PARAMETERS[NAMES.index(name)]


def _check_covariance(rows: Sequence[Sequence[float]]) -> None:
    import numpy as np

    size = len(NAMES)
    if len(rows) != size or any(len(row) != size for row in rows):
        raise ValueError(
            f"covariance is not {size} rows of {size} numbers, one for each of {', '.join(NAMES)}"
        )
    matrix: Any = np.array(rows, dtype=np.float64)
    scale = np.sqrt(np.abs(np.diag(matrix)))
    if not np.all(scale > 0):
        raise ValueError("covariance has a variance of 0: nothing is known exactly")
    correlations = matrix / np.outer(scale, scale)
    if not np.allclose(correlations, correlations.T, atol=SYMMETRY):
        raise ValueError("covariance is not symmetric")
    if np.linalg.eigvalsh(correlations).min() < -SYMMETRY:
        raise ValueError("covariance is of no distribution: a combination has a negative variance")
