"""The techniques' answers as plain records, versioned by `schema`: what the command line prints as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from capacity.deployment import Cost, Pool, Traffic
from capacity.errors import InvalidInput
from capacity.pricing import Price, price_of
from capacity.resolve import ResolvedPool, resolve

BATCHES = (1, 4, 16, 64, 256)
LONGEST_DRAFT = 8
CAPACITIES = tuple(2**power for power in range(16, 27, 2))


def _pool_facts(resolved: ResolvedPool) -> dict[str, Any]:
    return {
        "model": resolved.model.name,
        "gpu": {"name": resolved.profile.name, "count": resolved.pool.num_gpus},
        "engine": resolved.engine.label,
        "warnings": [*resolved.notes, *resolved.step_model.notes],
    }


def _price(resolved: ResolvedPool, cost: Cost) -> Price | None:
    return price_of(resolved.profile.name, cost)


def quantize_answer(
    model: str,
    pool: Pool,
    cost: Cost,
    *,
    input_len: int,
    output_len: int,
    large_batch: int,
    methods: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Every quantization method on this pool. Raises InvalidInput or UnknownName."""
    from capacity.techniques.quantize import quantization_options

    resolved = resolve(model, pool)
    price = _price(resolved, cost)
    options = quantization_options(
        resolved,
        input_len=input_len,
        output_len=output_len,
        large_batch=large_batch,
        price=price,
        methods=methods,
    )
    return {
        "schema": "capacity/quantize/v1",
        **_pool_facts(resolved),
        "input_len": input_len,
        "output_len": output_len,
        "large_batch": large_batch,
        "price": None if price is None else price.described,
        "rows": [asdict(option) for option in options],
    }


def speculate_answer(
    model: str,
    pool: Pool,
    *,
    method: str,
    draft: str | None = None,
    acceptance: str | None = None,
    draft_tokens: int | None = None,
    tree: bool = True,
    context_tokens: int,
    batches: Sequence[int] = BATCHES,
) -> dict[str, Any]:
    """Rounds by batch at the asked and the best draft length, the break-even batch, memory and TTFT."""
    from capacity.speculative import Speculation, expected_tokens, find_speculator, textbook_speedup

    speculator = find_speculator(method)
    if draft_tokens is not None and not 1 <= draft_tokens <= 64:
        raise InvalidInput(f"--draft-tokens {draft_tokens}: must be from 1 to 64")
    if acceptance is not None:
        speculator = speculator.accepting(acceptance)
    if not tree:
        speculator = speculator.model_copy(update={"tree_tokens": None})
    resolved = resolve(model, pool)
    resolved.memory.require_fit()
    drafting = None
    if draft is not None:
        small = pool.model_copy(
            update={"tensor_parallel_size": 1, "max_model_len": None, "quantization": None}
        )
        drafting = resolve(draft, small)
    speculation = Speculation(resolved, speculator, draft=drafting)
    k = speculator.draft_tokens if draft_tokens is None else draft_tokens
    rows = []
    for batch in batches:
        asked = speculation.round(batch, context_tokens, k)
        best = speculation.best(batch, context_tokens, longest=max(k, LONGEST_DRAFT))
        rate = speculator.rates(k)
        uniform = sum(rate) / len(rate) if rate else 0.0
        rows.append(
            {
                **asdict(asked),
                "tpot_s": asked.tpot_s,
                "speedup": asked.speedup,
                "verify_cost": asked.verify_cost,
                "output_tokens_per_s": asked.output_tokens_per_s,
                "textbook_speedup": textbook_speedup(
                    uniform, k, asked.draft_s / max(k, 1) / asked.plain_step_s
                ),
                "textbook_tokens": expected_tokens(uniform, k),
                "best_draft_tokens": best.draft_tokens,
                "best_speedup": best.speedup,
            }
        )
    plain_ttft, drafted_ttft = speculation.ttft_s(context_tokens)
    return {
        "schema": "capacity/speculate/v1",
        **_pool_facts(resolved),
        "method": method,
        "draft": draft,
        "draft_tokens": k,
        "acceptance": list(speculator.rates(k)),
        "acceptance_source": {"text": speculator.source, "date": speculator.date, "basis": speculator.basis},
        "context_tokens": context_tokens,
        "break_even_batch": speculation.break_even_batch(context_tokens, k),
        "memory": asdict(speculation.memory()),
        "ttft_s": {"plain": plain_ttft, "with_draft": drafted_ttft},
        "rows": rows,
    }


