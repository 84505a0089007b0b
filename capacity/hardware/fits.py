"""Where a fitted number comes from."""

from typing import Literal

from capacity.base.spec import Spec

Basis = Literal["datasheet", "measured", "fitted", "assumed"]


class Fit(Spec):
    """Where a coefficient set comes from, and how far off it was on groups that it was not fitted to."""

    basis: Basis
    source: str
    date: str
    rows: int = 0
    held_out_by: str | None = None  # what a held-out group is: shapes, a GPU, an engine
    median_error: float | None = None  # absolute relative error, held out
    p90_error: float | None = None
