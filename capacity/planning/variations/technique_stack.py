"""Simulate a deployment with more and more serving techniques (KV cache, batching ...) on the same requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from pathlib import Path

from capacity.answers.attribution import bound_times
from capacity.answers.deployment_run import measured_capacity, run_service
from capacity.answers.intervals import LoadBands, load_bands
from capacity.answers.records import Quantity
from capacity.base.errors import CapacityError, InvalidInput
from capacity.deployment import Pool, Service, Traffic, build
from capacity.hardware.pricing import Price, billed_gpus, usd_per_hour
from capacity.model import ModelSpec
from capacity.planning.variations.changes import Change, mean_context
from capacity.planning.variations.technique_steps import SAVE_MEMORY, TechniqueStep
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import SimulationResult
from capacity.simulator.load_means import LoadMeans, whole_run_means
from capacity.step import Bound, decode_shape
from capacity.workload import Workload

EXPLAINED_DIFFERENCE = 0.05  # explain a factor that differs from the one alone by more than this fraction
Taken = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Improvement factors of throughput, TTFT, TPOT and cost per token; above 1 is better.

    `tpot` is None if requests have one output token, `usd` is None without a price.
    """

    throughput: float
    ttft: float
    tpot: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results of one deployment on the requests: mean client latencies, and tokens per second at full load.

    Full load is the rate of a closed loop; for an open loop it is the measured capacity as in `cost`, or with static
    batching the throughput if all requests are sent at once. `overloaded`: requests arrive faster than they are
    served, so TTFT grows with the number of requests. `bound`: the bottleneck for the largest part of the busy time;
    `bound_fraction`: this part as a fraction. `usd_per_million_output_tokens` is the whole bill divided by output
    tokens; `capacity cost` divides the bill between input and output tokens.
    """

    output_tokens_per_s: Quantity
    ttft_s: Quantity
    tpot_s: Quantity | None
    usd_per_million_output_tokens: Quantity | None
    overloaded: bool
    mean_batch_size: float
    bound: Bound | None
    bound_fraction: float
    basis: str


def factors_between(before: Figures, after: Figures) -> Factors:
    """Return the factors by which `after` is better than `before`."""

    def sooner(name: str) -> float | None:
        first, then = getattr(before, name), getattr(after, name)
        return None if first is None or then is None else first.value / then.value

    return Factors(
        throughput=after.output_tokens_per_s.value / before.output_tokens_per_s.value,
        ttft=sooner("ttft_s") or 1.0,
        tpot=sooner("tpot_s"),
        usd=sooner("usd_per_million_output_tokens"),
    )


def product_of(factors: Iterable[Factors]) -> Factors:
    """Return the product of all improvement factors, metric by metric."""
    each = list(factors)

    def product(name: str) -> float | None:
        values = [getattr(one, name) for one in each]
        return None if None in values else prod(values)

    return Factors(
        throughput=product("throughput") or 1.0,
        ttft=product("ttft") or 1.0,
        tpot=product("tpot"),
        usd=product("usd"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStep:
    """One technique added to all before it; if it was not added, `refused` has the reason and `figures` is None.

    `flags` and `figures` describe the deployment with all techniques so far. `own` are the factors of this technique,
    `cumulative` those of all techniques so far, `alone` those of this technique on the naive deployment with only the
    techniques in `rests_upon`, which it requires. `why` explains the difference between `own` and `alone`.
    """

    technique: str
    title: str
    flags: str
    refused: str | None = None
    figures: Figures | None = None
    own: Factors | None = None
    cumulative: Factors | None = None
    alone: Factors | None = None
    rests_upon: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class SimulatedDeployment:
    """Simulated deployment of the stack: its pool, command-line flags and results."""

    resolved: ResolvedPool
    flags: str
    figures: Figures


@dataclass(kw_only=True)
class TechniqueStack:
    """Simulator of deployments with given sets of techniques; each set is simulated once."""

    model: str | Path | ModelSpec
    workload: Workload
    traffic: Traffic
    price: Price | None
    profiles: str | Path | None
    techniques: Mapping[str, TechniqueStep]
    naive: Mapping[str, object]
    _known: dict[frozenset[str], SimulatedDeployment] = field(default_factory=dict)
    _drafting: dict[frozenset[str], Mapping[str, object]] = field(default_factory=dict)

    def fewest_that_fit(self, names: Sequence[str]) -> Taken:
        """Return the fewest techniques that make the deployment fit in memory. Raises DoesNotFit if none suffice."""
        saving = tuple(
            name for name in SAVE_MEMORY if name in names and self.techniques[name].refused is None
        )
        for count in range(len(saving) + 1):
            for taken in combinations(saving, count):
                if self._resolve_pool(taken).memory_without_advice.fits:
                    return taken
        self._resolve_pool(saving).memory.require_fit()
        raise InvalidInput("the deployment without techniques does not fit in memory")

    def evaluate_steps(self, names: Sequence[str], beginning: Taken) -> Iterator[StackStep]:
        """Yield the result of adding each technique to the techniques before it, starting with those in `beginning`."""
        taken = beginning
        for name in names:
            step = self._step(name, taken, beginning)
            if step.refused is None:
                taken = (*taken, name)
            yield step

    def _step(self, name: str, taken: Taken, beginning: Taken) -> StackStep:
        technique = self.techniques[name]
        refused = self._reason_not_taken(technique, taken, beginning)
        if refused is None:
            try:
                return self._make_step(technique, taken, beginning)
            except CapacityError as error:
                refused = str(error)
        return StackStep(technique=name, title=technique.title, flags="", refused=refused)

    def _reason_not_taken(self, technique: TechniqueStep, taken: Taken, beginning: Taken) -> str | None:
        if technique.refused is not None:
            return technique.refused
        if technique.name in beginning:
            return "part of the naive deployment, which does not fit in memory without it"
        lacking = [need for need in technique.needs if need not in taken]
        return f"requires {', '.join(lacking)}, which must be added before it" if lacking else None

    def _make_step(self, technique: TechniqueStep, taken: Taken, beginning: Taken) -> StackStep:
        before, after = self.simulate_with(taken), self.simulate_with((*taken, technique.name))
        needs = tuple(need for need in technique.needs if need not in beginning)
        ground = self.simulate_with((*beginning, *needs))
        own = factors_between(before.figures, after.figures)
        alone: Factors | None = None
        try:
            alone = factors_between(
                ground.figures, self.simulate_with((*beginning, *needs, technique.name)).figures
            )
            why = _explain_factors(own, alone, before.figures, after.figures, ground.figures)
        except CapacityError as error:
            why = f"cannot run alone: {error}"
        return StackStep(
            technique=technique.name,
            title=technique.title,
            flags=after.flags,
            figures=after.figures,
            own=own,
            cumulative=factors_between(self.simulate_with(beginning).figures, after.figures),
            alone=alone,
            rests_upon=needs,
            why=why,
        )

    def simulate_with(self, taken: Taken) -> SimulatedDeployment:
        """Return the simulated deployment with these techniques. Raises CapacityError if it cannot be built or run."""
        key = frozenset(taken)
        if key not in self._known:
            self._choose_drafts(taken)
            resolved = self._resolve_pool(taken)
            scheduling = "continuous" if any(self.techniques[name].continuous for name in taken) else "static"
            resolved.memory.require_fit()
            figures = self._figures(resolved, scheduling)
            flags = _flags(resolved.pool, scheduling)
            self._known[key] = SimulatedDeployment(resolved=resolved, flags=flags, figures=figures)
        return self._known[key]

    def _choose_drafts(self, taken: Taken) -> None:
        """Choose the number of draft tokens from the mean batch size that the deployment has without drafts."""
        for name in taken:
            choose = self.techniques[name].drafting
            if choose is not None:
                below = self.simulate_with(tuple(other for other in taken if other != name))
                batch, context = round(below.figures.mean_batch_size), round(mean_context(self.workload))
                self._drafting[frozenset(taken)] = choose(below.resolved, batch, context)

    def _resolve_pool(self, taken: Taken) -> ResolvedPool:
        fields = dict(self.naive)
        for name in taken:
            fields |= self.techniques[name].on
        fields |= self._drafting.get(frozenset(taken), {})
        return resolve(self.model, build(Pool, fields), profiles=self.profiles)

    def _figures(self, resolved: ResolvedPool, scheduling: str) -> Figures:
        workload, run = self.workload, self._run(resolved, scheduling, self.workload)
        means = whole_run_means(run.summary, run.records)
        if means is None:
            raise InvalidInput(
                f"none of {len(workload):,} requests completed: {run.reason or 'all rejected'}"
            )
        done, records = run.records.completed, run.records
        lengths = float(records.prompt_tokens[done].mean()), float(records.output_tokens[done].mean())
        full_means, tokens_per_s, load = means, run.summary.output_throughput, None
        if not workload.is_closed_loop:
            full_means, requests_per_s = self._full_load(resolved, scheduling)
            tokens_per_s = requests_per_s * workload.long_run_tokens[1]
            load = workload.offered_per_s / requests_per_s
        overloaded = load is not None and load >= 1
        client_s = self.workload.client_latency_s or 0.0
        bands, full_bands = (
            load_bands(resolved, each, lengths, client_latency_s=client_s, load_fraction=fraction)
            for each, fraction in ((means, None if overloaded else load), (full_means, None))
        )
        rate = _rate_between(full_bands, tokens_per_s)
        bound = max(bound_times(run.step_work), key=lambda each: each.time_fraction, default=None)
        usd = None
        if self.price is not None:
            gpus = billed_gpus(self.price, resolved.pool.num_gpus * resolved.pool.replicas)
            usd = rate.inverse(usd_per_hour(self.price, gpus) / 3600 * 1e6)
        return Figures(
            output_tokens_per_s=rate,
            ttft_s=bands.add_client_latency("ttft", bands.with_interval("ttft", means.ttft_s), self.traffic),
            tpot_s=None if means.tpot_s is None else bands.with_interval("tpot", means.tpot_s),
            usd_per_million_output_tokens=usd,
            overloaded=overloaded,
            mean_batch_size=run.mean_batch_size,
            bound=None if bound is None else bound.bound,
            bound_fraction=0.0 if bound is None else bound.time_fraction,
            basis=resolved.step_model.basis,
        )

    def _run(self, resolved: ResolvedPool, scheduling: str, requests: Workload) -> SimulationResult:
        return run_service(
            [resolved], Service(), requests, scheduling=scheduling, seed=self.traffic.seed, keep_work=True
        )

    def _full_load(self, resolved: ResolvedPool, scheduling: str) -> tuple[LoadMeans, float]:
        """Return the mean times of requests at full load, and the full-load rate in requests per second.

        Full load is the measured capacity. With static batching, or if no backlog forms, both results are those of a
        run in which all requests are sent at once.
        """
        capacity = measured_capacity([resolved], self.workload) if scheduling == "continuous" else None
        if capacity is not None and capacity.means is not None:
            return capacity.means, capacity.requests_per_s
        run = self._run(resolved, scheduling, self.workload.all_at_once())
        means = whole_run_means(run.summary, run.records)
        assert means is not None
        return means, run.summary.request_throughput

    def observations(self, beginning: Taken, steps: Sequence[StackStep]) -> Iterator[str]:
        """Yield notes: basis of step times, context length at which a KV cache matters, overloaded deployments."""
        remarks = self.simulate_with(beginning).resolved.step_setting.remarks
        notes = self.simulate_with(beginning).resolved.step_model.notes
        yield from dict.fromkeys((*remarks, *notes))
        if any(step.technique == "kv-cache" and step.refused is None for step in steps):
            yield from self._crossover(beginning)
        served = [
            self.simulate_with(beginning).figures,
            *(step.figures for step in steps if step.figures is not None),
        ]
        if any(figures.overloaded for figures in served):
            yield "Steps marked (overloaded) serve less than the offered load, so their TTFT grows with --num-prompts."

    def _crossover(self, beginning: Taken) -> Iterator[str]:
        """Yield a note with the context length from which a step takes twice as long without a KV cache as with it."""
        without = self.simulate_with(beginning).resolved
        cached = self._resolve_pool((*beginning, "kv-cache"))

        def twice(context: int) -> bool:
            shape = decode_shape(1, context, window_tokens=without.model.window_tokens)
            return without.step_model.step_seconds(shape) > 2 * cached.step_model.step_seconds(shape)

        low, high = 1, without.max_model_len
        if not twice(high):
            yield f"Up to {high:,} tokens of context, a step without KV cache takes less than twice as long as with it."
            return
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if twice(middle) else (middle + 1, high)
        yield (
            f"Without a KV cache, a step takes twice as long from a context of {low:,} tokens on. To generate n "
            "tokens, it computes n(n+1)/2 output tokens instead of n, and the prompt n times."
        )


def _rate_between(bands: LoadBands, rate: float) -> Quantity:
    """Return the rate with its 90 % interval, which is the inverse of the interval of end-to-end latency."""
    low, high = bands.ends("e2e")
    rate /= bands.calibration_factor("e2e")
    return Quantity(value=rate, low=rate / high, high=rate / low)


def _explain_factors(own: Factors, alone: Factors, before: Figures, after: Figures, ground: Figures) -> str:
    """Return a text with the bottlenecks before and after adding a technique; empty if `own` and `alone` agree."""
    if abs(own.throughput / alone.throughput - 1) <= EXPLAINED_DIFFERENCE:
        return ""
    there, here, then = (_bound_text(each) for each in (ground, before, after))
    return f"bottleneck before adding it: {there} if it is the only technique, {here} in this stack; after: {then}"


def _bound_text(figures: Figures) -> str:
    if figures.bound is None:
        return "idle"
    return f"{figures.bound_fraction:.0%} {figures.bound} at a batch of {figures.mean_batch_size:,.1f}"


def _flags(pool: Pool, scheduling: str) -> str:
    """Return the pool settings that differ from their defaults as command-line flags."""
    fields = {
        name: value
        for name, value in pool.model_dump().items()
        if value != Pool.model_fields[name].default and name not in ("role", "replicas")
    }
    static = {} if scheduling == "continuous" else {"scheduling": scheduling}
    return Change("", fields | static).flags
