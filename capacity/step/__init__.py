"""The waist: what a step of an engine is, and how long it takes. Every time in this package comes from here.

In: the shape of a step (`StepShape`: new tokens, contexts, pairs attended), a model, a GPU, an engine's constants.
Out: `StepCost`, a tuple of operators with FLOPs, bytes, seconds and what bounds each; or the seconds alone.
`shape` is what everything else may know of a step; `model` builds the operators of a model (`layers`, one way of
attending or feeding forward each, by the formulas of `operators` and `collectives`) and times them; `closed_form`
makes a whole request's TTFT and TPOT of them. Start reading at `shape`, then `model`.
"""

from capacity.step.shape import (
    PS_PER_S,
    AffineStepTimes,
    Bound,
    DecodePiece,
    FunctionStepTimes,
    JointStepTimes,
    OpCost,
    SlowestRank,
    StepCost,
    StepShape,
    StepTimes,
    decode_shape,
    picoseconds,
    prefill_shape,
    windowed_pairs,
)

__all__ = [
    "PS_PER_S",
    "AffineStepTimes",
    "Bound",
    "DecodePiece",
    "FunctionStepTimes",
    "JointStepTimes",
    "OpCost",
    "SlowestRank",
    "StepCost",
    "StepShape",
    "StepTimes",
    "decode_shape",
    "picoseconds",
    "prefill_shape",
    "windowed_pairs",
]
