"""Corrections to the step model's constants, calibrated on the user's own benchmark runs.

Kernels, hosts and API servers differ between machines, releases and benchmark clients. The parameters, as a vector
`theta`, describe most of these differences; a value of 0 leaves the profile unchanged. Most parameters are the
logarithm of a factor on a *time* (0.1: 10 % slower). `front_end` is in seconds and `kv_overhead` in bytes.
`experts_tilt` is an exponent on the number of tokens in a step, because expert kernels select tiles, and routers select
experts, differently with few tokens than with many. `capacity calibrate` computes the posterior from measured runs and
writes it to `GPU@mine.toml` as the table `[adjustment]`. Without that table the means are 0 and each standard deviation
is the parameter's `deviation`.

The factors are applied when constants are looked up to build a step model (`KernelLookup`, `StepSetting.host_time`, the
memory plan, the engine's latencies), so every step time includes them. A server can be faster than the datasheet of
its profile, so the factors may raise a fraction of a peak above 1 (`KernelLookup.above_peak` reports it). Kernels that
`capacity validate` measured on the GPU have additional factors (`kernels`). `ttft` and `tpot` do not change constants.
They are the errors that all TTFTs or TPOTs of a deployment share and that no constant explains. They correct the
predictions for that model and engine when the interval is computed.
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
from capacity.hardware.measured_loads import MeasuredLoad

if TYPE_CHECKING:  # quick answers load no numpy
    import numpy as np

    FloatMatrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]

Constants = TypeVar("Constants", bound=Spec)
Unit = Literal["", "power", "s", "bytes"]

MAX_LOG_FACTOR = 3.0  # a factor of 20
MAX_TOKEN_EXPONENT = 1.0  # twice the tokens take twice the time
SYMMETRY_TOLERANCE = 1e-6
KernelRatio = Annotated[float, Field(ge=-MAX_LOG_FACTOR, le=MAX_LOG_FACTOR)]
ROOFLINE_TOLERANCE = 0.03  # of a peak: GPUs exceed the clocks of their datasheets by this much


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Adjustment parameter and its prior standard deviation; without `unit`, the logarithm of a factor on times."""

    name: str
    title: str
    deviation: float
    unit: Unit = ""


PARAMETERS = tuple(read_rows(Path(__file__).with_name("adjustment_parameters.toml"), Parameter).values())
NAMES = tuple(parameter.name for parameter in PARAMETERS)
# numbers of parameters in earlier versions; new parameters are added at the end
EARLIER_PARAMETER_COUNTS = (10,)

_KERNEL_PARAMETERS = {"moe": "experts", "all_reduce": "all_reduce", "nccl": "all_reduce"}
"""The parameter that applies to all constants of an operator. For other operators, "compute" applies to the compute
fraction and "memory" to all other constants."""


def kernel_parameters(operator: str) -> tuple[str, ...]:
    """Return the names of the parameters that apply to the kernel constants of an operator."""
    whole = _KERNEL_PARAMETERS.get(operator)
    return ("memory", "compute") if whole is None else (whole,)


def _time_exponent(field: str) -> int:
    """Return the exponent of a factor on times that scales `field`: 1 for times, -1 for fractions of a peak, else 0."""
    return field.endswith("_s") - field.endswith("_fraction")


def prior_covariance() -> FloatMatrix:
    """Return the covariance matrix of the parameters before calibration, when they are independent."""
    import numpy as np

    return np.diag([parameter.deviation**2 for parameter in PARAMETERS])


