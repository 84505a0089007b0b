"""Cost of a drafting round for a batch, from the step model, and the batch size from which it gives no speed-up.

A round drafts k tokens for each request, verifies them in one target step over batch x (k + 1) rows, and yields the
accepted tokens plus one. Its cost includes the time of the verification step, the draft's steps, weights and KV, and
padding to CUDA graph sizes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.base.errors import InvalidInput
from capacity.pool.drafting.drafters import (
    DraftWork,
    HeadsDrafter,
    LookupDrafter,
    ModelDrafter,
    make_drafter,
    prefill_seconds,
)
from capacity.pool.drafting.speculators import Speculator, pool_speculator
from capacity.pool.drafting.textbook import check_drafts
from capacity.pool.drafting.tree import MAX_NODES
from capacity.pool.kv_layout import max_concurrency
from capacity.pool.memory import MemoryPlan
from capacity.pool.resolve import ResolvedPool
from capacity.step import DecodePiece, StepCost, StepShape, decode_shape, picoseconds
from capacity.step.closed_form import first_failing
from capacity.step.export import DraftedData
from capacity.step.model import StepModel
from capacity.step.setting import HostTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Times and tokens of one drafting round of a batch; `speedup`: tokens/s divided by tokens/s without drafting."""

    batch_size: int
    draft_tokens: int
    verified_tokens: int  # rows verified per request, excluding its last token
    tokens_per_round: float
    draft_s: float
    verify_s: float
    plain_step_s: float

    @property
    def round_s(self) -> float:
        return self.draft_s + self.verify_s

    @property
    def tpot_s(self) -> float:
        return self.round_s / self.tokens_per_round

    @property
    def output_tokens_per_s(self) -> float:
        return self.batch_size / self.tpot_s

    @property
    def speedup(self) -> float:
        return self.plain_step_s / self.tpot_s

    @property
    def verify_cost(self) -> float:
        """Return the time of the verification step divided by that of a plain step; the textbook formula assumes 1."""
        return self.verify_s / self.plain_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMemory:
    """Draft weights and KV in bytes on each target GPU; KV capacity in tokens before and after adding the draft."""

    draft_weights_bytes: float
    draft_kv_bytes_per_token: float
    kv_capacity_tokens_before: int
    kv_capacity_tokens_after: int


