"""The field's optimisation checklist, evaluated for this deployment on these requests by the model: never a tip.

Every line is a changed deployment that was simulated on the same arrivals, with its effect on p95 latencies, its
effect on $ per token at full load, and its published cost in quality. What the model cannot evaluate is listed as
such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from capacity.deployment import Pool
from capacity.errors import CapacityError
from capacity.model import ModelSpec
from capacity.planning.outcome import Outcome, change, outcome
from capacity.planning.quality import quality_change
from capacity.pricing import Price, find_price, usd_per_hour
from capacity.resolve import ResolvedPool, resolve
from capacity.workload import Workload

ROUND_TOKENS = 1024
NOT_EVALUATED = (
    ("speculative decoding", "`capacity speculate` evaluates it by acceptance and batch size"),
    ("a model with fewer KV heads (GQA)", "is another model: `capacity diff` compares two"),
    ("swapping KV to the host", "vLLM V1 recomputes preempted requests and does not swap"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change: relative effects (negative is better), and its quality loss; `refused` says why it cannot be."""

    change: str
    flags: str
    ttft_p95_change: float | None
    tpot_p95_change: float | None
    e2e_p95_change: float | None
    cost_change: float | None
    ttft_p95_s: float | None
    e2e_p95_s: float | None
    usd_per_million_full: float | None
    worst_quality_loss: float | None
    quality_known: bool
    refused: str | None = None

    @property
    def benefit(self) -> float:
        """How much cheaper and faster, together: what advice is ranked by."""
        moves = (self.cost_change, self.e2e_p95_change)
        return -sum(move for move in moves if move is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceList:
    """Advice for one deployment, the most beneficial first; `observations` are figures that need no change."""

    SCHEMA: ClassVar[str] = "capacity/advice/v1"

    deployment: str
    workload: str
    base: Outcome
    advice: tuple[Advice, ...]
    refused: tuple[Advice, ...]
    observations: tuple[str, ...]
    not_evaluated: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, `schema` first."""
        return {"schema": self.SCHEMA, **asdict(self)}


def advise_on(
    model: ModelSpec,
    pool: Pool,
    workload: Workload,
    *,
    replicas: int = 1,
    price: Price | None = None,
    profiles: str | None = None,
) -> AdviceList:
    """Evaluate every change that applies. Raises DoesNotFit where the deployment itself does not fit."""
    resolved = resolve(model, pool, profiles=profiles)
    base = outcome(resolved, workload, replicas=replicas, price=price)
    lines = []
    for text, changes in _changes(resolved, workload):
        lines.append(_line(model, pool, text, changes, workload, base, replicas, price, profiles))
    done = [line for line in lines if line.refused is None]
    gpus = f"{replicas} x {pool.num_gpus} {resolved.profile.name}"
    return AdviceList(
        deployment=f"{model.name} on {gpus}, {resolved.engine.label}",
        workload=workload.name,
        base=base,
        advice=tuple(sorted(done, key=lambda line: -line.benefit)),
        refused=tuple(line for line in lines if line.refused is not None),
        observations=tuple(_observations(resolved, workload, base, replicas, price)),
        not_evaluated=NOT_EVALUATED,
    )


def _changes(resolved: ResolvedPool, workload: Workload) -> Iterator[tuple[str, dict[str, Any]]]:
    """What might help this deployment: a name, and the fields of the pool that change."""
    pool = resolved.pool
    if not resolved.scheme.quantized:
        for name in ("fp8", "int4"):
            yield f"quantize the weights to {name}", {"quantization": name}
    if not (resolved.kv_cache_dtype.startswith("fp8")):
        yield "keep the KV cache in fp8", {"kv_cache_dtype": "fp8"}
    if pool.enforce_eager:
        yield "use CUDA graphs", {"enforce_eager": False}
    else:
        yield "give up CUDA graphs (what they are worth)", {"enforce_eager": True}
    caching = not resolved.prefix_caching
    yield f"prefix caching {'on' if caching else 'off'}", {"enable_prefix_caching": caching}
    if not resolved.chunked_prefill:
        yield "chunked prefill", {"enable_chunked_prefill": True}
    for budget in (512, 2048, 8192):
        if budget != resolved.max_num_batched_tokens and budget >= (pool.max_num_seqs or 1):
            yield f"a token budget of {budget:,}", {"max_num_batched_tokens": budget}
    for seqs in (resolved.max_num_seqs // 2, resolved.max_num_seqs * 2):
        if 1 <= seqs <= resolved.max_num_batched_tokens:
            yield f"at most {seqs} requests in a step", {"max_num_seqs": seqs}
    if pool.tensor_parallel_size > 1:
        yield "half the tensor parallelism", {"tensor_parallel_size": pool.tensor_parallel_size // 2}
    yield "twice the tensor parallelism", {"tensor_parallel_size": pool.tensor_parallel_size * 2}
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    needed = -(-longest // ROUND_TOKENS) * ROUND_TOKENS
    if needed < resolved.max_model_len:
        yield f"max_model_len {needed:,}, all that this traffic needs", {"max_model_len": needed}


def _line(
    model: ModelSpec,
    pool: Pool,
    text: str,
    changes: dict[str, Any],
    workload: Workload,
    base: Outcome,
    replicas: int,
    price: Price | None,
    profiles: str | None,
) -> Advice:
    flags = " ".join(_flag(name, value) for name, value in changes.items())
    try:
        changed = resolve(model, pool.model_copy(update=changes), profiles=profiles)
        after = outcome(changed, workload, replicas=replicas, price=price)
    except CapacityError as error:
        return Advice(
            change=text, flags=flags, ttft_p95_change=None, tpot_p95_change=None, e2e_p95_change=None, cost_change=None,
            ttft_p95_s=None, e2e_p95_s=None, usd_per_million_full=None, worst_quality_loss=None, quality_known=False,
            refused=str(error),
        )  # fmt: skip
    quality = quality_change(changed.scheme, model.checkpoint, changed.kv_cache_dtype)
    return Advice(
        change=text,
        flags=flags,
        ttft_p95_change=change(base.ttft_p95_s, after.ttft_p95_s),
        tpot_p95_change=change(base.tpot_p95_s, after.tpot_p95_s),
        e2e_p95_change=change(base.e2e_p95_s, after.e2e_p95_s),
        cost_change=change(base.usd_per_million_full, after.usd_per_million_full),
        ttft_p95_s=after.ttft_p95_s,
        e2e_p95_s=after.e2e_p95_s,
        usd_per_million_full=after.usd_per_million_full,
        worst_quality_loss=quality.worst_loss_fraction,
        quality_known=quality.worst_loss_fraction is not None,
    )


def _flag(name: str, value: object) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"--{dashed} {value}"


def _observations(
    resolved: ResolvedPool, workload: Workload, base: Outcome, replicas: int, price: Price | None
) -> Iterator[str]:
    """Streaming, spot and idle capacity: figures of this deployment as it is."""
    yield (
        f"streaming: a reader waits {base.ttft_p95_s:,.2f} s (p95) for the first token; without it "
        f"{base.e2e_p95_s:,.2f} s for the answer"
    )
    if base.usd_per_million_full is not None and base.usd_per_million_served:
        used = base.usd_per_million_full / base.usd_per_million_served
        yield f"right-sizing: {used:.0%} of full load is used; the rest of the bill buys headroom"
    if price is not None:
        try:
            spot = find_price(resolved.profile.name, tier="spot")
        except CapacityError:
            spot = None
        if spot is not None and price.tier != "spot":
            gpus = resolved.pool.num_gpus * replicas
            now, then = usd_per_hour(price, gpus), usd_per_hour(spot, gpus)
            yield f"spot: ${then:,.2f} an hour in place of ${now:,.2f} ({spot.described}), interruptions aside"
    if base.failed:
        yield f"{base.failed:,} of {len(workload):,} requests are never served"
