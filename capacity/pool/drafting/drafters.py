"""Cost of drafting for each kind of speculator: a draft model, a drafting layer, heads, or an n-gram lookup."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from capacity.base.errors import InvalidInput
from capacity.deployment.engines import EngineSpec
from capacity.model.feed_forward import DenseFeedForward, MoEFeedForward, NoFeedForward
from capacity.model.layers import LayerGroup
from capacity.model.quantization import scheme_for, weight_bytes
from capacity.model.spec import ModelSpec
from capacity.pool.drafting.speculators import Speculator
from capacity.pool.resolve import ResolvedPool
from capacity.step import Bound, OpCost, StepCost, StepShape, decode_shape
from capacity.step.closed_form import EMPTY_SHAPE, EngineLimits, prefill_steps
from capacity.step.model import StepModel


class DraftWork(NamedTuple):
    """Input of a drafter: the batch of one drafting round.

    `draft_tokens`: draft depth. `nodes`: number of draft tokens per request; in a tree, more than the depth.
    `last_round_tokens`: mean tokens per request that the previous round yielded. `target_step`: the target's step; a
    drafter with its own KV cache also computes the prompts of that step.
    """

    batch_size: int
    context_tokens: int
    draft_tokens: int
    nodes: int
    last_round_tokens: float
    target_step: StepShape = EMPTY_SHAPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Base class of drafters: time that drafting adds to the target's steps, and memory on the target's GPUs.

    `gpu_weights_bytes` and `gpu_kv_bytes_per_token` apply to each GPU; they include KV heads that are replicated
    because there are more GPUs than heads. `reads_prompts`: whether the drafter also computes every prompt.
    """

    weights_bytes: float = 0.0
    gpu_weights_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0
    gpu_kv_bytes_per_token: float = 0.0
    reads_prompts: ClassVar[bool] = False

    def seconds(self, work: DraftWork) -> float:
        """Return the seconds to draft the tokens that one step of the target model verifies."""
        raise NotImplementedError

    def joint_seconds(self, works: Sequence[DraftWork]) -> float:
        """Return the drafting seconds of one round of data-parallel ranks in lockstep; `works`: each rank's batch."""
        return max(map(self.seconds, works))

    def costs(self, work: DraftWork) -> tuple[OpCost, ...]:
        """Return the drafting time of one drafting round, split into operators for the step's cost table."""
        return (OpCost(name="drafting", flops=0.0, bytes=0.0, seconds=self.seconds(work), bound="host"),)

    def prefill_s(self, input_len: int) -> float:  # noqa: ARG002
        """Return the seconds that drafting adds to the target's prefill of a prompt."""
        return 0.0

    def prompts_s(self, shape: StepShape) -> float:  # noqa: ARG002
        """Return the seconds that drafting adds for the prompt tokens of one step."""
        return 0.0


def sum_by_bound(tables: Sequence[tuple[StepCost, int]]) -> tuple[OpCost, ...]:
    """Return one operator for each bound (such as memory): the sum of all operators that have this bound.

    Each cost table is given with the number of its repetitions.
    """
    rows: dict[Bound, OpCost] = {}
    for table, times in tables:
        for op in table.operators if times else ():
            row = rows.get(op.bound) or OpCost(
                name=f"drafting, {op.bound}", flops=0.0, bytes=0.0, seconds=0.0, bound=op.bound
            )
            rows[op.bound] = replace(
                row,
                flops=row.flops + times * op.flops,
                bytes=row.bytes + times * op.bytes,
                seconds=row.seconds + times * op.seconds,
            )
    return tuple(rows.values())


def draft_step_engine(engine: EngineSpec) -> EngineSpec:
    """Return the engine release with the CPU times per step that apply to the steps of a draft model.

    Draft steps process no output. Their base host time is 0 if the engine schedules asynchronously.
    """
    base_s = 0.0 if engine.host_overlapped else engine.host_base_s
    return engine.model_copy(update={"host_base_s": base_s, "host_per_sequence_s": 0.0})


VOCABULARY_SLACK = 0.01  # padding changes a tokenizer's size: 151,936 and 152,064 in Qwen2.5
WITHOUT_PROMPTS = StepShape._fields.index("decode_sequences")  # first field that does not describe prompts
# n-gram search on the CPU for a round: assumed, 2026-11-21; prompts of a few thousand tokens
LOOKUP_S = 50e-6


