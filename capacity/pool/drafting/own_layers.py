"""A target that drafts with its own first layers (LayerSkip, Draft & Verify)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.base.errors import InvalidInput
from capacity.model.spec import ModelSpec
from capacity.pool.drafting.drafter import Drafter, DraftWork, by_bound, in_a_round
from capacity.pool.drafting.speculators import Speculator
from capacity.pool.resolve import ResolvedPool
from capacity.step import OpCost, StepShape, decode_shape
from capacity.step.model import StepModel


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersDrafter(Drafter):
    """The target's own first layers and its LM head (LayerSkip, Draft & Verify): no weights and no KV of their own.

    What they computed of a draft is in the target's KV already; that verification could begin after them is left
    out (LayerSkip's own code does so, which saves at most their share of it).
    """

    model: ModelSpec
    steps: StepModel

    def seconds(self, work: DraftWork) -> float:
        return work.draft_tokens * self.steps.step_seconds(self._shape(work))

    def joint_seconds(self, works: Sequence[DraftWork]) -> float:
        return works[0].draft_tokens * self.steps.joint_seconds(list(map(self._shape, works)))

    def costs(self, work: DraftWork) -> tuple[OpCost, ...]:
        """A row for each bound."""
        return by_bound([(self.steps.step_cost(self._shape(work)), work.draft_tokens)])

    def _shape(self, work: DraftWork) -> StepShape:
        return decode_shape(work.batch_size, work.context_tokens, window_tokens=self.model.window_tokens)


def layers_drafter(target: ResolvedPool, speculator: Speculator) -> LayersDrafter:
    """Raises InvalidInput where no layer is left to verify with."""
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
        steps=replace(target, model=cut, pool=one_stage, engine=in_a_round(target.engine)).step_model,
    )


def first_layers(model: ModelSpec, count: int) -> ModelSpec:
    """The model that ends after its first `count` layers, with its own LM head."""
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
