"""An engine that might be an answer, with the replicas that are still open; and why something is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from capacity.deployment import Pool
from capacity.hardware.pricing import Price, billed_gpus, usd_per_hour
from capacity.planning.bounds import Bound
from capacity.planning.quality import QualityChange
from capacity.planning.records import Kind, Rejection
from capacity.planning.space import ROUND_ROBIN, Candidate, Search


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An engine that might be an answer, with the replicas that are still open (`least` to `most`).

    With `prefill`, the engine only decodes, and `prefill_replicas` of that one prefill: options of one pair differ
    in them. `gpu_s` is the GPU time of a request at best.
    """

    pool: Pool
    price: Price | None
    watts_per_gpu: float
    quality: QualityChange
    bound: Bound
    gpu_s: float
    least: int
    most: int
    search: Search
    prefill: Pool | None = None
    prefill_replicas: int = 0
    router: str = ROUND_ROBIN

    @property
    def family(self) -> tuple[str, str | None]:
        """Answers are given for each GPU and weight format."""
        return (self.pool.gpu, self.pool.quantization)

    @property
    def promise(self) -> float:
        """What a request would cost at best, up to whole GPUs."""
        match self.search.objective:
            case "cost":
                assert self.price is not None
                return self.gpu_s * self.price.usd_per_gpu_hour
            case "energy":
                return self.gpu_s * self.watts_per_gpu
            case _:
                return self.gpu_s

    def gpus(self, replicas: int) -> int:
        """GPUs in use."""
        prefill = 0 if self.prefill is None else self.prefill.num_gpus * self.prefill_replicas
        return self.pool.num_gpus * replicas + prefill

    def billed_gpus(self, replicas: int) -> int:
        """GPUs of whole instances."""
        gpus = self.gpus(replicas)
        return billed_gpus(self.price, gpus) if self.price else gpus

    def usd_per_hour(self, replicas: int) -> float | None:
        """$ per hour of whole instances; None without a price."""
        return None if self.price is None else usd_per_hour(self.price, self.billed_gpus(replicas))

    def watts(self, replicas: int) -> float:
        """All in, at full use."""
        return self.watts_per_gpu * self.gpus(replicas)

    def objective(self, replicas: int) -> float:
        """What is minimised, as far as it is known without simulating; rises with replicas."""
        match self.search.objective:
            case "cost":
                usd = self.usd_per_hour(replicas)
                assert usd is not None
                return usd
            case "energy":
                return self.watts(replicas)
            case _:
                return float(self.gpus(replicas))

    def most_below(self, objective: float) -> int:
        """The most replicas, of those open, whose objective is below that; 0 where none is."""
        low, high = self.least - 1, self.most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.objective(middle) < objective else (low, middle - 1)
        return 0 if low < self.least else low

    def at(self, replicas: int) -> Candidate:
        """The candidate with so many replicas."""
        return Candidate(
            pool=self.pool,
            replicas=replicas,
            prefill=self.prefill,
            prefill_replicas=self.prefill_replicas,
            router=self.router,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The options left after exclusion and bounds, and everything that is not among them."""

    options: tuple[Option, ...]
    rejected: tuple[Rejection, ...]
    engines: int
    points: int
    least_ratio: tuple[float, Candidate, str] | None  # of the bounds that exclude for good: the nearest miss

    def __add__(self, other: Survey) -> Survey:
        ratios = [each for each in (self.least_ratio, other.least_ratio) if each is not None]
        return Survey(
            options=self.options + other.options,
            rejected=self.rejected + other.rejected,
            engines=self.engines + other.engines,
            points=self.points + other.points,
            least_ratio=min(ratios, key=lambda each: each[0], default=None),
        )


NOTHING = Survey(options=(), rejected=(), engines=0, points=0, least_ratio=None)


@dataclass(frozen=True, slots=True)
class Turned:
    """Why something is not an option; `ratio` of value to limit where a bound made it."""

    kind: Kind
    reason: str
    ratio: float | None = None


def costlier(option: Option, to_beat: float) -> Turned:
    """That not even the bound of an option beats the answer."""
    what = f"{option.least} replicas"
    if option.prefill is not None:
        what = f"{option.prefill_replicas} replicas that prefill and {option.least} that decode"
    return Turned(
        "costlier",
        f"needs at least {what}: {amount(option, option.objective(option.least))}, "
        f"no better than the answer's {amount(option, to_beat)}",
    )


def amount(option: Option, value: float) -> str:
    """An objective's value in words."""
    match option.search.objective:
        case "cost":
            return f"${value:,.2f}/h"
        case "energy":
            return f"{value / 1e3:,.1f} kW"
        case "latency":
            return f"{value:.2f} of the limit"
        case _:
            return f"{value:.0f} GPUs"


def families(options: tuple[Option, ...]) -> Iterator[tuple[tuple[str, str | None], list[Option]]]:
    """Options by GPU and weight format, the most promising family and option first."""
    groups: dict[tuple[str, str | None], list[Option]] = {}
    for option in options:
        groups.setdefault(option.family, []).append(option)
    for group in groups.values():
        group.sort(key=lambda option: option.promise)
    yield from sorted(groups.items(), key=lambda item: item[1][0].promise)