def make_drafter(target: ResolvedPool, speculator: Speculator, draft: ResolvedPool | None) -> Drafter:
    """Return the drafter for a target. Raises InvalidInput if the drafting method does not suit the model."""
    if (draft is not None) != (speculator.kind == "draft-model"):
        wanted = "needs a draft model: add --draft MODEL" if draft is None else "uses no --draft: remove it"
        raise InvalidInput(f"speculation by {speculator.name} {wanted}")
    match speculator.kind:
        case "draft-model":
            assert draft is not None
            return _model_drafter(draft, target)
        case "self-draft":
            scheme = scheme_for(target.model, speculator.draft_quantization)
            return _model_drafter(replace(target, scheme=scheme), target)
        case "lookup" | "lookahead":
            return LookupDrafter()
        case "layers":
            return make_layers_drafter(target, speculator)
        case "heads":  # heads stay at 16 bit
            hidden, vocabulary = target.model.hidden_size, target.model.vocab_size
            size = 2.0 * speculator.draft_tokens * (hidden * (hidden + vocabulary))
            gpu_size = size / target.pool.tensor_parallel_size
            return HeadsDrafter(target=target, weights_bytes=size, gpu_weights_bytes=gpu_size)
        case "layer":
            return _layer_drafter(target, speculator)