def textbook_answer() -> dict[str, Any]:
    """The published textbook table beside the formulas."""
    from capacity.speculative import textbook_table

    return {"schema": "capacity/textbook/v1", "rows": [asdict(entry) for entry in textbook_table()]}


def kv_answer(
    models: Sequence[str],
    *,
    gpus: Sequence[str],
    kv_cache_dtype: str,
    contexts: Sequence[int],
    tensor_parallel_size: int,
    quantization: str | None,
    engine: str,
) -> dict[str, Any]:
    """KV by model and context, the kinds of attention side by side, and what each GPU holds."""
    from capacity.errors import OutsideValidity
    from capacity.model import load_model
    from capacity.techniques.kv import compare_attention_kinds, kv_table, prefill_crossover_tokens

    if not models:
        raise InvalidInput("no model: name one or more (`capacity models` lists them)")
    table = kv_table(
        models,
        gpus=gpus,
        kv_cache_dtype=kv_cache_dtype,
        contexts=contexts,
        tensor_parallel_size=tensor_parallel_size,
        quantization=quantization,
        engine=engine,
    )
    rows = []
    for row, name in zip(table, models, strict=True):
        model = load_model(name)
        try:
            crossover: float | None = prefill_crossover_tokens(model)
        except OutsideValidity:
            crossover = None
        rows.append(
            {
                **asdict(row),
                "request_bytes": {str(context): size for context, size in row.request_bytes.items()},
                "kinds": asdict(compare_attention_kinds(model, kv_cache_dtype)),
                "prefill_crossover_tokens": crossover,
            }
        )
    return {"schema": "capacity/kv/v1", "contexts": list(contexts), "gpus": list(gpus), "rows": rows}