class Speculation:
    """Speculative decoding of a target pool. Raises InvalidInput if the drafting method does not suit the model.

    `draft`: the resolved draft model, for the method `draft-model`; default: `target.draft`. Its step times are
    computed on its own GPUs, which may be fewer than the target's. Not modelled: the kernels of the rejection sampler
    (some tens of microseconds), and requests that finish inside a round.
    """

    def __init__(
        self, target: ResolvedPool, speculator: Speculator, *, draft: ResolvedPool | None = None
    ) -> None:
        self.target = target
        self.speculator = speculator
        own = target.draft if speculator.kind == "draft-model" else None
        self.drafter = make_drafter(target, speculator, draft or own)
        self._verifying: dict[int, StepModel] = {}

    def verification_model(self, nodes: int) -> StepModel:
        """Return the target's step model with CUDA graphs for steps that verify `nodes` drafts per request."""
        if nodes not in self._verifying:
            plain = self.target.step_setting
            drafting = replace(plain, draft_rows=nodes)
            same = drafting.host_time() == plain.host_time()
            self._verifying[nodes] = self.target.step_model if same else StepModel(drafting)
        return self._verifying[nodes]

    def round_of(
        self,
        batch_size: int,
        context_tokens: int,
        draft_tokens: int | None = None,
        tree_tokens: int | None = None,
    ) -> Round:
        """Return the drafting round of `batch_size` requests with `context_tokens` tokens of context each.

        `draft_tokens`: draft depth; None: the method's default. `tree_tokens`: nodes verified per request; None: the
        method's number, scaled by the depth.
        """
        k = self.speculator.depth(draft_tokens)
        check_drafts(k)
        if batch_size < 1 or context_tokens < 1:
            raise InvalidInput(
                f"a batch of {batch_size} at {context_tokens} tokens of context: both must be at least 1"
            )
        window = self.target.model.window_tokens
        plain = decode_shape(batch_size, context_tokens, window_tokens=window)
        verified = self.speculator.verified_tokens(k) if tree_tokens is None else tree_tokens
        if k and not k <= verified <= MAX_NODES:
            raise InvalidInput(
                f"a tree of {verified} drafts with depth {k}: the number must be from the depth to {MAX_NODES}"
            )
        tokens = self.speculator.tokens_per_round(k, verified)
        return Round(
            batch_size=batch_size,
            draft_tokens=k,
            verified_tokens=verified,
            tokens_per_round=tokens,
            draft_s=self.drafter.seconds(DraftWork(batch_size, context_tokens, k, verified, tokens))
            if k
            else 0.0,
            verify_s=self.verification_model(verified).step_seconds(
                plain._replace(draft_tokens=batch_size * verified)
            ),
            plain_step_s=self.target.step_model.step_seconds(plain),
        )

    def best_round(self, batch_size: int, context_tokens: int, *, longest: int = 8) -> Round:
        """Return the round with the most tokens per second among depths from 0 (no speculation) to `longest`.

        For a tree, the search also covers the number of nodes, from a chain to the method's own tree.
        """
        candidates = [
            self.round_of(batch_size, context_tokens, k, nodes)
            for k in range(longest + 1)
            for nodes in self.speculator.tree_sizes(k)
        ]
        return max(candidates, key=lambda candidate: candidate.speedup)

    def largest_batch(self, context_tokens: int) -> int:
        """Return the maximum number of requests in a step, limited by max_num_seqs and KV cache. Raises DoesNotFit."""
        return min(self.concurrent_requests(context_tokens), self.target.max_num_seqs)

    def concurrent_requests(self, tokens: int) -> int:
        """Return how many requests of `tokens` tokens fit in the KV cache with their drafts. Raises DoesNotFit."""
        memory, held = self.memory(), self.target.concurrent_requests(tokens)
        return held * memory.kv_capacity_tokens_after // max(memory.kv_capacity_tokens_before, 1)

    def break_even_batch(self, context_tokens: int, draft_tokens: int | None = None) -> int | None:
        """Return the smallest batch size at which drafting gives no speed-up; None if it is above `largest_batch`."""
        largest = max(self.largest_batch(context_tokens), 1)
        return first_failing(
            lambda batch: self.round_of(batch, context_tokens, draft_tokens).speedup > 1, largest
        )

    def memory(self) -> DraftMemory:
        """Return the draft's weights and KV, and the KV capacity that remains. Raises DoesNotFit if none remains."""
        plan = self.memory_plan()
        if plan.kv_cache_bytes <= 0:
            plan.require_fit()
        return DraftMemory(
            draft_weights_bytes=self.drafter.weights_bytes,
            draft_kv_bytes_per_token=self.drafter.kv_bytes_per_token,
            kv_capacity_tokens_before=self.target.memory.kv_capacity_tokens,
            kv_capacity_tokens_after=plan.kv_capacity_tokens,
        )

    def memory_plan(self) -> MemoryPlan:
        """Return the target's memory plan including the draft, as the engine counts it.

        The draft's KV is stored in the target's blocks, which become larger. For example, vLLM 0.28 with MiniMax-M3 and
        EAGLE3 has 22,912 bytes per token and GPU, and 256 of them belong to the draft.
        """
        drafter, plan = self.drafter, self.target.memory
        spare = 0  # unused GPU bytes if the KV cache size is set explicitly
        if self.target.pool.kv_cache_memory_bytes is not None:
            spare = max(plan.total_bytes - plan.needed_bytes - plan.kv_cache_bytes, 0)
        left = plan.kv_cache_bytes - round(max(drafter.gpu_weights_bytes - spare, 0))
        plan = replace(plan, weights_bytes=plan.weights_bytes + round(drafter.gpu_weights_bytes))
        if left <= 0:
            return self._plan_without_kv(plan, left)
        layout = plan.layout
        added = drafter.gpu_kv_bytes_per_token * layout.block_tokens / max(layout.groups, 1)
        grown = replace(layout, block_bytes=math.ceil(layout.block_bytes + added))
        blocks = plan.kv_capacity_blocks
        if self.target.pool.num_gpu_blocks_override is None:  # overridden blocks hold the draft's KV too
            room = plan.kv_cache_bytes / layout.block_bytes
            whole = room if math.floor(room) == blocks else blocks
            blocks = math.floor(whole * left / plan.kv_cache_bytes * layout.block_bytes / grown.block_bytes)
        needed, length = plan.blocks_of_longest_request, self.target.max_model_len
        after = replace(
            plan,
            kv_cache_bytes=left,
            kv_bytes_per_token=plan.kv_bytes_per_token + round(drafter.kv_bytes_per_token),
            kv_capacity_blocks=blocks,
            max_concurrency=max_concurrency(grown, plan.states, blocks, length, needed),
            layout=grown,
        )
        longest = grown.longest_request(max(after.usable_blocks, 0), plan.max_context_tokens)
        if not plan.fits or needed <= after.usable_blocks:
            return replace(after, max_context_tokens=longest)
        reason = (
            f"the draft leaves {after.kv_capacity_tokens:,} tokens of KV cache, less than one request of "
            f"--max-model-len {length}: set it to at most {longest}, or leave out the draft"
        )
        return replace(after, max_context_tokens=longest, fits=False, reason=reason)

    def _plan_without_kv(self, plan: MemoryPlan, kv_cache_bytes: int) -> MemoryPlan:
        """Return `plan` without a KV cache, with the reason that the draft's weights leave no memory for it."""
        reason = (
            f"the draft's weights of {self.drafter.gpu_weights_bytes / 2**30:.1f} GiB per GPU exceed the "
            f"{max(plan.kv_cache_bytes, 0) / 2**30:.1f} GiB that remain for the KV cache on "
            f"{self.target.pool.tensor_parallel_size} x {self.target.profile.name}; {self.target.memory_advice}"
        )
        return replace(
            plan,
            kv_cache_bytes=kv_cache_bytes,
            kv_capacity_blocks=0,
            max_context_tokens=0,
            max_concurrency=0.0,
            fits=False,
            reason=plan.reason or reason,
        )

    def ttft_s(self, input_len: int) -> tuple[float, float]:
        """Return two TTFTs in seconds of a prompt that does not queue: without and with the draft model's prefill."""
        limits = self.target.limits_from()
        target = limits.latency_s(input_len) + prefill_seconds(self.target.step_model, input_len, limits)
        return target, target + self.drafter.prefill_s(input_len)


