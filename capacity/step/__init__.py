"""The step of an engine: its shape, and the time it takes. Every time in this package comes from here.

Input: the shape of a step (`StepShape`: new tokens, contexts, attended pairs) and a `StepSetting` (model, GPU, engine,
ranks). Output: `StepCost`, a tuple of operators with FLOPs, bytes, seconds and bounds, or the seconds alone. `shape`
has the records that other packages use; `setting` has the inputs of a step model. `layers` builds the operators (one
file a mixer), and `model` times them by the formulas of `operators` and `collectives`. `closed_form` computes TTFT and
TPOT of a whole request from steps; `export` writes step times as data for compiled engines. Start with `shape`, then
`model`.
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
