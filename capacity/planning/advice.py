"""The field's optimisation checklist, evaluated for this deployment on these requests by the model: never a tip.

Every line is a changed deployment that was simulated on the same arrivals, with its effect on p95 latencies in
seconds, on the bill and on $ per request at full load, and its published cost in quality. What is in place already is
taken away, to show what it is worth. What cannot be done here is said with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from capacity.answers.deployment_run import run_service
from capacity.base.errors import CapacityError
from capacity.base.record import AnswerRecord
from capacity.deployment import Pool, Service, build
from capacity.hardware.pricing import Price, find_price, price_table
from capacity.model import ModelSpec
from capacity.model.layers import Attention
from capacity.planning.outcome import Latencies, Outcome, change, latencies_of, outcome
from capacity.planning.quality import quality_change
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload

ROUND_TOKENS = 1024
GROUPED_KV_HEADS = 8  # of a what-if: what grouped-query models of today mostly have
HOST_GIB = 64.0  # of a what-if: host memory for KV that leaves the GPU
OTHER_GPUS = 3  # cheaper ones that are tried
LOSSLESS = "same: drafts are verified"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A deployment that differs: fields of its pool and of what stands before it, another model, another price.

    `refused` says why it cannot be tried at all; `quality` stands in for what the formats say.
    """

    text: str
    pool: dict[str, Any] = field(default_factory=dict)
    service: dict[str, Any] = field(default_factory=dict)
    model: ModelSpec | None = None
    price: Price | None = None
    note: str = ""
    quality: str | None = None
    refused: str | None = None

    @property
    def flags(self) -> str:
        """As the command line writes it."""
        return " ".join(_flag(name, value) for name, value in (self.pool | self.service).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a change does: in seconds and $ (`_s`, `usd_`), and relative to the deployment as it is; below 0 is better.

    The bill is in $ per hour, the cost in $ per request at full load. None where there is no value.
    """

    ttft_p95_s: float | None
    tpot_p95_s: float | None
    e2e_p95_s: float | None
    usd_per_hour: float | None
    usd_per_request_full: float | None
    ttft_p95_change: float | None
    tpot_p95_change: float | None
    e2e_p95_change: float | None
    bill_change: float | None
    cost_change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change: its effects, and what it costs in quality; `refused` says why it cannot be, without any."""

    change: str
    flags: str
    note: str
    effects: Effects | None
    failed: int
    worst_quality_loss: float | None
    quality_known: bool
    quality: str
    refused: str | None = None

    @property
    def benefit(self) -> float:
        """How much cheaper and faster, together: what advice is ranked by. Requests that fail outweigh all else."""
        if self.effects is None:
            return -math.inf
        found = self.effects
        moves = (found.ttft_p95_change, found.e2e_p95_change, found.bill_change, found.cost_change)
        return -sum(move for move in moves if move is not None) - 1e6 * self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceList(AnswerRecord):
    """Advice for one deployment, the most beneficial first; `observations` are figures that need no change."""

    SCHEMA: ClassVar[str] = "capacity/advice/v2"

    deployment: str
    workload: str
    base: Outcome
    advice: tuple[Advice, ...]
    refused: tuple[Advice, ...]
    observations: tuple[str, ...]


def advise_on(
    model: ModelSpec,
    pool: Pool,
    workload: Workload,
    *,
    replicas: int = 1,
    price: Price | None = None,
    profiles: str | None = None,
    progress: Progress | None = None,
) -> AdviceList:
    """Evaluate every change that applies. Raises DoesNotFit where the deployment itself does not fit."""
    resolved = resolve(model, pool.model_copy(update={"replicas": replicas}), profiles=profiles)
    resolved.memory.require_fit()
    seen = _served(resolved, Service(), workload)
    base = outcome(resolved, workload, replicas=replicas, price=price, latencies=seen)
    changes = list(_changes(resolved, workload, seen, price))
    lines = [_streaming(base)]
    for number, wanted in enumerate(changes):
        lines.append(_line(resolved, wanted, workload, base, price, profiles))
        if progress is not None:
            progress(number + 1, len(changes))
    gpus = f"{replicas} x {pool.num_gpus} {resolved.profile.name}"
    return AdviceList(
        deployment=f"{model.name} on {gpus}, {resolved.engine.label}",
        workload=workload.name,
        base=base,
        advice=tuple(
            sorted((line for line in lines if line.refused is None), key=lambda line: -line.benefit)
        ),
        refused=tuple(line for line in lines if line.refused is not None),
        observations=tuple(_observations(workload, base)),
    )


def _served(resolved: ResolvedPool, service: Service, workload: Workload) -> Latencies:
    return latencies_of(run_service([resolved], service, workload).records, workload)


# what might help


def _changes(
    resolved: ResolvedPool, workload: Workload, seen: Latencies, price: Price | None
) -> Iterator[Change]:
    yield from _formats(resolved)
    yield from _attention(resolved.model, _context(resolved, workload))
    yield from _engine(resolved)
    yield from _drafts(resolved)
    yield from _memory(resolved, workload)
    yield from _batches(resolved, _most_in_flight(workload, seen))
    yield from _sizes(resolved, price)


def _formats(resolved: ResolvedPool) -> Iterator[Change]:
    if not resolved.scheme.quantized:
        for name in ("fp8", "int4"):
            yield Change(text=f"quantize the weights to {name}", pool={"quantization": name})
    if not resolved.kv_cache_dtype.startswith("fp8"):
        yield Change(text="keep the KV cache in fp8", pool={"kv_cache_dtype": "fp8"})


def _context(resolved: ResolvedPool, workload: Workload) -> int:
    """The context length that this traffic needs, rounded up."""
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    return min(-(-longest // ROUND_TOKENS) * ROUND_TOKENS, resolved.max_model_len)


def _attention(model: ModelSpec, context: int) -> Iterator[Change]:
    """The model with grouped KV heads; where it has them, with a KV head for every query head."""
    mixers = [group.mixer for group in model.layer_groups if isinstance(group.mixer, Attention)]
    if not mixers:
        text = "a model with grouped KV heads (GQA)"
        yield Change(text=text, refused=f"{model.name} caches by {model.attention_kind}, not by KV heads")
        return
    plain = all(mixer.kind == "mha" for mixer in mixers)

    def heads(mixer: Attention) -> int:
        return min(GROUPED_KV_HEADS, mixer.num_heads) if plain else mixer.num_heads

    groups = tuple(
        replace(group, mixer=replace(group.mixer, num_kv_heads=heads(group.mixer)))
        if isinstance(group.mixer, Attention)
        else group
        for group in model.layer_groups
    )
    kept = mixers[0].num_kv_heads
    text = (
        f"a model of the same shape with {heads(mixers[0])} KV heads (GQA)"
        if plain
        else f"give up grouped KV heads, {kept} of {mixers[0].num_heads} (what GQA is worth)"
    )
    yield Change(
        text=text,
        model=replace(model, layer_groups=groups),
        pool={"max_model_len": context},
        note="another checkpoint",
        quality="unknown: another model",
    )


def _engine(resolved: ResolvedPool) -> Iterator[Change]:
    pool = resolved.pool
    if pool.enforce_eager:
        yield Change(text="use CUDA graphs", pool={"enforce_eager": False})
    else:
        yield Change(text="give up CUDA graphs (what they are worth)", pool={"enforce_eager": True})
    caching = resolved.prefix_caching
    yield Change(
        text="give up the prefix cache (what it is worth)" if caching else "use the prefix cache",
        pool={"enable_prefix_caching": not caching},
    )
    chunked = resolved.chunked_prefill
    yield Change(
        text="give up chunked prefill (what it is worth)" if chunked else "use chunked prefill",
        pool={"enable_chunked_prefill": not chunked},
    )
    if pool.tensor_parallel_size > 1:
        half = pool.tensor_parallel_size // 2
        yield Change(text="half the tensor parallelism", pool={"tensor_parallel_size": half})
    yield Change(
        text="twice the tensor parallelism", pool={"tensor_parallel_size": pool.tensor_parallel_size * 2}
    )


def _drafts(resolved: ResolvedPool) -> Iterator[Change]:
    if resolved.pool.speculator is not None:
        none = {"speculator": None, "num_speculative_tokens": None, "acceptance": None}
        yield Change(text="give up speculative decoding (what it is worth)", pool=none, quality=LOSSLESS)
        return
    ways = {"eagle3": "EAGLE-3", "ngram": "n-gram lookup"}
    if resolved.model.mtp is not None:
        ways["mtp"] = "the model's own MTP layer"
    for name, text in ways.items():
        yield Change(
            text=f"speculative decoding by {text}",
            pool={"speculator": name},
            note="at the published acceptance",
            quality=LOSSLESS,
        )


def _memory(resolved: ResolvedPool, workload: Workload) -> Iterator[Change]:
    needed = _context(resolved, workload)
    text = "max_model_len as this traffic needs it"
    if needed < resolved.max_model_len:
        yield Change(text=text, pool={"max_model_len": needed})
    else:
        yield Change(text=text, refused=f"it is: {resolved.max_model_len:,} tokens")
    if resolved.pool.preemption_mode == "recompute":
        yield Change(text="swap preempted requests to the host", pool={"preemption_mode": "swap"})
    if resolved.pool.kv_offloading_size is None:
        yield Change(
            text=f"keep evicted KV in {HOST_GIB:g} GiB of host memory", pool={"kv_offloading_size": HOST_GIB}
        )


def _batches(resolved: ResolvedPool, peak: int) -> Iterator[Change]:
    """Batch sizes and queues around what was in flight at most, of one replica about `peak`."""
    limit = resolved.max_num_seqs
    less = min(limit, peak) // 2
    if less >= 1:
        yield Change(text=f"a batch of at most {less}", pool={"max_num_seqs": less})
        yield Change(
            text=f"queue requests before the engine beyond {less}",
            service={"max_outstanding_requests": less},
        )
    else:
        for text in ("a smaller batch", "queue requests before the engine"):
            yield Change(text=text, refused="no two requests were ever in flight together")
    if peak >= limit:
        budget = {"max_num_batched_tokens": 2 * limit} if 2 * limit > resolved.max_num_batched_tokens else {}
        yield Change(text=f"a batch of up to {2 * limit}", pool={"max_num_seqs": 2 * limit, **budget})
    else:
        yield Change(text="a larger batch", refused=f"the limit of {limit} was never reached: {peak} at most")
    for budget_tokens in (512, 2048, 8192):
        if budget_tokens != resolved.max_num_batched_tokens and budget_tokens >= limit:
            yield Change(
                text=f"a token budget of {budget_tokens:,}", pool={"max_num_batched_tokens": budget_tokens}
            )


def _sizes(resolved: ResolvedPool, price: Price | None) -> Iterator[Change]:
    """Fewer replicas, cheaper GPUs, and capacity that may be taken away."""
    replicas = resolved.pool.replicas
    if replicas > 1:
        yield Change(text=f"right-size to {replicas - 1} replicas", pool={"replicas": replicas - 1})
    if price is None or price.tier == "given":
        why = "no price was given" if price is None else "the price given is of this GPU alone"
        for text in ("right-size to a cheaper GPU", "rent spot capacity"):
            yield Change(text=text, refused=f"{why}: --price-tier on-demand knows others")
        return
    yield from _cheaper(resolved, price)
    if price.tier == "spot":
        return
    try:
        spot = find_price(resolved.profile.name, tier="spot")
    except CapacityError as error:
        yield Change(text="rent spot capacity", refused=str(error))
        return
    yield Change(
        text="rent spot capacity", price=spot, note=f"interruptions aside; {spot.described if spot else ''}"
    )


def _cheaper(resolved: ResolvedPool, price: Price) -> Iterator[Change]:
    """The dearest of the GPUs that are cheaper in the same tier and hold the model."""
    names = {quote.gpu for quote in price_table() if quote.tier == price.tier} - {price.gpu}
    quotes = [quote for name in names if (quote := find_price(name, tier=price.tier)) is not None]
    tried = 0
    for quote in sorted(quotes, key=lambda quote: (-quote.usd_per_gpu_hour, quote.gpu)):
        if quote.usd_per_gpu_hour >= price.usd_per_gpu_hour or tried >= OTHER_GPUS:
            continue
        try:
            other = resolve(resolved.model, resolved.pool.model_copy(update={"gpu": quote.gpu}))
        except CapacityError:
            continue
        if other.memory.fits:
            tried += 1
            yield Change(
                text=f"right-size to {quote.gpu}",
                pool={"gpu": quote.gpu},
                price=quote,
                note=f"${quote.usd_per_gpu_hour:,.2f} an hour",
            )
    if not tried:
        yield Change(
            text="right-size to a cheaper GPU",
            refused=f"no cheaper one in the {price.tier} tier holds this deployment",
        )


def _most_in_flight(workload: Workload, seen: Latencies) -> int:
    """Requests in the system at once, at most, of one replica among equals."""
    done = np.isfinite(seen.e2e_s)
    arrived = workload.arrival_s[done]
    if workload.is_closed_loop or not len(arrived):
        return workload.concurrency or 1
    moments = np.concatenate((arrived, arrived + seen.e2e_s[done]))
    steps = np.concatenate((np.ones(len(arrived)), -np.ones(len(arrived))))
    order = np.lexsort((steps, moments))
    return int(np.cumsum(steps[order]).max())


# what it does


def _line(
    resolved: ResolvedPool,
    wanted: Change,
    workload: Workload,
    base: Outcome,
    price: Price | None,
    profiles: str | None,
) -> Advice:
    if wanted.refused is not None:
        return _refused(wanted, wanted.refused)
    try:
        changed = resolve(
            wanted.model or resolved.model,
            build(Pool, resolved.pool.model_dump() | wanted.pool),
            profiles=profiles,
        )
        changed.memory.require_fit()
        seen = _served(changed, Service(**wanted.service), workload)
        quote = wanted.price or price
        after = outcome(changed, workload, replicas=changed.pool.replicas, price=quote, latencies=seen)
    except CapacityError as error:
        return _refused(wanted, str(error))
    loss = quality_change(changed.scheme, changed.model.checkpoint, changed.kv_cache_dtype)
    known = loss.worst_loss_fraction is not None and not (wanted.quality or "").startswith("unknown")
    return Advice(
        change=wanted.text,
        flags=wanted.flags,
        note=wanted.note,
        effects=_effects(base, after),
        failed=max(after.failed - base.failed, 0),
        worst_quality_loss=loss.worst_loss_fraction if known else None,
        quality_known=known,
        quality=wanted.quality or loss.what,
    )


def _effects(base: Outcome, after: Outcome) -> Effects:
    def moved(name: str) -> tuple[float | None, float | None]:
        before, now = getattr(base, name), getattr(after, name)
        return _less(before, now), change(before, now)

    ttft, tpot, e2e = (moved(f"{name}_p95_s") for name in ("ttft", "tpot", "e2e"))
    bill, token = moved("usd_per_hour"), moved("usd_per_request_full")
    return Effects(
        ttft_p95_s=ttft[0],
        tpot_p95_s=tpot[0],
        e2e_p95_s=e2e[0],
        usd_per_hour=bill[0],
        usd_per_request_full=token[0],
        ttft_p95_change=ttft[1],
        tpot_p95_change=tpot[1],
        e2e_p95_change=e2e[1],
        bill_change=bill[1],
        cost_change=token[1],
    )


def _less(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _refused(wanted: Change, reason: str) -> Advice:
    return Advice(
        change=wanted.text,
        flags=wanted.flags,
        note=wanted.note,
        effects=None,
        failed=0,
        worst_quality_loss=None,
        quality_known=False,
        quality="",
        refused=reason,
    )


def _streaming(base: Outcome) -> Advice:
    """Without streaming the first word comes with the last."""
    after = replace(base, ttft_p95_s=base.e2e_p95_s)
    return Advice(
        change="give up streaming (what it is worth)",
        flags="",
        note="the first word then comes with the last",
        effects=_effects(base, after),
        failed=0,
        worst_quality_loss=0.0,
        quality_known=True,
        quality="same",
    )


def _flag(name: str, value: object) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"(no --{dashed})" if value is None else f"--{dashed} {value}"


def _observations(workload: Workload, base: Outcome) -> Iterator[str]:
    """What the deployment does as it is."""
    if base.usd_per_request_full is not None and base.usd_per_request_served:
        used = base.usd_per_request_full / base.usd_per_request_served
        yield f"{used:.0%} of full load is used; the rest of the bill buys headroom"
    if base.failed:
        yield f"{base.failed:,} of {len(workload):,} requests are never served"
