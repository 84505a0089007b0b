"""The waist: what a step of an engine is, and how long it takes. Every time in this package comes from here.

In: the shape of a step (`StepShape`: new tokens, contexts, pairs attended) and a `StepSetting` (model, GPU, engine,
ranks). Out: `StepCost`, a tuple of operators with FLOPs, bytes, seconds and what bounds each; or the seconds alone.
`shape` is what everything else may know of a step; `setting` what a step model is made of; `model` times the
operators that `layers` makes of it (one file a mixer) by the formulas of `operators` and `collectives`;
`closed_form` makes a whole request's TTFT and TPOT of them; `export` turns them into data for compiled engines.
Start reading at `shape`, then `model`.
"""

from capacity.step.shape import (
    PS_PER_S,
    TEXT_FIELDS,
    AffineStepTimes,
    Bound,
    DecodePiece,
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
