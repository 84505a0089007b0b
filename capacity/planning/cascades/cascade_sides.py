"""The sides of a cascade, made of what was asked: engines of a pool, or an API by its price."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capacity.answers.phases import check_length
from capacity.base.errors import InvalidInput
from capacity.deployment import Cascade, Cost, Pool, Traffic, build
from capacity.hardware.pricing import price_of
from capacity.model import ModelSpec
from capacity.planning.bills.hosted_prices import ApiPrice, find_api_prices, read_api_prices
from capacity.planning.cascades.tiers import HostedSide, OwnSide, Side
from capacity.pool.resolve import ResolvedPool, resolve


@dataclass(frozen=True, slots=True)
class Sides:
    """Sides of a cascade, made of what was asked."""

    asked: Cascade
    traffic: Traffic
    cost: Cost
    profiles: str | Path | None
    download: bool

    def hosted(self, price: ApiPrice, name: str) -> HostedSide:
        """An API by the name of its field."""
        ttft_s, tpot_s = getattr(self.asked, f"{name}_ttft_s"), getattr(self.asked, f"{name}_tpot_s")
        output = self._output_len(name != "api")
        return HostedSide(price, float(self.traffic.input_len or 1), float(output), ttft_s, tpot_s)

    def own(
        self, model: str | Path | ModelSpec, pool: Pool, *, small: bool = False, output_len: int | None = None
    ) -> OwnSide:
        """Engines of a pool. Raises DoesNotFit; InvalidInput without a price, and for lengths that do not fit."""
        resolved = resolve(model, pool, profiles=self.profiles, download=self.download)
        if small and pool.tensor_parallel_size == 1 and self.asked.small_tensor_parallel_size is None:
            resolved = _fewest(resolved)
        resolved.memory.require_fit()
        price = price_of(resolved.profile.name, self.cost)
        if price is None:
            raise InvalidInput(
                "no price: give --price-tier on-demand (reserved-1y, spot, owned, ...), or --price 2.50 for $ per "
                "GPU-hour"
            )
        output = output_len or self._output_len(small)
        check_length(resolved, (self.traffic.input_len or 1) + output)
        traffic = build(Traffic, {**self.traffic.model_dump(exclude_unset=True), "output_len": output})
        return OwnSide(resolved, price, traffic, self.asked.target_utilization)

    def small(self, large: Side) -> Side | None:
        """The side of the small model; None without one."""
        asked = self.asked
        if asked.small is None:
            return None
        if (price := api_price(asked.small, asked, "small_api")) is not None:
            return self.hosted(price, "small_api")
        like = large.resolved.pool if isinstance(large, OwnSide) else None
        gpu = asked.small_gpu or (None if like is None else like.gpu)
        if gpu is None:
            raise InvalidInput(f"no GPU for {asked.small}: give --small-gpu, or --small-api PROVIDER")
        fields: dict[str, object] = {"gpu": gpu} if like is None else {"gpu": gpu, "engine": like.engine}
        given = (
            ("tensor_parallel_size", asked.small_tensor_parallel_size),
            ("quantization", asked.small_quantization),
        )
        fields |= {name: value for name, value in given if value is not None}
        return self.own(asked.small, build(Pool, fields), small=True)

    def embedder(self, large: Side, small: Side | None) -> OwnSide | None:
        """The side that embeds prompts; None where embeddings are bought. Raises as `own`."""
        asked = self.asked
        if asked.embedding_model is None:
            return None
        known = [side.resolved.pool.gpu for side in (large, small) if isinstance(side, OwnSide)]
        gpu = asked.embedding_gpu or next(iter(known), None)
        if gpu is None:
            raise InvalidInput(f"no GPU for {asked.embedding_model}: give --embedding-gpu")
        return self.own(asked.embedding_model, build(Pool, {"gpu": gpu}), output_len=1)

    def _output_len(self, small: bool) -> int:
        return (small and self.asked.small_output_len) or self.traffic.output_len or 1


def api_price(model: str, asked: Cascade, name: str) -> ApiPrice | None:
    """The API price of a side: given, or of a named provider; None of GPUs. Raises InvalidInput."""
    provider, given_in, given_out = (
        getattr(asked, field) for field in (name, f"{name}_input_price", f"{name}_output_price")
    )
    flag = "--" + name.replace("_", "-")
    if given_in is None and given_out is None:
        if provider is None:
            return None
        table = None if asked.api_price_file is None else read_api_prices(asked.api_price_file)
        found = find_api_prices(model, provider, table=table)
        if len(found) != 1:
            raise InvalidInput(
                f"{flag} {provider} names {len(found)} prices of {model}: name one provider, or give "
                f"{flag}-input-price and {flag}-output-price"
            )
        return found[0]
    if given_in is None or given_out is None or provider is not None:
        raise InvalidInput(
            f"an API has two prices: give {flag}-input-price and {flag}-output-price, or {flag} PROVIDER alone"
        )
    return ApiPrice(
        provider="user",
        model=model,
        usd_per_million_input=given_in,
        usd_per_million_output=given_out,
        cached_multiple=1.0,
        cache_write_multiple=1.0,
        date="",
        source=f"given with {flag}-input-price and {flag}-output-price",
    )


def _fewest(resolved: ResolvedPool) -> ResolvedPool:
    """The same on the fewest GPUs that hold it; itself where none do."""
    size = None if resolved.memory.fits else resolved.smallest_tensor_parallel_size
    return resolved if size is None else resolved.changed({"tensor_parallel_size": size})
