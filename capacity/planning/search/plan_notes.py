"""Notes of a plan: settings that were not searched, sources of the values, and errors for an empty search space."""

from collections.abc import Sequence

from capacity.base.errors import CapacityError, DoesNotFit, InvalidInput
from capacity.deployment import Pool
from capacity.deployment.engines.engine_spec import ranking_notes
from capacity.hardware import load_profile, profile_names
from capacity.hardware.power_cap import power_cap_notes
from capacity.model import ModelSpec
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.evaluation_context import EvaluationContext
from capacity.planning.records import Ranked
from capacity.planning.search.candidate_family import CandidateRecord, EvaluatedCandidate
from capacity.planning.space import TUNING, Search, disaggregated_axes, speculators
from capacity.pool.drafting import find_speculator
from capacity.workload.windows import MIN_WORK_FRACTION

ROUTER_NOTE = (
    "Replicas share no prefix cache; a router distributes the requests (round robin unless another is named)."
)
GPUS_NAMED = 3  # larger GPUs that the error names if the model fits on no candidate GPU


def not_searched(search: Search, load: Load, model: ModelSpec) -> tuple[str, ...]:
    """Return a text for each option, such as drafts, that the search leaves out, with the flag that includes it."""
    texts = []
    drafts = any(speculators(search, model))
    drafts_apart, ranks_apart = disaggregated_axes(search, model)
    if not drafts:
        texts.append("drafts (--speculators eagle3,mtp)")
    if "disaggregated" not in search.serving:
        texts.append("disaggregated prefill and decode (--serving aggregated,disaggregated)")
    elif drafts and not drafts_apart:
        texts.append("drafts in disaggregated deployments (set --speculators none,eagle3)")
    tuned = any(len(getattr(search, name)) > 1 for name in TUNING)
    if tuned and (drafts or "disaggregated" in search.serving):
        texts.append(
            "with drafts, data-parallel ranks or disaggregated serving: all but the first value of token budget, "
            "chunked prefill and prefix caching"
        )
    if model.is_moe and search.data_parallel_sizes == (1,):
        texts.append("data-parallel attention (--data-parallel-sizes 1,8)")
    elif model.is_moe and "disaggregated" in search.serving and not ranks_apart:
        texts.append("data-parallel attention in disaggregated deployments (set --data-parallel-sizes)")
    if search.objective == "latency" and not (search.quantizations and search.speculators):
        texts.append(
            "formats that lose quality and drafts not measured for this model, unless they are named "
            "(--quantizations, --kv-cache-dtypes, --speculators)"
        )
    if not search.routers:
        shared = load.computed_input_tokens < load.input_tokens
        tried = "round robin and prefix-aware" if shared else "round robin"
        texts.append(f"routers other than {tried} (--routers least-outstanding)")
    return tuple(texts)


def require_options(survey: CandidateRecord, context: EvaluationContext) -> None:
    """Raise DoesNotFit or InvalidInput if no candidate can run at all, whether or not it meets the SLO."""
    if survey.options:
        return
    kinds = {rejection.kind for rejection in survey.rejected}
    if kinds & {"unmeetable", "limit"}:
        return
    for kind in ("does not fit", "quality", "no price", "impossible"):
        rejected = [rejection for rejection in survey.rejected if rejection.kind == kind]
        if rejected:
            text = f"no engine in the search space can run this model ({len(rejected)} rejected: {kind})."
            if kind == "does not fit":
                raise _does_not_fit(text, [rejection.pool for rejection in rejected], context)
            raise InvalidInput(f"{text} Example: {rejected[-1].reason}")
    raise InvalidInput("the search space is empty: give --gpus")


