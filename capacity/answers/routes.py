"""Router settings: length and TTFT limits of pools, and fractions of requests that are escalated to the next pool."""

from collections.abc import Iterator, Sequence

from capacity.base.errors import InvalidInput
from capacity.deployment import Service, Traffic
from capacity.deployment.pool_routers import POOL_ROUTERS
from capacity.deployment.routing import Forecast, PoolLimits
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult
from capacity.simulator.escalation import Escalation
from capacity.step import StepShape, decode_shape, prefill_shape
from capacity.step.closed_form import prefill_steps

PROMPT_TOKENS = 1024  # of the prompts that the line is fitted to; longer ones take longer than predicted
PROMPTS = 8
# requests that decode in the same steps, each with as long a context, or as many as there are seats
OUTSTANDING = 32


def forecast_of(resolved: ResolvedPool, within_s: float) -> Forecast:
    """Return the constants with which the router forecasts TTFT for the limit `within_s`: prefill time per prompt token
    on an idle engine, and additional time for each running decode."""
    model, limits = resolved.step_model, resolved.limits
    rows = max(min(OUTSTANDING, limits.max_num_seqs - 1), 1)
    length = max(min(PROMPT_TOKENS, limits.max_num_batched_tokens - rows), 1)
    decode = decode_shape(rows, length, window_tokens=limits.window_tokens)

    def token_s(decoding: StepShape) -> float:
        steps = prefill_steps(PROMPTS, length, limits, decode=decoding)
        return sum(model.step_seconds(step) for step in steps) / (PROMPTS * length)

    alone_s = token_s(StepShape())
    first = prefill_shape(1, 1, window_tokens=limits.window_tokens)
    return Forecast(
        within_s=within_s,
        least_s=limits.request_latency_s + model.step_seconds(first),
        prompt_token_s=alone_s,
        per_request_s=max(token_s(decode) - alone_s, 0.0) / rows,
    )


CASCADE = "cascade"  # the router


def takes_of(resolved: ResolvedPool, place: int, service: Service) -> PoolLimits:
    """Return the limits up to which this pool accepts requests: tokens, requests, forecast TTFT. `place`: its index."""
    pool = resolved.pool
    forecast = None if service.router_ttft_s is None else forecast_of(resolved, service.router_ttft_s)
    return PoolLimits(place, pool.route_up_to_tokens, pool.route_up_to_requests, forecast)


def check_routes(pools: Sequence[ResolvedPool], service: Service) -> None:
    """Raise InvalidInput for limits and fractions that the router ignores, for a router without its required limit, and
    for decode pools with another model than the prefill pools, whose KV they cannot read."""
    if service.router == "within-ttft" and service.router_ttft_s is None:
        raise InvalidInput("--router within-ttft needs --router-ttft-s, the TTFT limit in seconds")
    by_length = ("route_up_to_tokens", "route_up_to_requests")
    for name, routers in {
        **dict.fromkeys(by_length, POOL_ROUTERS),
        "route_escalation_rate": (CASCADE,),
    }.items():
        if service.router not in routers and any(getattr(each.pool, name) is not None for each in pools):
            ways = " or ".join(routers)
            raise InvalidInput(f"a pool has {name}, which --router {service.router} ignores: use {ways}")
    prefill, decode = (
        {pool.model.name for pool in pools if pool.pool.role == role} for role in ("prefill", "decode")
    )
    if prefill and decode and len(prefill | decode) > 1:
        raise InvalidInput(
            f"{' and '.join(sorted(decode))} cannot read the KV cache of {' and '.join(sorted(prefill))}: use one "
            "model in all prefill and decode pools"
        )


def escalation(pools: Sequence[ResolvedPool], service: Service) -> Escalation | None:
    """Return the escalation settings of --router cascade; None for another router. Raises InvalidInput if a pool lacks
    the fraction of requests to escalate."""
    if service.router != CASCADE:
        return None
    *rates, last = [pool.pool.route_escalation_rate for pool in pools]
    if not rates:
        raise InvalidInput(
            "--router cascade needs at least two pools: list them as [[pools]] in a deployment file, each with its "
            "model, in the order of escalation; or use `capacity cascade --small MODEL`"
        )
    if last is not None:
        raise InvalidInput(
            f"route_escalation_rate {last:g} of the last pool has no further pool to escalate to: leave it out"
        )
    for place, rate in enumerate(rates):
        if rate is None:
            raise InvalidInput(
                f"pool {place + 1} has no route_escalation_rate, the fraction of its requests that is escalated: "
                "measure it, because it determines the quality"
            )
    return Escalation(
        rates=tuple(rate for rate in rates if rate is not None),
        by_answer=service.escalate_by == "answer",
        judge_s=service.judge_s,
        cache_hit_rate=service.cache_hit_rate,
        lookup_s=service.cache_lookup_s,
    )


def check_routed_traffic(pools: Sequence[ResolvedPool], traffic: Traffic) -> None:
    """Raise InvalidInput for images in a deployment with several models, whose image tokens differ."""
    if traffic.images_per_prompt and len(models_of(pools)) > 1:
        raise InvalidInput(
            f"{' and '.join(models_of(pools))} encode images with different numbers of tokens: leave out "
            "--images-per-prompt, or use one model in all pools"
        )


def models_of(pools: Sequence[ResolvedPool]) -> list[str]:
    """Return the names of the distinct models of the pools, in the order of the pools."""
    return list(dict.fromkeys(pool.model.name for pool in pools))


def route_notes(pools: Sequence[ResolvedPool], run: SimulationResult) -> Iterator[str]:
    """Yield notes on a deployment with several models and on escalated requests."""
    models = models_of(pools)
    if len(models) > 1:
        yield (
            f"{', '.join(models)} are simulated with the same input and output lengths, although tokenizers and "
            "output lengths differ by model."
        )
    use = run.cascade
    if use is None:
        return
    if use.by_answer:
        yield (
            "A judged answer is shown only when complete, so its TTFT equals its E2E and its TPOT is 0. ITL covers all "
            "generated tokens, judged or not."
        )
    if use.unseen_answers:
        yield (
            f"{use.unseen_answers:,} answers ({use.unseen_tokens:,} tokens) were judged and discarded; they cost GPU "
            "time but do not count as throughput."
        )
