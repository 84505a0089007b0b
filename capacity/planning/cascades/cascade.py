"""Cost and savings of a cascade: a semantic cache, a small model, or both in front of a large model.

The user gives the hit rate and the escalation rate because they depend on answer quality, which is not modelled here.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from capacity.answers.phases import check_length
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.flags import Flag
from capacity.base.keywords import document_options, split
from capacity.base.record import make_from
from capacity.deployment import ESTIMATE_TRAFFIC, Cascade, Cost, Pool, Traffic, build, make_deployment
from capacity.deployment.used_fields import reject_unused_fields
from capacity.hardware.pricing import HOURS_PER_MONTH
from capacity.model import ModelSpec
from capacity.planning.bills.billing import required_price
from capacity.planning.bills.hosted_prices import ApiPrice, find_api_prices, read_api_prices
from capacity.planning.cascades.arrangement import Arrangement, Cache
from capacity.planning.cascades.cascade_answer import CascadeAnswer, cascade_answer, run_cascade
from capacity.planning.cascades.tiers import HostedSide, OwnSide, Side
from capacity.pool.resolve import resolve

# the requests that reach a tier are again a Poisson process only if all arrivals are one
UNSUPPORTED_TRAFFIC = ("batch_size", "concurrency", "burstiness")
CASCADE_TRAFFIC = tuple(name for name in ESTIMATE_TRAFFIC if name not in UNSUPPORTED_TRAFFIC)
PREFIX_FIELDS = ("enable_prefix_caching", "kv_offloading_size")


@document_options(Pool, Traffic, Cost, Cascade)
@validate_arguments
def cascade(
    model: str | Path | ModelSpec,
    *,
    simulate: Annotated[
        bool, Flag("Also simulate both models as one deployment, request by request.")
    ] = False,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> CascadeAnswer:
    """Compare a cascade with `model` alone: cost, latency and break-even rates.

    The cascade puts a semantic cache (`cache_hit_rate`), a small model (`small`, `escalation_rate`), or both in front
    of `model`. Each model runs on GPUs (`model` on those of the pool, `small` on `small_gpu`) or on an API (`api` and
    `small_api`, or prices given by flags). `request_rate` or `requests_per_day` gives the load. `simulate` also runs
    both models as one deployment. Raises DoesNotFit, and InvalidInput for invalid settings.
    """
    pool, traffic_fields, prices, own = split(options, Pool, Traffic, Cost, Cascade)
    asked: Cascade = build(Cascade, own)
    reject_unused_fields("cascade", (asked,), own)
    _check_asked(asked)
    if unread := next((name for name in traffic_fields if name not in CASCADE_TRAFFIC), None):
        raise InvalidInput(f"{unread} is not used by cascade: give --request-rate")
    if unread := next((name for name in PREFIX_FIELDS if name in pool), None):
        raise InvalidInput(
            f"{unread} has no effect in cascade, because its requests share no prefixes: leave it out, or use "
            "`capacity simulate`"
        )
    traffic, cost = build(Traffic, traffic_fields), build(Cost, prices)
    if (large_price := api_price(str(model), asked, "api")) is None:
        if "gpu" not in pool:
            raise InvalidInput("no GPU: give --gpu NAME (`capacity gpus` lists them), or --api PROVIDER")
        deployment = make_deployment(
            model, pool=pool, traffic=traffic_fields, cost=prices, question="cascade"
        )
        traffic = deployment.traffic
    elif pool:
        raise InvalidInput(
            f"{next(iter(pool))!r} applies to engines on GPUs, but {model} runs on an API: leave it out (the small "
            "model's GPU is set with small_gpu)"
        )
    _check_load(traffic)
    sides = Sides(asked, traffic, cost, profiles, download)
    large = sides.hosted_side(large_price, "api") if large_price else sides.own_side(model, build(Pool, pool))
    small = sides.small(large)
    arrangement = _arrangement_of(asked, traffic, large, small, sides.embedder(large, small))
    together = run_cascade(asked, traffic, arrangement) if simulate else None
    answer = cascade_answer(str(getattr(model, "name", model)), asked, traffic, arrangement)
    return replace(answer, together=together)


def _check_asked(asked: Cascade) -> None:
    if asked.small is None and asked.cache_hit_rate is None:
        raise InvalidInput(
            "no tier before the large model: give --small and --escalation-rate, or --cache-hit-rate"
        )
    if asked.embedding_model is not None and "embedding_price" in asked.model_fields_set:
        raise InvalidInput("--embedding-price cannot be used with --embedding-model: leave one out")
    if asked.small is not None and asked.escalation_rate is None:
        raise InvalidInput(
            f"--small {asked.small} needs --escalation-rate, the fraction of its requests that is escalated: measure "
            "it, because it determines the quality, or try 0.3 and compare it with the break-even rate"
        )


def _check_load(traffic: Traffic) -> None:
    if traffic.request_rate is None or traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput("no load: give --input-len, --output-len and --request-rate or --requests-per-day")
    if traffic.request_rate == float("inf"):
        raise InvalidInput("--request-rate inf cannot be served by any number of engines: give a finite rate")


def _arrangement_of(
    asked: Cascade, traffic: Traffic, large: Side, small: Side | None, embedder: Side | None
) -> Arrangement:
    cache = None
    if asked.cache_hit_rate is not None:
        bought_usd = asked.embedding_price * (traffic.input_len or 1) / 1e6
        cache = Cache(
            hit_rate=asked.cache_hit_rate,
            lookup_s=asked.cache_lookup_s,
            lookup_usd=bought_usd if embedder is None else 0.0,
            store_usd_per_hour=asked.cache_store_usd_per_month / HOURS_PER_MONTH,
            embedder=embedder,
        )
    return make_from(
        Arrangement,
        asked,
        requests_per_s=traffic.request_rate or 1.0,
        large=large,
        small=small,
        cache=cache,
        escalation_rate=1.0 if asked.escalation_rate is None else asked.escalation_rate,
        by_answer=asked.escalate_by == "answer",
        client_s=traffic.client_latency_s,
    )


@dataclass(frozen=True, slots=True)
class Sides:
    """Builder of the tiers of a cascade (large model, small model, embedder) from the user's settings."""

    asked: Cascade
    traffic: Traffic
    cost: Cost
    profiles: str | Path | None
    download: bool

    def hosted_side(self, price: ApiPrice, name: str) -> HostedSide:
        """Return a tier that uses an API; `name` ("api" or "small_api") is the prefix of its settings."""
        ttft_s, tpot_s = getattr(self.asked, f"{name}_ttft_s"), getattr(self.asked, f"{name}_tpot_s")
        output = self._output_len(name != "api")
        return HostedSide(price, float(self.traffic.input_len or 1), float(output), ttft_s, tpot_s)

    def own_side(
        self, model: str | Path | ModelSpec, pool: Pool, *, small: bool = False, output_len: int | None = None
    ) -> OwnSide:
        """Return a tier on your own engines, which `pool` describes. Raises DoesNotFit, and InvalidInput without a GPU
        price or for requests longer than the context."""
        resolved = resolve(model, pool, profiles=self.profiles, download=self.download)
        if small and pool.tensor_parallel_size == 1 and self.asked.small_tensor_parallel_size is None:
            size = None if resolved.memory.fits else resolved.smallest_tensor_parallel_size
            resolved = resolved if size is None else resolved.change({"tensor_parallel_size": size})
        resolved.memory.require_fit()
        price = required_price(resolved, self.cost)
        output = output_len or self._output_len(small)
        check_length(resolved, (self.traffic.input_len or 1) + output)
        traffic = build(Traffic, {**self.traffic.model_dump(exclude_unset=True), "output_len": output})
        return OwnSide(resolved, price, traffic, self.asked.target_utilization)

    def small(self, large: Side) -> Side | None:
        """Return the tier of the small model; None if the cascade has no small model."""
        asked = self.asked
        if asked.small is None:
            return None
        if (price := api_price(asked.small, asked, "small_api")) is not None:
            return self.hosted_side(price, "small_api")
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
        return self.own_side(asked.small, build(Pool, fields), small=True)

    def embedder(self, large: Side, small: Side | None) -> OwnSide | None:
        """Return the engines that embed prompts; None without an embedding model. Raises what `own_side` raises."""
        asked = self.asked
        if asked.embedding_model is None:
            return None
        known = [side.resolved.pool.gpu for side in (large, small) if isinstance(side, OwnSide)]
        gpu = asked.embedding_gpu or next(iter(known), None)
        if gpu is None:
            raise InvalidInput(f"no GPU for {asked.embedding_model}: give --embedding-gpu")
        return self.own_side(asked.embedding_model, build(Pool, {"gpu": gpu}), output_len=1)

    def _output_len(self, small: bool) -> int:
        return (small and self.asked.small_output_len) or self.traffic.output_len or 1


def api_price(model: str, asked: Cascade, name: str) -> ApiPrice | None:
    """Return the API price of a tier, from flags or the named provider; None for GPUs. Raises InvalidInput."""
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
                f"{flag} {provider} selects {len(found)} prices of {model}, but must select one: name one provider, or "
                f"give {flag}-input-price and {flag}-output-price"
            )
        return found[0]
    if given_in is None or given_out is None or provider is not None:
        raise InvalidInput(f"give both {flag}-input-price and {flag}-output-price, or only {flag} PROVIDER")
    return ApiPrice(
        model=model,
        usd_per_million_input=given_in,
        usd_per_million_output=given_out,
        source=f"given with {flag}-input-price and {flag}-output-price",
    )