def _does_not_fit(text: str, pools: Sequence[Pool], context: EvaluationContext) -> DoesNotFit:
    """Return the error with the engine that lacks the least memory, and GPUs on which this engine fits."""
    plan, resolved = min(
        ((each.memory_without_advice, each) for each in map(context.resolve_pool, pools)),
        key=lambda each: each[0].needed_bytes - each[0].usable_bytes,
    )
    others = [load_profile(name) for name in profile_names() if "@" not in name]
    larger = [
        each.name
        for each in sorted(others, key=lambda each: each.memory_engine_bytes)
        if each.memory_engine_bytes > resolved.profile.memory_engine_bytes
        and each.gpus_per_node >= min(resolved.pool.tensor_parallel_size, resolved.profile.gpus_per_node)
        and _fits_on(each.name, resolved.pool, context)
    ]
    gpus = f"{resolved.pool.num_gpus} x " if resolved.pool.num_gpus > 1 else ""
    fits = f" The same engine fits on {gpus}{', '.join(larger[:GPUS_NAMED])}." if larger else ""
    return DoesNotFit(
        f"{text} The closest, on {resolved.pool.num_gpus} GPUs: {plan.reason}{fits}",
        needed_bytes=plan.needed_bytes,
        usable_bytes=plan.usable_bytes,
    )


def _fits_on(gpu: str, pool: Pool, context: EvaluationContext) -> bool:
    try:
        return context.resolve_pool(pool.model_copy(update={"gpu": gpu})).memory_without_advice.fits
    except CapacityError:
        return False


def warnings_of(context: EvaluationContext, ranked: Sequence[Ranked]) -> tuple[str, ...]:
    """Return notes on the assumptions behind the ranked deployments."""
    texts = list(context.workloads[0].notices)
    if any(answer.step_error_assumed for answer in ranked):
        texts.append(
            "For some of these GPUs, the error of predicted step times is assumed, so the confidence is uncertain."
        )
    pools = [answer.candidate.pool for answer in ranked]
    texts += ranking_notes(context.resolve_pool(pool).engine for pool in pools)
    texts += dict.fromkeys(
        f"{pool.quantization or 'the checkpoint'}: {remark}"
        for pool in pools
        for remark in context.resolve_pool(pool).step_setting.remarks
    )
    texts += dict.fromkeys(
        note for pool in pools for note in power_cap_notes(context.resolve_pool(pool).profile)
    )
    if any(answer.candidate.replicas > 1 for answer in ranked):
        texts.append(ROUTER_NOTE)
    for name in dict.fromkeys(answer.candidate.pool.speculator for answer in ranked):
        if name is not None:
            texts.append(_acceptance(name, ranked, context.model))
    return tuple(texts)


UPPER_BOUND = "sized for responses that take no time, an upper bound"


def response_note(context: EvaluationContext, ranked: Sequence[Ranked]) -> list[str]:
    """Return a note with the response time of the best deployment, if the rate of `users` was computed without one."""
    traffic = None if context.steady is None else context.steady.traffic
    predicted = ranked[0].predicted if ranked else None
    if traffic is None or traffic.users is None or traffic.response_s or predicted is None:
        return []
    response_s = float(f"{predicted.mean_e2e_s:.2g}")
    rate = traffic.users / (traffic.think_time_s + response_s)
    return [
        f"{UPPER_BOUND}: with the predicted {response_s:g} s ({rate:.4g} requests/s), fewer GPUs may suffice: add "
        f"--response-s {response_s:g}, or --user-loop closed to simulate users who wait for their responses"
    ]


def _acceptance(name: str, ranked: Sequence[Ranked], model: ModelSpec) -> str:
    """Return a note on the source of the draft acceptance rate, whose error the confidence does not cover."""
    speculator = find_speculator(name, model)
    acceptance = next(a.candidate.pool.acceptance for a in ranked if a.candidate.pool.speculator == name)
    if acceptance is not None:
        return f"The confidence does not cover the given acceptance rate of {name} drafts ({acceptance})."
    return (
        f"The confidence does not cover the acceptance rate of {name} drafts ({speculator.provenance}). Measure yours "
        "and set --acceptance."
    )


def lighter_misses(best: EvaluatedCandidate | None) -> list[str]:
    """Return a note if the best deployment misses the SLO in windows with little work, where it is not required."""
    windows = () if best is None else best.trial.windows
    missed = [each for each in windows if not each.judged and each.ratio > 1]
    if not missed:
        return []
    worst = max(missed, key=lambda each: each.ratio)
    level = max(worst.levels, key=lambda each: each.ratio)
    return [
        f"{len(missed)} windows with less than {MIN_WORK_FRACTION:.0%} of the busiest window's work miss the SLO. The "
        f"worst is {worst.window.label} with {worst.window.requests:,} requests: {level.slo} is {level.ratio:.2f} "
        "times its limit."
    ]