class Adjustment(Spec):
    """Posterior distribution of the adjustment parameters: means, and covariance in the order of `PARAMETERS`.

    `rows`: number of measured values used. `models` and `engines`: the measured deployments. `kernels`: logarithm of
    measured over predicted times of the `cases` that `capacity validate` measured on this GPU, by kernel ("gemm bf16")
    and parameter. `kernel_deviations`: factor on the prior standard deviation of a parameter after these measurements.
    `loads`: the loads of the calibration runs.
    """

    means: dict[str, float] = Field(default_factory=dict)
    covariance: tuple[tuple[float, ...], ...] = ()
    source: str
    date: str
    rows: Annotated[int, Field(ge=0)] = 0
    models: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    kernels: dict[str, dict[str, KernelRatio]] = Field(default_factory=dict)
    kernel_deviations: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(default_factory=dict)
    cases: Annotated[int, Field(ge=0)] = 0
    loads: tuple[MeasuredLoad, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _extend_covariance(cls, fields: Any) -> Any:
        """Extend the covariance matrix of an earlier version with the prior variances of parameters added since."""
        rows = fields.get("covariance") if isinstance(fields, Mapping) else None
        if not isinstance(rows, list | tuple) or len(rows) not in EARLIER_PARAMETER_COUNTS:
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
                raise ValueError(f"unknown parameter {name!r}; use one of {', '.join(NAMES)}")
            if not _parameter(name).unit and abs(value) > MAX_LOG_FACTOR:
                raise ValueError(
                    f"{name} is {value:g}; the logarithm of a factor must be within ±{MAX_LOG_FACTOR:g}"
                )
            if _parameter(name).unit == "power" and abs(value) > MAX_TOKEN_EXPONENT:
                raise ValueError(
                    f"{name} is {value:g}; a token exponent must be within ±{MAX_TOKEN_EXPONENT:g}"
                )
        for name in (*self.kernel_deviations, *(name for ratios in self.kernels.values() for name in ratios)):
            if name not in NAMES:
                raise ValueError(f"unknown parameter {name!r}; use one of {', '.join(NAMES)}")
        if self.covariance:
            _check_covariance(self.covariance)
        return self

    def mean(self, name: str) -> float:
        """Return the mean of parameter `name` in its unit; 0 leaves the profile unchanged."""
        return self.means.get(name, 0.0)

    def factor(self, name: str) -> float:
        """Return the factor exp(mean) by which parameter `name`, which must have no unit, multiplies times."""
        assert not _parameter(name).unit, name
        return math.exp(self.mean(name))

    def kernel_ratio(self, operator: str, kernel: str, name: str) -> float:
        """Return ln(measured / predicted time) of a kernel after parameter `name` is applied. If it was not
        measured, return the value of another kernel of the operator, or 0 without one."""
        own = self.kernels.get(f"{operator} {kernel}".strip())
        same = (ratios for label, ratios in self.kernels.items() if label.split()[0] == operator)
        ratios = own if own is not None else next(same, None)
        return 0.0 if ratios is None else ratios.get(name, 0.0)

    def measures_kernels(self, *, is_moe: bool) -> bool:
        """Return whether the main kernels of a model's steps were measured on this GPU."""
        operators = {label.split()[0] for label in self.kernels}
        return operators >= {"gemm", "decode_attention", *(["moe"] if is_moe else [])}

    def loads_of(self, deployment: str) -> tuple[MeasuredLoad, ...]:
        """Return the measured loads of the deployment with this `ResolvedPool.deployment_name`."""
        return tuple(load for load in self.loads if load.deployment == deployment)

    def keep_kernels(self, other: Adjustment) -> Adjustment:
        """Return a copy of this adjustment with the kernel measurements of `other`."""
        kept = ("kernels", "kernel_deviations", "cases")
        return self.model_copy(update={name: getattr(other, name) for name in kept})

    @property
    def mean_vector(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        import numpy as np

        return np.array([self.mean(name) for name in NAMES])

    @property
    def covariance_matrix(self) -> FloatMatrix:
        """Return the parameters' covariance matrix in the order of `PARAMETERS`; before calibration, the prior one."""
        import numpy as np

        return np.array(self.covariance, dtype=np.float64) if self.covariance else prior_covariance()

    def variance(self, weights: Mapping[str, float]) -> float:
        """Return the variance of the weighted sum of parameters; `weights` maps parameter names to weights."""
        places = [(NAMES.index(name), weight) for name, weight in weights.items() if name in NAMES]
        return sum(self.covariance[i][j] * of_i * of_j for i, of_i in places for j, of_j in places)

    def shift_means(self, shift: Mapping[str, float]) -> Adjustment:
        """Return a copy with `shift` added to the means, by parameter and in the parameter's unit."""
        moved = {name: self.mean(name) + shift.get(name, 0.0) for name in NAMES}
        return self.model_copy(update={"means": {name: value for name, value in moved.items() if value}})

    def is_calibrated_on(self, model: str, engine: str) -> bool:
        """Return whether the calibration runs include this model and this engine version."""
        return model in self.models and engine in self.engines

    def calibration_notes(self, model: str, engine: str) -> tuple[str, ...]:
        """Return notes for an answer: the data of the calibration, and whether they include this model and engine."""
        notes = (
            (
                f"kernel times scaled to {self.cases} cases that capacity validate measured on this GPU "
                f"({self.date})",
            )
            if self.cases
            else ()
        )
        if not self.rows:
            return notes
        note = f"calibrated on {self.rows} measured values of {', '.join(self.models)} on {', '.join(self.engines)}"
        note += f" ({self.date})"
        other = [name for name, known in ((model, self.models), (engine, self.engines)) if name not in known]
        if other:
            note += f", but not on {' or '.join(other)}, whose kernel and host times may differ"
        return (*notes, note)

    def adjust(self, operator: str, constants: Constants, kernel: str = "") -> tuple[Constants, bool]:
        """Return a kernel's constants with all factors applied, and whether one raises a fraction of a peak from below
        1 to well above 1, even if the factor is one standard deviation slower.

        `operator`: a field of `KernelFamily`, or "nccl"; `kernel`: the kernel's key in that field, or the kind of
        collective.
        """
        values: dict[str, float] = {}
        above_peak = False
        if operator == "moe" and self.mean("experts_tilt"):
            values["tilt"] = getattr(constants, "tilt", 0.0) + self.mean("experts_tilt")
        names = kernel_parameters(operator)
        for name in names:
            factor = math.exp(self.mean(name) + self.kernel_ratio(operator, kernel, name))
            if factor == 1.0:
                continue
            slower = math.exp(math.sqrt(self.variance({name: 1.0})) if self.covariance else 0.0)
            for field, before in constants:
                power = _time_exponent(field)
                own = len(names) == 1 or (field == "compute_fraction") is (name == "compute")
                if not power or not own or before is None:
                    continue
                values[field] = before * factor**power
                highest = (1.0 + ROOFLINE_TOLERANCE) * slower
                above_peak |= power < 0 and before < 1.0 and values[field] > highest
        return (constants.model_copy(update=values) if values else constants), above_peak

    def adjust_latencies(self, request_s: float, response_s: float) -> tuple[float, float]:
        """Return request and response latency (s); half of the `front_end` correction is added to each."""
        half = self.mean("front_end") / 2
        return max(request_s + half, 0.0), max(response_s + half, 0.0)

    @property
    def overhead_bytes(self) -> int:
        """Return the correction to the memory overhead (neither weights nor KV cache) in bytes; may be negative."""
        return round(self.mean("kv_overhead"))


NO_ADJUSTMENT = Adjustment(source="none", date="2026-11-22")


def _parameter(name: str) -> Parameter:
    return PARAMETERS[NAMES.index(name)]


def _check_covariance(rows: Sequence[Sequence[float]]) -> None:
    import numpy as np

    size = len(NAMES)
    if len(rows) != size or any(len(row) != size for row in rows):
        raise ValueError(
            f"covariance must be {size} rows of {size} numbers, one for each of {', '.join(NAMES)}"
        )
    matrix: Any = np.array(rows, dtype=np.float64)
    scale = np.sqrt(np.abs(np.diag(matrix)))
    if not np.all(scale > 0):
        raise ValueError("covariance has a variance of 0; every variance must be above 0")
    correlations = matrix / np.outer(scale, scale)
    if not np.allclose(correlations, correlations.T, atol=SYMMETRY_TOLERANCE):
        raise ValueError("covariance is not symmetric")
    if np.linalg.eigvalsh(correlations).min() < -SYMMETRY_TOLERANCE:
        raise ValueError("covariance is not positive semidefinite")
