"""Beam search: time and memory by number of beams, for each implementation in engines.

All beams of a request read the KV of its prompt, which is stored once; each has its own output. After every step beams
are selected again, so that several beams can continue the output of the same beam. Implementations:

- `engine` (TensorRT-LLM; vLLM before 0.6.3): one decode token per beam, blocks shared; if two beams continue the same
  beam, its partial block is copied. At most one copy per beam and step is counted.
- `resubmitted` (vLLM from 0.6.3): every step submits each beam as a new request of one token, whose KV is in the prefix
  cache up to its last full block.
- `recomputed`: the same without a prefix cache; every step computes the whole context of each beam.
- `reordered` (transformers): one decode token per beam, each with its own whole cache including the prompt, which is
  copied into the new order at every step.

Not modelled: early stopping, and output tokens that several beams share.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from capacity.answers.intervals import with_interval
from capacity.answers.phases import check_length
from capacity.answers.records import Quantity
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.flags import with_flags
from capacity.base.keywords import document_options, split
from capacity.deployment import DeploymentFile, Pool, make_deployment
from capacity.model import ModelSpec
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import decode_shape, prefill_shape
from capacity.step.closed_form import prefill_steps
from capacity.techniques.one_pool import (
    InputLen,
    OutputLen,
    PoolAnswer,
    pool_notes,
    require_one_rank,
    shared_fields,
)

Way = Literal["engine", "resubmitted", "recomputed", "reordered"]
IMPLEMENTATIONS: tuple[Way, ...] = get_args(Way)
SUBMITTED: tuple[Way, ...] = ("resubmitted", "recomputed")
# of all others: resubmitted, outside of the engine
ENGINE_IMPLEMENTATION = {"tensorrt-llm": "engine", "hf-transformers": "reordered"}

# Host time of a beam that is submitted again, a step: what 100 prompts of 256 tokens with 4 beams took beyond their GPU
# time, Llama-3-8B on one H100, 256 steps at 1.08 requests/s: 362 ms a step of 400 beams, 100 of them the GPU's. vLLM
# 0.6.1 with its prefix cache (vllm-project/vllm pull request 8726, 2024-09-23). Not used: 0.10 requests/s without it.
BEAM_WIDTHS = (1, 2, 4, 8)
MAX_WIDTHS = 100
RESUBMIT_S = 0.65e-3
RESUBMIT_ERROR = 2.0  # error factor on other machines and releases: assumed, 2026-11-23


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamRow:
    """Results for one beam width and one implementation, with `batch_size` concurrent requests.

    `tpot_s`: time of a step with all beams. `times_greedy`: `tpot_s` relative to one beam with `engine`. `kv_tokens`:
    tokens of KV of a request at its end. `most_requests`: how many requests of this beam width fit the KV cache.
    """

    beam_width: int
    way: Way
    ttft_s: Quantity
    tpot_s: Quantity
    e2e_s: Quantity
    requests_per_s: Quantity
    times_greedy: float
    kv_tokens: int
    most_requests: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch(PoolAnswer):
    """Results for every beam width and implementation; `engine_way`: the implementation that the user's engine has."""

    SCHEMA: ClassVar[str] = "capacity/beam-search/v1"

    engine_way: Way
    input_len: int
    output_len: int
    batch_size: int
    rows: tuple[BeamRow, ...]
    warnings: tuple[str, ...]


@document_options(Pool)
@validate_arguments
@with_flags
def beam_search(
    model: str | ModelSpec | DeploymentFile,
    *,
    beam_widths: Sequence[int] = BEAM_WIDTHS,
    input_len: InputLen = 512,
    output_len: OutputLen = 128,
    batch_size: int = 1,
    **options: Any,
) -> BeamSearch:
    """Return beam search at several widths, in every implementation that engines use. Raises InvalidInput."""
    deployment = make_deployment(model, pool=split(options, Pool)[0], question="beam-search")
    resolved = resolve(deployment.model, require_one_rank(deployment.pool, "beam-search"))
    resolved.memory.require_fit()
    beam_widths = tuple(dict.fromkeys(beam_widths))
    _check_request(resolved, beam_widths, input_len, output_len, batch_size)
    search = _Search(resolved, input_len, output_len, batch_size)
    own: Any = ENGINE_IMPLEMENTATION.get(resolved.engine.name, "resubmitted")
    cautions = []
    if own == "resubmitted":
        cautions.append(
            f"{resolved.engine.name} has no built-in beam search: each step submits every beam again as a "
            f"request. Its host time ({RESUBMIT_S * 1e3:g} ms per beam) was measured on one machine with vLLM "
            "0.6.1."
        )
    return BeamSearch(
        **shared_fields(resolved),
        engine_way=own,
        input_len=input_len,
        output_len=output_len,
        batch_size=batch_size,
        rows=tuple(search.rows(beam_widths)),
        warnings=(*pool_notes(resolved), *cautions),
    )