def prefill_seconds(steps: StepModel, input_len: int, limits: EngineLimits) -> float:
    """Return the seconds to prefill one prompt alone. Raises InvalidInput for an empty prompt."""
    if input_len < 1:
        raise InvalidInput(f"a prompt of {input_len} tokens: must be at least 1")
    return sum(steps.step_seconds(shape) for shape in prefill_steps(1, input_len, limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDrafter(Drafter):
    """Drafter that generates one token after another with a draft model, or a drafting layer treated as a model."""

    model: ModelSpec
    steps: StepModel
    limits: EngineLimits  # of the target; they also limit the draft's prefill
    reads_prompts = True

    def seconds(self, work: DraftWork) -> float:
        first, level = self._shapes(work)
        return self.steps.step_seconds(first) + (work.draft_tokens - 1) * self.steps.step_seconds(level)

    def joint_seconds(self, works: Sequence[DraftWork]) -> float:
        firsts, levels = zip(*map(self._shapes, works), strict=True)
        more = (works[0].draft_tokens - 1) * self.steps.joint_seconds(levels)
        return self.steps.joint_seconds(firsts) + more

    def costs(self, work: DraftWork) -> tuple[OpCost, ...]:
        first, level = (self.steps.step_cost(shape) for shape in self._shapes(work))
        return sum_by_bound([(first, 1), (level, work.draft_tokens - 1)])

    def _shapes(self, work: DraftWork) -> tuple[StepShape, StepShape]:
        """Return the shapes of the first draft step and of each later one; the steps run in sequence.

        The first step also processes the prompts of the target's step, and all tokens but one of the last round.
        Each later step processes one level of the tree, nodes/depth wide on average: 1 for a chain.
        """
        batch = work.batch_size
        plain = decode_shape(batch, work.context_tokens, window_tokens=self.model.window_tokens)
        first = work.target_step._replace(
            decode_sequences=batch,
            draft_tokens=round(batch * (work.last_round_tokens - 1)),
            decode_context_tokens=plain.decode_context_tokens,
            decode_window_context_tokens=plain.decode_window_context_tokens,
            encoder_tokens=0,
            encoder_pairs=0,
            audio_tokens=0,
            audio_pairs=0,
        )
        return first, plain._replace(draft_tokens=round(batch * (work.nodes / work.draft_tokens - 1)))

    def prefill_s(self, input_len: int) -> float:
        return prefill_seconds(self.steps, input_len, self.limits)

    def prompts_s(self, shape: StepShape) -> float:
        none: dict[str, int] = dict.fromkeys(StepShape._fields[WITHOUT_PROMPTS:], 0)
        return self.steps.step_seconds(shape._replace(**none))


class LookupDrafter(Drafter):
    """Drafter that finds n-grams on the CPU, in the prompt or in tokens that the target computed earlier."""

    def seconds(self, work: DraftWork) -> float:  # noqa: ARG002
        return LOOKUP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsDrafter(Drafter):
    """Drafter with k heads in parallel, each with a square layer and its own LM head (Medusa).

    The cost is scaled from the target's LM head: for the requests of the batch, each drafting head moves (1 +
    hidden/vocabulary) times the LM head's bytes.
    """

    target: ResolvedPool

    def seconds(self, work: DraftWork) -> float:
        return sum(op.seconds for op in self.costs(work))

    def costs(self, work: DraftWork) -> tuple[OpCost, ...]:
        model = self.target.model
        step = self.target.step_model.step_cost(decode_shape(work.batch_size, work.context_tokens))
        heads = work.draft_tokens * (1.0 + model.hidden_size / model.vocab_size)
        return tuple(
            replace(
                op,
                name="drafting",
                flops=heads * op.flops,
                bytes=heads * op.bytes,
                seconds=heads * op.seconds,
            )
            for op in step.operators
            if op.name in ("lm_head", "sampling")
        )


def _model_drafter(draft: ResolvedPool, target: ResolvedPool) -> ModelDrafter:
    if abs(draft.model.vocab_size / target.model.vocab_size - 1) > VOCABULARY_SLACK:
        raise InvalidInput(
            f"{draft.model.name} has a vocabulary of {draft.model.vocab_size} tokens, {target.model.name} has "
            f"{target.model.vocab_size}: a draft model must share the target's vocabulary"
        )
    ranks, weights = draft.pool.tensor_parallel_size, weight_bytes(draft.model, draft.scheme)
    return ModelDrafter(
        model=draft.model,
        steps=replace(draft, engine=draft_step_engine(draft.engine)).step_model,
        limits=target.limits,
        weights_bytes=weights,
        gpu_weights_bytes=weights / ranks,
        kv_bytes_per_token=draft.model.kv_bytes_per_token(draft.kv_cache_dtype),
        gpu_kv_bytes_per_token=_gpu_kv_bytes(draft.model, draft.kv_cache_dtype, ranks),
    )


def _gpu_kv_bytes(model: ModelSpec, kv_cache_dtype: str, ranks: int) -> float:
    """Return the KV bytes of one token on each of `ranks` tensor-parallel GPUs, which store whole KV heads."""
    return sum(
        group.bytes_per_token * math.ceil(group.num_kv_heads / ranks) / group.num_kv_heads
        for group in model.kv_cache_groups(kv_cache_dtype)
        if group.num_kv_heads
    )


def _layer_drafter(target: ResolvedPool, speculator: Speculator) -> ModelDrafter:
    """Return the drafter of EAGLE or MTP: one decoder layer on the target's hidden states.

    The layer shares the target's embedding and LM head, and runs on the tensor-parallel GPUs of one pipeline stage.
    Ranks that share the target's experts also share the experts of this layer.
    """
    model, ranks = layer_model(target.model, speculator), target.pool.tensor_parallel_size
    one_stage = target.pool.model_copy(update={"pipeline_parallel_size": 1, "max_loras": None})
    shared = {"embedding"} if speculator.draft_vocab_size else {"embedding", "lm_head"}
    sizes = [
        (target.scheme.part_bytes(part), target.lockstep_ranks if part.kind == "experts" else 1)
        for part in model.parameter_parts()
        if part.kind not in shared
    ]
    return ModelDrafter(
        model=model,
        steps=replace(
            target, model=model, pool=one_stage, engine=draft_step_engine(target.engine)
        ).step_model,
        limits=target.limits,
        weights_bytes=sum(size for size, _ in sizes),
        gpu_weights_bytes=sum(size / (ranks * sharing) for size, sharing in sizes),
        kv_bytes_per_token=model.kv_bytes_per_token(target.kv_cache_dtype),
        gpu_kv_bytes_per_token=_gpu_kv_bytes(model, target.kv_cache_dtype, ranks)
        / target.pool.decode_context_parallel_size,
    )


def layer_model(model: ModelSpec, speculator: Speculator) -> ModelSpec:
    """Return the drafting layer as a model: the checkpoint's MTP layer, or one dense decoder layer of the model's
    size.

    The projection of `fused_inputs` hidden states to one is counted as additional feed-forward width with the same
    parameters, FLOPs and bytes. Raises InvalidInput if the model has no MTP layer or no attention layer.
    """
    if speculator.name == "mtp":
        if model.mtp is None:
            raise InvalidInput(
                f"{model.name} has no multi-token-prediction layer; use eagle3 or ngram to draft"
            )
        group = replace(model.mtp, layers=model.mtp.layers[:1])
    else:
        like = next(iter(model.softmax_groups), None)
        if like is None:
            raise InvalidInput(
                f"{model.name} has no softmax attention layer, so no drafting layer can be built for it"
            )
        group = LayerGroup(layers=(0,), mixer=like.mixer, feed_forward=_dense_width(model, like))
    extra = round(speculator.fused_inputs * model.hidden_size / 3)
    feed_forward = group.feed_forward
    widened: DenseFeedForward | MoEFeedForward
    if isinstance(feed_forward, MoEFeedForward):
        widened = replace(
            feed_forward, shared_intermediate_size=feed_forward.shared_intermediate_size + extra
        )
    else:
        own = 0 if isinstance(feed_forward, NoFeedForward) else feed_forward.intermediate_size
        widened = DenseFeedForward(intermediate_size=own + extra)
    return replace(
        model.without_towers,
        name=f"{model.name} {speculator.name} layer",
        layer_groups=(replace(group, layers=(0,), feed_forward=widened),),
        vocab_size=speculator.draft_vocab_size or model.vocab_size,
        tie_word_embeddings=False,
        mtp=None,
    )


def _dense_width(model: ModelSpec, group: LayerGroup) -> DenseFeedForward:
    """Return the dense feed-forward of a drafting layer, as wide as the model's feed-forward.

    For an MoE model, it is as wide as all experts that a token uses together. This is an assumption.
    """
    dense = (g.feed_forward for g in model.layer_groups if isinstance(g.feed_forward, DenseFeedForward))
    own = next(dense, None)
    if own is not None:
        return own
    routed = (
        g.feed_forward for g in (group, *model.layer_groups) if isinstance(g.feed_forward, MoEFeedForward)
    )
    part = next(routed, None)
    if part is None:
        return DenseFeedForward(intermediate_size=4 * model.hidden_size)
    return DenseFeedForward(
        intermediate_size=part.experts_per_token * part.expert_intermediate_size
        + part.shared_intermediate_size
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersDrafter(Drafter):
    """Drafter that runs the target's first layers and LM head (LayerSkip, Draft & Verify), without more weights or KV.

    Drafting already stores the KV of these layers for each draft token. Verification could therefore skip the first
    layers. This is not modelled; LayerSkip's own code does it and saves at most these layers' share of verification.
    """

    model: ModelSpec
    steps: StepModel

    def seconds(self, work: DraftWork) -> float:
        return work.draft_tokens * self.steps.step_seconds(self._shape(work))

    def joint_seconds(self, works: Sequence[DraftWork]) -> float:
        return works[0].draft_tokens * self.steps.joint_seconds(list(map(self._shape, works)))

    def costs(self, work: DraftWork) -> tuple[OpCost, ...]:
        return sum_by_bound([(self.steps.step_cost(self._shape(work)), work.draft_tokens)])

    def _shape(self, work: DraftWork) -> StepShape:
        return decode_shape(work.batch_size, work.context_tokens, window_tokens=self.model.window_tokens)


def make_layers_drafter(target: ResolvedPool, speculator: Speculator) -> LayersDrafter:
    """Return the drafter that runs the target's first layers. Raises InvalidInput if these are all its layers."""
    model, said = target.model, target.pool.draft_layers
    drafting = max(round(model.num_layers * speculator.layers_share), 1) if said is None else said
    if drafting >= model.num_layers:
        raise InvalidInput(
            f"--draft-layers {drafting}: must be below the {model.num_layers} layers of {model.name}"
        )
    cut = first_layers(model, drafting)
    one_stage = target.pool.model_copy(update={"pipeline_parallel_size": 1, "n_gpu_layers": None})
    return LayersDrafter(
        model=cut,
        steps=replace(target, model=cut, pool=one_stage, engine=draft_step_engine(target.engine)).step_model,
    )


def first_layers(model: ModelSpec, count: int) -> ModelSpec:
    """Return a model that consists of the model's first `count` layers and its LM head."""
    groups = (
        replace(group, layers=tuple(layer for layer in group.layers if layer < count))
        for group in model.layer_groups
    )
    return replace(
        model,
        name=f"{model.name}, {count} of {model.num_layers} layers",
        layer_groups=tuple(group for group in groups if group.layers),
        mtp=None,
    )
