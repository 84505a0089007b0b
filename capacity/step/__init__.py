"""One step of an engine: its shape, and the time it takes. All times in the package `capacity` are computed from
steps.

Input: the shape of a step (`StepShape`: new tokens, contexts, query-key pairs) and a `StepSetting` (model, GPU, engine,
ranks). Output: `StepCost`, a tuple of operators with FLOPs, bytes, seconds and bounds, or the seconds alone. `shape`
has the records that other packages use; `setting` has the inputs of a step model. `layers` builds the operators (one
file for each kind of token mixer), and `model` computes their times with the formulas of `operators` and `collectives`.
`closed_form` computes TTFT and TPOT of a whole request from steps; `export` writes step times as data for the compiled
simulator. Start with `shape`, then `model`.
"""

from capacity.step.shape import (
    PS_PER_S,
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
