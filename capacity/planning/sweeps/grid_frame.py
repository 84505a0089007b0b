"""`grid`: a verb at every combination of values, as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, get_args

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.keywords import document_options
from capacity.base.progress import progress_bar
from capacity.deployment import Cost, Pool, Service, Traffic, build
from capacity.planning.sweeps.sweep import sweep
from capacity.planning.sweeps.sweep_spec import SweepSpec

if TYPE_CHECKING:
    from pandas import DataFrame


@document_options(Pool, Traffic, Service, Cost)
@validate_arguments
def grid(
    verb: str,
    vary: Mapping[str, Any],
    *,
    model: str | Path | None = None,
    goodput: Sequence[str] = (),
    workers: int = 1,
    **fixed: Any,
) -> DataFrame:
    """Return the answers of `verb` (fit, estimate or simulate) at every combination of the values in `vary`.

    `vary` has a list of values for each varied keyword of the verb, or for `model`; `fixed` are keywords of every
    combination. The DataFrame has the columns of `sweep_results`, one row per combination: `option.KEYWORD`, `status`,
    `reason` (of a failure), and the numbers of the answer. On a terminal, stderr shows a progress bar after a second.
    `workers`: parallel processes; a script with several must guard its own code with `if __name__ == "__main__"`.
    Raises InvalidInput for invalid keywords, or if every combination fails.
    """
    verbs = get_args(SweepSpec.model_fields["question"].annotation)
    if verb not in verbs:
        raise UnknownName("verb that a grid evaluates", verb, verbs)
    for name, values in vary.items():
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise InvalidInput(f"vary has {values!r} for {name}: it must be a list of values")
    fields = {
        "schema": "capacity/sweep/v1",
        "question": verb,
        "goodput": tuple(goodput),
        "fixed": {**({} if model is None else {"model": str(model)}), **fixed},
        "vary": {
            name: each.tolist() if hasattr(each, "tolist") else tuple(each) for name, each in vary.items()
        },
    }
    with TemporaryDirectory() as folder, progress_bar("points") as progress:
        store = Path(folder) / "points.sqlite"
        swept = sweep(build(SweepSpec, fields), store, workers=workers, progress=progress)
    if swept.failed == swept.points:
        raise InvalidInput(f"no combination of values could be computed: {(swept.first_failure or '')[:500]}")
    return swept.to_frame()
