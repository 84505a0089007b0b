"""Start-up time of a replica until its first request, from times in published start-up logs."""

import math
import tomllib
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from capacity.answers.interval_parts import Z_90
from capacity.answers.records import Quantity, StartUp
from capacity.pool.resolve import ResolvedPool

LOGS = Path(__file__).with_name("startup_logs.toml")
ENGINES_WITH_LOGS = ("vllm", "sglang")


def startup_of(resolved: ResolvedPool) -> StartUp | None:
    """Return the start-up time of a replica with cold caches; None for engines and platforms without logs (AMD).

    The parts are independent, so the variance of the total is the sum of their variances.
    """
    engine = resolved.engine
    if engine.name not in ENGINES_WITH_LOGS or resolved.profile.platform != "cuda":
        return None
    rate = startup_part("weights_gb_per_s")
    parts = {
        "process": startup_part("process_s"),
        "weights": rate.inverse(resolved.memory.weights_bytes / 1e9),
        "profiling": startup_part("profiling_s"),
    }
    if resolved.step_model.largest_graph is not None:
        if engine.scheduler.startswith("vllm-v1"):
            parts["compile"] = startup_part("compile_s")
        parts["graphs"] = startup_part("graphs_s")
    return StartUp(total_s=_sum(list(parts.values())), parts_s=parts, weights_gb_per_s=rate.value)


@lru_cache(maxsize=8)
def startup_part(name: str) -> Quantity:
    """Return the geometric mean of a start-up phase's times in logs, with the 90 % prediction interval of another log.

    The standard deviation of the logarithms is pooled over all phases, because some were logged only a few times.
    """
    logs = tomllib.loads(LOGS.read_text(encoding="utf-8"))
    tables = {key: [math.log(value) for value in table.values()] for key, table in logs.items()}
    pooled = [name] if name == "weights_gb_per_s" else [key for key in tables if key != "weights_gb_per_s"]
    freedom = sum(len(tables[key]) - 1 for key in pooled)
    squares = sum(sum((value - fmean(tables[key])) ** 2 for value in tables[key]) for key in pooled)
    rows = len(tables[name])
    half = _student(freedom) * math.sqrt(squares / freedom * (1 + 1 / rows))
    mean = fmean(tables[name])
    return Quantity(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def _student(freedom: int) -> float:
    """Return the 95 % quantile of Student's t for `freedom` degrees (by an expansion; 0.3 % error at 7 degrees)."""
    z = Z_90
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _sum(parts: list[Quantity]) -> Quantity:
    value = sum(part.value for part in parts)
    below = math.hypot(*(part.value - (part.low or 0.0) for part in parts))
    above = math.hypot(*((part.high or part.value) - part.value for part in parts))
    return Quantity(value=value, low=value - below, high=value + above)
