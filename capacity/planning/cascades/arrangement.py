"""Arrangement of a cascade: the share of requests that reaches each tier, and the cascade's cost and latency.

With cache hit rate h, escalation rate e, and m = 1 - h (the fraction of requests that miss the cache):
- escalate by answer: the small model receives the fraction m of all requests, then the large model m x e
- escalate by prompt: the small model receives m x (1 - e), the large model m x e; each request reaches one model
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from capacity.answers.records import Quantity
from capacity.base.quantity import sum_if_known
from capacity.hardware.pricing import HOURS_PER_MONTH, SECONDS_PER_HOUR
from capacity.planning.cascades.tiers import AnswerTimes, RequestPath, Side, Stage

STEPS = 1000  # of a rate from 0 to 1, because whole engines make the bill jump
EQUAL_COST_TOLERANCE = 1e-9  # relative difference within which two bills are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Semantic cache: hit rate, lookup time in seconds, cost per lookup, and cost of its storage per hour.

    `embedder`: your own engines that embed every prompt; None if the lookup price includes embedding.
    """

    hit_rate: float
    lookup_s: float
    lookup_usd: float
    store_usd_per_hour: float
    embedder: Side | None = None

    @property
    def embedding(self) -> Quantity:
        """Return the cost in $ of embedding one prompt, without rounding to whole engines; 0 without an embedder."""
        return _exact_quantity(0.0) if self.embedder is None else self.embedder.usd_at_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Cascade of an optional cache, an optional small model, and the large model, at one request rate.

    `client_s`: round-trip time between client and router; the network time between router and engines is neglected.
    """

    requests_per_s: float
    large: Side
    small: Side | None = None
    cache: Cache | None = None
    escalation_rate: float = 1.0
    by_answer: bool = True
    judge_s: float = 0.0
    judge_usd: float = 0.0
    client_s: float = 0.0

    @property
    def missed(self) -> float:
        """Return the fraction of requests that miss the cache, so a model must answer them."""
        return 1.0 if self.cache is None else 1 - self.cache.hit_rate

    @property
    def small_share(self) -> float:
        """Return the fraction of all requests that reach the small model, including those that it escalates."""
        if self.small is None:
            return 0.0
        return self.missed * (1.0 if self.by_answer else 1 - self.escalation_rate)

    @property
    def large_share(self) -> float:
        """Return the fraction of all requests that reach the large model."""
        return self.missed * (1.0 if self.small is None else self.escalation_rate)

    @property
    def sides(self) -> list[tuple[Side, float]]:
        """Return each tier (large model, small model, embedder) with the fraction of requests that reaches it."""
        embedder = None if self.cache is None else self.cache.embedder
        every = ((self.large, self.large_share), (self.small, self.small_share), (embedder, 1.0))
        return [(side, share) for side, share in every if side is not None]

    def usd_at_scale(self) -> Quantity:
        """Return the cost per request in $, without rounding to whole engines."""
        large, *others = (side.usd_at_scale.scale(share) for side, share in self.sides)
        return _sum_quantities([large, _exact_quantity(self._overhead_usd), *others])

    def usd_per_hour(self) -> Quantity:
        """Return the cost per hour in $, with the number of engines rounded up."""
        rate = self.requests_per_s
        large, *others = (side.usd_per_hour(share * rate) for side, share in self.sides)
        return _sum_quantities(
            [large, _exact_quantity(self._overhead_usd * rate * SECONDS_PER_HOUR), *others]
        )

    @property
    def _overhead_usd(self) -> float:
        """Return the cost per request in $ of everything but the models: cache lookup, cache storage and judge."""
        judged = 0.0 if self.small is None else self.missed * self.judge_usd
        if self.cache is None:
            return judged
        stored = self.cache.store_usd_per_hour / (self.requests_per_s * SECONDS_PER_HOUR)
        return judged + self.cache.lookup_usd + stored

    def paths(
        self, large: AnswerTimes | None, small: AnswerTimes | None, embedder: AnswerTimes | None = None
    ) -> tuple[list[RequestPath], list[RequestPath]] | None:
        """Return two lists of request paths: those to the first token, and those to the last token.

        None if a model is used whose latency is unknown. An answer that is judged first is shown only after the
        judgement, so its first token arrives with its last. The round trip to the client counts once per
        request, even if several models process the request.
        """
        judge = Stage.constant(self.judge_s)
        before = () if self.cache is None else (Stage.constant(self.cache.lookup_s),)
        asked = () if embedder is None else (embedder,)
        if embedder is not None:
            before = (embedder.e2e, *before)
        first, last = [], []
        if self.cache is not None:
            hit = RequestPath(share=self.cache.hit_rate, stages=(*before, *self._distance(asked)))
            first, last = [hit], [hit]
        if self.small_share:
            if small is None:
                return None
            share = self.missed * (1 - self.escalation_rate)
            shown = small.e2e if self.by_answer else small.ttft
            way = (*before, *self._distance((*asked, small)), judge)
            first.append(RequestPath(share=share, stages=(*way, shown)))
            last.append(RequestPath(share=share, stages=(*way, small.e2e)))
        if self.small is not None:
            before = (*before, judge)
            if self.by_answer and small is not None:
                before, asked = (*before, small.e2e), (*asked, small)
        if self.large_share:
            if large is None:
                return None
            before = (*before, *self._distance((*asked, large)))
            first.append(RequestPath(share=self.large_share, stages=(*before, large.ttft)))
            last.append(RequestPath(share=self.large_share, stages=(*before, large.e2e)))
        return first, last

    def _distance(self, asked: tuple[AnswerTimes, ...]) -> tuple[Stage, ...]:
        """Return a stage that corrects the client round trips in the latencies of `asked`, the tiers that process a
        request, to a single round trip. Empty if there is nothing to correct, or if all tiers are APIs."""
        counted = sum(waits.client_s for waits in asked)
        more = self.client_s - counted
        return (Stage.constant(more),) if more and (counted or not asked) else ()

    def with_escalation(self, escalation_rate: float) -> Arrangement:
        return replace(self, escalation_rate=escalation_rate)

    def with_hit_rate(self, hit_rate: float) -> Arrangement:
        assert self.cache is not None
        return replace(self, cache=replace(self.cache, hit_rate=hit_rate))

    @property
    def large_model_only(self) -> Arrangement:
        return Arrangement(requests_per_s=self.requests_per_s, large=self.large, client_s=self.client_s)

    def break_even_escalation(self) -> Quantity | None:
        """Return the highest escalation rate at which the cascade saves money, without rounding to whole engines.

        None if the cascade costs more even at rate 0. The interval combines the highest cost of the small model with
        the lowest cost of the large one, and the reverse.
        """
        assert self.small is not None
        small, large = self.small.usd_at_scale, self.large.usd_at_scale
        value = self._break_even_rate(small.value, large.value)
        if value is None:
            return None
        low = self._break_even_rate(small.high or small.value, large.low or large.value)
        return Quantity(
            value=value,
            low=low or 0.0,
            high=self._break_even_rate(small.low or small.value, large.high or large.value),
        )

    def _break_even_rate(self, small_usd: float, large_usd: float) -> float | None:
        """Return the escalation rate (at most 1) at which the cascade costs as much as the large model alone; None if
        the cascade costs more even at rate 0."""
        embedded = 0.0 if self.cache is None else self.cache.embedding.value
        none = self._overhead_usd + embedded + self.missed * small_usd
        slope = self.missed * (large_usd - (0.0 if self.by_answer else small_usd))
        if none > large_usd:
            return None
        return 1.0 if none + slope <= large_usd else (large_usd - none) / slope

    def break_even_escalation_here(self) -> float | None:
        """Return the highest escalation rate at which the cascade, with engine counts rounded up, costs no more than
        the large model alone; None if there is none."""
        most = self.large_model_only.usd_per_hour().value
        return _last_rate_within(lambda rate: self.with_escalation(rate).usd_per_hour().value, most)

    def break_even_hits(self) -> Quantity | None:
        """Return the hit rate above which the cache saves money, without rounding to whole engines.

        It is the cost of a lookup, with storage, divided by the cost of a miss. None if no hit rate is high enough.
        """
        assert self.cache is not None
        missed = replace(self, cache=None).usd_at_scale()
        stored = self.cache.store_usd_per_hour / (self.requests_per_s * SECONDS_PER_HOUR)
        paid = _sum_quantities([_exact_quantity(self.cache.lookup_usd + stored), self.cache.embedding])
        if not missed.value or paid.value > missed.value:
            return None
        return Quantity(
            value=paid.value / missed.value,
            low=(paid.low or paid.value) / (missed.high or missed.value),
            high=(paid.high or paid.value) / (missed.low or missed.value),
        )

    def break_even_hits_here(self) -> float | None:
        """Return the hit rate above which the cache saves money, with engine counts rounded up; None if none does."""
        most = replace(self, cache=None).usd_per_hour().value
        most_missed = _last_rate_within(
            lambda missed: self.with_hit_rate(1 - missed).usd_per_hour().value, most
        )
        return None if most_missed is None else 1 - most_missed


def _last_rate_within(usd: Callable[[float], float], most: float) -> float | None:
    """Return the highest escalation or miss rate up to which `usd(rate)` is at most `most`; None if `usd(0)`
    exceeds it."""
    found = None
    for step in range(STEPS + 1):
        if usd(step / STEPS) > most * (1 + EQUAL_COST_TOLERANCE):
            break
        found = step / STEPS
    return found


def _exact_quantity(value: float) -> Quantity:
    return Quantity(value=value, low=value, high=value)


def _sum_quantities(parts: Iterable[Quantity]) -> Quantity:
    """Return the sum; lower and upper ends of intervals are added, because all errors may have the same sign."""
    parts = list(parts)
    return Quantity(
        value=sum(part.value for part in parts),
        low=sum_if_known([part.low for part in parts]),
        high=sum_if_known([part.high for part in parts]),
    )


def per_month(usd_per_hour: Quantity) -> Quantity:
    """Return the cost per month of 730 hours, in $."""
    return usd_per_hour.scale(HOURS_PER_MONTH)