def _check_request(
    resolved: ResolvedPool, widths: Sequence[int], input_len: int, output_len: int, batch_size: int
) -> None:
    if resolved.model.task == "embed":
        raise InvalidInput(f"{resolved.model.name} generates no tokens, so beam search does not apply to it")
    if not 1 <= len(widths) <= MAX_WIDTHS:
        raise InvalidInput(f"{len(widths)} different beam widths: give 1 to {MAX_WIDTHS}")
    if min(widths) < 1 or max(widths) > resolved.model.vocab_size:
        raise InvalidInput(f"beam widths {list(widths)}: each must be from 1 to {resolved.model.vocab_size}")
    if input_len < 1 or output_len < 2 or batch_size < 1:
        raise InvalidInput(
            f"input_len {input_len}, output_len {output_len}, requests {batch_size}: must be at least 1, 2 and 1"
        )
    check_length(resolved, input_len + output_len)
    if resolved.pool.speculator is not None or not resolved.pool.use_cache:
        raise InvalidInput(
            "beam search is modelled only with a KV cache and without drafts: leave out --no-use-cache and "
            "--speculator"
        )


@dataclass(frozen=True, slots=True)
class _Search:
    """Beam search by requests of one length and batch size on one pool."""

    resolved: ResolvedPool
    input_len: int
    output_len: int
    batch_size: int

    def rows(self, widths: Sequence[int]) -> Iterator[BeamRow]:
        greedy_s = self.step_s(1, "engine")
        for width in widths:
            for way in IMPLEMENTATIONS:
                yield self._row(width, way, greedy_s)

    def _row(self, width: int, way: Way, greedy_s: float) -> BeamRow:
        steps, limits = self.resolved.step_model, self.resolved.limits
        latency_s = limits.latency_s(self.input_len)
        prefill_s = sum(map(steps.step_seconds, prefill_steps(self.batch_size, self.input_len, limits)))
        step_s = self.step_s(width, way)
        ttft = self._add_band(latency_s + prefill_s, "prefill", 1.0)
        tpot = self._add_band(step_s, "decode", RESUBMIT_ERROR if way in SUBMITTED else 1.0)
        count = self.output_len - 1
        e2e = _add_quantities(ttft, tpot.scale(count))
        held = self.kv_tokens(width, way)
        most = self.resolved.memory.usable_blocks // self._blocks(width, way)
        return BeamRow(
            beam_width=width,
            way=way,
            ttft_s=ttft,
            tpot_s=tpot,
            e2e_s=e2e,
            requests_per_s=_add_quantities(ttft, tpot.scale(count), -latency_s).inverse(self.batch_size),
            times_greedy=step_s / greedy_s,
            kv_tokens=held,
            most_requests=most,
            fits=most >= self.batch_size,
        )

    def step_s(self, width: int, way: Way) -> float:
        """Return the time (s) of one decode step of all beams, halfway through the response."""
        beams, context = self.batch_size * width, self.input_len + (self.output_len + 1) // 2
        steps, window = self.resolved.step_model, self.resolved.model.window_tokens
        if way in SUBMITTED:
            return self._submitted_s(beams, context, cached=way == "resubmitted")
        decode_s = steps.step_seconds(decode_shape(beams, context, window_tokens=window))
        if width == 1:
            return decode_s
        copied_tokens = context if way == "reordered" else self.resolved.memory.kv_block_tokens / 2
        token_bytes = self.resolved.model.kv_bytes_per_token(self.resolved.kv_cache_dtype)
        ranks = self.resolved.pool.tensor_parallel_size
        return decode_s + steps.copy_seconds(2.0 * beams * copied_tokens * token_bytes / ranks)

    def _submitted_s(self, beams: int, context: int, *, cached: bool) -> float:
        """Return the step time (s) if each beam is submitted as a new request. `cached`: full blocks are in the prefix
        cache, so only the last, partial block is computed; the time is a mean over its possible lengths."""
        steps, window = self.resolved.step_model, self.resolved.model.window_tokens
        block = self.resolved.memory.kv_block_tokens if cached else 1
        seconds = 0.0
        for length in range(context, context + block):
            found = (length - 1) // block * block if cached else 0
            shape = prefill_shape(beams, length - found, cached_tokens=found, window_tokens=window)
            seconds += steps.step_seconds(shape)
        return seconds / block + RESUBMIT_S * beams

    def kv_tokens(self, width: int, way: Way) -> int:
        """Return how many tokens of KV a request, with all its beams, has at its end."""
        if way == "reordered":
            return width * (self.input_len + self.output_len)
        return self.input_len + width * self.output_len

    def _blocks(self, width: int, way: Way) -> int:
        """Return how many KV blocks a request, with all its beams, has at its end. Beams share the full blocks of the
        prompt, except with `reordered`, where each beam stores its whole sequence."""
        layout = self.resolved.memory.layout
        whole = layout.blocks_of_request(self.input_len + self.output_len)
        if way == "reordered" or width == 1:
            return width * whole
        shared = self.input_len // layout.block_tokens * layout.block_tokens
        kept = layout.blocks_of_request(shared) if shared else 0
        return kept + width * max(whole - kept, math.ceil(self.output_len / layout.block_tokens))

    def _add_band(self, value: float, phase: Literal["prefill", "decode"], factor: float) -> Quantity:
        residuals = self.resolved.step_model.residuals(phase).widen(factor)
        return with_interval(value, residuals.low, residuals.high)


def _add_quantities(first: Quantity, second: Quantity, more: float = 0.0) -> Quantity:
    """Return the sum of two quantities and `more`. Interval ends add up, because the errors may be correlated."""

    def add_optional(name: str) -> float | None:
        one, other = getattr(first, name), getattr(second, name)
        return None if one is None or other is None else one + other + more

    return Quantity(
        value=first.value + second.value + more, low=add_optional("low"), high=add_optional("high")
    )
