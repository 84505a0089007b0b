"""Batching: what static batches waste by the spread of lengths, in closed form, and every way side by side.

A static batch lasts as long as its longest member. With B members whose outputs are drawn alike, slots are busy for
mean/E[longest of B] of the time, so that continuous batching is at most E[longest of B]/mean times faster while a
step takes as long for few rows as for many: 1 for equal lengths, H(B) = 1 + 1/2 + ... + 1/B for exponential ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from capacity.errors import InvalidInput
from capacity.resolve import ResolvedPool
from capacity.serving import scheduler_limits
from capacity.simulator import simulate_engine
from capacity.simulator.batching import KvWaste, compare_batching
from capacity.workload import Workload
from capacity.workload.columns import IntArray

CONTINUOUS = "continuous, paged KV"


def expected_longest(lengths: IntArray, batch_size: int) -> float:
    """Mean of the longest of `batch_size` draws from `lengths`, exactly: sum of x times the rise of F(x)^B."""
    if batch_size < 1 or not len(lengths):
        raise InvalidInput(f"a batch of {batch_size} from {len(lengths)} lengths: both must be at least 1")
    ordered = np.sort(np.asarray(lengths, dtype=np.float64))
    below = np.arange(len(ordered) + 1) / len(ordered)
    return float((ordered * np.diff(below**batch_size)).sum())


def static_slot_waste(lengths: IntArray, batch_size: int) -> float:
    """Share of a static batch's row-steps that belong to finished members: 1 - mean/E[longest]."""
    return 1.0 - float(np.mean(lengths)) / expected_longest(lengths, batch_size)


def continuous_gain_bound(lengths: IntArray, batch_size: int) -> float:
    """The most that continuous batching can gain over static, by output lengths alone: E[longest]/mean.

    Reached where a step's time does not depend on the rows in it (weights bound). Leaves out padding of prompts,
    waiting for a batch to form, and that compute-bound steps get cheaper as members end.
    """
    return expected_longest(lengths, batch_size) / float(np.mean(lengths))


def exponential_gain_bound(batch_size: int) -> float:
    """The same for exponential lengths: the harmonic number H(B). 2.7 at 8, 4.1 at 32: the "2 to 5 times" claim."""
    if batch_size < 1:
        raise InvalidInput(f"a batch of {batch_size}: must be at least 1")
    return float(sum(1 / k for k in range(1, batch_size + 1)))


def padding_waste(prompts: IntArray, batch_size: int) -> float:
    """Share of a padded prefill that is padding: 1 - mean/E[longest of B]."""
    return static_slot_waste(prompts, batch_size)


def contiguous_kv_waste(tokens: IntArray, max_model_len: int) -> float:
    """Share of KV reserved and never filled when every request reserves `max_model_len`: 1 - mean final length / limit.

    Of the end of each request; over its life it is more, because it fills as it grows.
    """
    if max_model_len < 1 or int(np.max(tokens)) > max_model_len:
        raise InvalidInput(
            f"max_model_len {max_model_len}: must hold the longest request, {int(np.max(tokens))} tokens"
        )
    return 1.0 - float(np.mean(tokens)) / max_model_len


def paged_kv_waste(tokens: IntArray, block_tokens: int) -> float:
    """Share of KV in blocks and not filled: the last block's rest, under half a block a request on average."""
    if block_tokens < 1:
        raise InvalidInput(f"blocks of {block_tokens} tokens: must be at least 1")
    held = -(-np.asarray(tokens) // block_tokens) * block_tokens
    return 1.0 - float(np.sum(tokens)) / float(np.sum(held))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOption:
    """One way of batching on the arrivals. `gain` is of output tokens per second over static batching."""

    name: str
    output_tokens_per_s: float
    mean_ttft_s: float | None
    p99_ttft_s: float | None
    mean_tpot_s: float | None
    mean_batch_size: float
    kv_waste_fraction: float | None
    preemptions: int
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingComparison:
    """All ways, beside what the lengths alone allow."""

    options: tuple[BatchingOption, ...]
    batch_size: int
    slot_waste_fraction: float
    padding_waste_fraction: float
    gain_bound: float


def batching_comparison(
    resolved: ResolvedPool,
    workload: Workload,
    *,
    batch_size: int | None = None,
    batching_window_s: float = 0.1,
) -> BatchingComparison:
    """The same arrivals under static, windowed, unchunked, chunked, contiguous, paged and cached batching.

    `batch_size` limits all of them (None: the pool's max_num_seqs). KV waste is measured one step at a time:
    for thousands of requests. Disaggregated prefill needs two pools and is not among them. Raises InvalidInput.
    """
    resolved.memory.require_fit()
    plan, limits = resolved.memory, scheduler_limits(resolved)
    if batch_size is not None:
        if batch_size < 1:
            raise InvalidInput(f"a batch of {batch_size}: must be at least 1")
        limits = replace(limits, max_num_seqs=batch_size)
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    if longest > limits.max_model_len:
        raise InvalidInput(
            f"the longest request has {longest} tokens, max_model_len is {limits.max_model_len}: raise the limit"
        )
    steps, blocks = resolved.step_model, plan.kv_capacity_blocks - 1
    rows = list(
        compare_batching(
            workload,
            step_times=steps,
            num_blocks=blocks,
            limits=limits,
            block_size=plan.kv_block_tokens,
            batching_window_s=batching_window_s,
        )
    )
    named = {row.name: (row.result, row.kv_waste_fraction) for row in rows}
    waste = KvWaste()
    unchunked = replace(
        limits,
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(limits.max_num_batched_tokens, limits.max_model_len),
    )
    whole = simulate_engine(
        workload,
        step_times=steps,
        num_blocks=blocks,
        block_size=plan.kv_block_tokens,
        limits=unchunked,
        policy="vllm-v1",
        enable_prefix_caching=False,
        mode="step",
        observer=waste,
    )
    named["continuous, paged KV, whole prompts"] = (whole, waste.fraction)
    static = next(iter(named.values()))[0].summary.output_throughput
    members = min(limits.max_num_seqs, len(workload))
    return BatchingComparison(
        options=tuple(
            BatchingOption(
                name=name,
                output_tokens_per_s=result.summary.output_throughput,
                mean_ttft_s=_seconds(result.summary.to_dict().get("mean_ttft_ms")),
                p99_ttft_s=_seconds(result.summary.to_dict().get("p99_ttft_ms")),
                mean_tpot_s=_seconds(result.summary.to_dict().get("mean_tpot_ms")),
                mean_batch_size=result.mean_batch_size,
                kv_waste_fraction=wasted,
                preemptions=result.preemptions,
                gain=result.summary.output_throughput / static,
            )
            for name, (result, wasted) in named.items()
        ),
        batch_size=members,
        slot_waste_fraction=static_slot_waste(workload.output_tokens, members),
        padding_waste_fraction=padding_waste(workload.prompt_tokens, members),
        gain_bound=continuous_gain_bound(workload.output_tokens, members),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