def memory_with_draft(resolved: ResolvedPool) -> MemoryPlan:
    """Return the pool's memory including its draft. Raises InvalidInput if the method does not suit the model."""
    if resolved.pool.speculator is None or not resolved.memory_without_advice.fits:
        return resolved.memory
    return Speculation(resolved, pool_speculator(resolved.pool)).memory_plan()


class DraftedSteps:
    """Step times of a target with speculative decoding; steps that verify drafts include the time to draft them.

    `shape.draft_tokens` is the number of drafts to verify, in a chain or a tree; each is one row of the step. The
    argument `draft_tokens` is the draft depth.
    """

    def __init__(self, speculation: Speculation, draft_tokens: int) -> None:
        self._drafter = speculation.drafter
        self._draft_tokens = draft_tokens
        self._nodes = speculation.speculator.verified_tokens(draft_tokens)
        self._steps = speculation.verification_model(self._nodes)
        self._round_tokens = speculation.speculator.tokens_per_round(draft_tokens, self._nodes)

    @property
    def host(self) -> HostTime:
        return self._steps.host

    def step_ps(self, shape: StepShape) -> int:
        step = self._steps.step_ps(shape)
        if not self._drafts(shape):
            return step
        return step + picoseconds(self._drafter.seconds(self._work(shape)))

    def joint_ps(self, shapes: Sequence[StepShape]) -> int:
        """Return the time, in picoseconds, of a step of data-parallel ranks that run steps and drafts in lockstep."""
        step = self._steps.joint_ps(shapes)
        if not any(map(self._drafts, shapes)):
            return step
        return step + picoseconds(self._drafter.joint_seconds(list(map(self._work, shapes))))

    def step_cost(self, shape: StepShape) -> StepCost:
        """Return the step's cost table, including the operators of drafting."""
        cost = self._steps.step_cost(shape)
        if not self._drafts(shape):
            return cost
        return StepCost(operators=(*cost.operators, *self._drafter.costs(self._work(shape))))

    def _drafts(self, shape: StepShape) -> bool:
        """Return whether the step verifies draft tokens, or has prompts that the drafter must also compute."""
        return bool(shape.draft_tokens or (shape.prefill_tokens and self._drafter.reads_prompts))

    def _work(self, shape: StepShape) -> DraftWork:
        rows, context = 0, 1
        if shape.draft_tokens:
            rows = shape.decode_sequences
            context = max(1, shape.decode_context_tokens // rows)
        return DraftWork(rows, context, self._draft_tokens, self._nodes, self._round_tokens, shape)

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:  # noqa: ARG002
        return None

    def step_data(self) -> DraftedData | None:
        """Return these step times as data for the compiled simulator; None for drafters that it does not support."""
        drafter = self._drafter
        if type(drafter) is ModelDrafter:
            return DraftedData(
                inner=self._steps,
                draft=drafter.steps,
                draft_window_tokens=drafter.model.window_tokens,
                draft_steps=self._draft_tokens,
                first_drafts=self._round_tokens - 1,
                level_drafts=self._nodes / self._draft_tokens - 1,
            )
        if type(drafter) is LookupDrafter or type(drafter) is HeadsDrafter:
            return DraftedData(inner=self._steps, batch_seconds=self._batch_seconds)
        return None

    def _batch_seconds(self, sequences: int) -> float:
        """Return the seconds to draft for `sequences` requests with a drafter that ignores the context."""
        work = DraftWork(sequences, 1, self._draft_tokens, self._nodes, self._round_tokens)
        return self._drafter.seconds(work)