def cache_curve_answer(
    trace: str,
    *,
    block_tokens: int | None,
    capacities_tokens: Sequence[int] = CAPACITIES,
    as_engine: bool = False,
    replicas: int = 1,
    limit: int | None = None,
    served_by: tuple[str, Pool] | None = None,
) -> dict[str, Any]:
    """Hit rates by capacity, by routing over replicas, what a pool saves, and the bill under each provider's plan."""
    from capacity.techniques.prefix_cache import ROUTINGS, prefill_savings, reuse_curve, routed_reuse
    from capacity.techniques.prompt_prices import prompt_cache_bill, prompt_cache_plans
    from capacity.workload import read_trace

    workload = read_trace(trace, limit=limit)
    size = block_tokens or _block_tokens(workload)
    curve = reuse_curve(workload, size, as_engine=as_engine)
    rows: list[dict[str, float | None]] = [
        {
            "capacity_tokens": capacity,
            "block_hit_fraction": curve.block_hit_fraction(capacity // size),
            "token_hit_fraction": curve.token_hit_fraction(capacity // size),
        }
        for capacity in capacities_tokens
    ]
    rows.append(
        {
            "capacity_tokens": None,
            "block_hit_fraction": curve.block_hit_fraction(),
            "token_hit_fraction": curve.token_hit_fraction(),
        }
    )
    routed = [] if replicas == 1 else [
        asdict(
            routed_reuse(
                workload,
                size,
                replicas=replicas,
                routing=routing,
                capacity_blocks=capacities_tokens[-1] // size,
                as_engine=as_engine,
            )
        )
        for routing in ROUTINGS
    ]  # fmt: skip
    return {
        "schema": "capacity/cache-curve/v1",
        "workload": workload.name,
        "requests": len(workload),
        "prompt_tokens": int(workload.prompt_tokens.sum()),
        "block_tokens": size,
        "knee_tokens": curve.knee_blocks * size,
        "rows": rows,
        "routing": routed,
        "savings": None if served_by is None else asdict(prefill_savings(resolve(*served_by), curve)),
        "plans": [asdict(prompt_cache_bill(curve, plan)) for plan in prompt_cache_plans().values()],
        "warnings": list(workload.notices),
    }


def _block_tokens(workload: Any) -> int:
    """The block size that the trace was hashed with, where its segments are equal; else vLLM's 16."""
    content = workload.content
    if content is None:
        return 16
    largest = int(content.segment_tokens.max())
    return largest if (largest & (largest - 1)) == 0 and largest <= 4096 else 16


def engines_answer(gpu: str, *, claims: bool = False) -> dict[str, Any]:
    """Engines side by side; with `claims`, published speed figures held against physics."""
    from capacity.techniques.engine_table import breakdown_claims, engine_rows, ladder_claims

    published = [*ladder_claims(), *breakdown_claims()] if claims else []
    return {
        "schema": "capacity/engines/v1",
        "gpu": gpu,
        "rows": [asdict(row) for row in engine_rows(gpu)],
        "claims": [asdict(claim) for claim in published],
    }


def scale_answer(
    model: str,
    pool: Pool,
    cost: Cost,
    *,
    input_len: int,
    output_len: int,
    concurrency: int,
    axis: str,
    most_gpus: int,
    tpot_s: float | None = None,
) -> dict[str, Any]:
    """Layouts along one axis of parallelism, and the cheapest that meets a TPOT."""
    from capacity.errors import UnknownName
    from capacity.techniques.scaling import AXES, cheapest, scaling_curve

    chosen = next((known for known in AXES if known == axis), None)
    if chosen is None:
        raise UnknownName("axis of parallelism", axis, AXES)
    resolved = resolve(model, pool)
    price = _price(resolved, cost)
    curve = scaling_curve(
        model,
        pool,
        input_len=input_len,
        output_len=output_len,
        concurrency=concurrency,
        axis=chosen,
        most_gpus=most_gpus,
        price=price,
    )
    best = None if tpot_s is None else cheapest(curve, tpot_s=tpot_s)
    return {
        "schema": "capacity/scale/v1",
        **_pool_facts(resolved),
        "axis": axis,
        "input_len": input_len,
        "output_len": output_len,
        "concurrency": concurrency,
        "tpot_limit_s": tpot_s,
        "cheapest_num_gpus": None if best is None else best.num_gpus,
        "rows": [asdict(layout) for layout in curve],
    }


def attention_io_answer(model: str, pool: Pool, *, contexts: Sequence[int]) -> dict[str, Any]:
    """Naive against tiled prefill attention at each context."""
    from capacity.techniques.attention_io import attention_io, shared_memory_bytes

    resolved = resolve(model, pool)
    rows = [attention_io(resolved, tokens) for tokens in contexts]
    return {
        "schema": "capacity/attention-io/v1",
        **_pool_facts(resolved),
        "on_chip_bytes": shared_memory_bytes(resolved.profile),
        "rows": [{**asdict(row), "traffic_ratio": row.traffic_ratio} for row in rows],
    }


def batching_answer(
    model: str, pool: Pool, traffic: Traffic, *, batch_size: int | None, batching_window_s: float
) -> dict[str, Any]:
    """The same arrivals under every way of batching, beside what the spread of lengths alone allows."""
    from capacity.serving import make_workload
    from capacity.techniques.batching import batching_comparison

    resolved = resolve(model, pool)
    workload = make_workload(traffic)
    compared = batching_comparison(
        resolved, workload, batch_size=batch_size, batching_window_s=batching_window_s
    )
    return {
        "schema": "capacity/batching/v1",
        **_pool_facts(resolved),
        "workload": workload.name,
        "requests": len(workload),
        "batch_size": compared.batch_size,
        "slot_waste_fraction": compared.slot_waste_fraction,
        "padding_waste_fraction": compared.padding_waste_fraction,
        "gain_bound": compared.gain_bound,
        "rows": [asdict(option) for option in compared.options],
    }
