"""Serving techniques added one after another, from none to all; each deployment is simulated on the same requests.

Each row adds one technique and has three improvement factors: `own` (this technique in the stack), `cumulative` (all
techniques so far) and `alone` (on a deployment with only the techniques that it requires). If the product of all
`alone` factors differs from the cumulative factor, the bottlenecks before and after each step explain why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.flags import with_flags
from capacity.base.keywords import document_options
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic
from capacity.hardware.pricing import price_cautions
from capacity.model import ModelSpec
from capacity.planning.variations.outcome import ComparedDeployment, Progress, report_each
from capacity.planning.variations.technique_stack import (
    Factors,
    Figures,
    StackStep,
    TechniqueStack,
    factors_between,
    product_of,
)
from capacity.planning.variations.technique_steps import naive_fields, ordered_techniques, techniques_by_name
from capacity.workload import Workload
from capacity.workload.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(AnswerRecord):
    """Effect of each serving technique on one deployment, on the same requests.

    `naive` and `naive_flags` describe the deployment without techniques, `steps` the techniques in order.
    `product_of_single` is the product of the factors of each technique alone; if techniques do not affect each other,
    it equals `together`, the factors of all techniques.
    """

    SCHEMA: ClassVar[str] = "capacity/stack/v1"
    ROWS: ClassVar[str] = "steps"

    deployment: str
    workload: str
    busiest_window: Window | None  # the compared window of longer traffic; None: all requests
    naive_flags: str
    naive: Figures
    steps: tuple[StackStep, ...]
    together: Factors
    product_of_single: Factors
    observations: tuple[str, ...]

    @property
    def taken(self) -> list[StackStep]:
        """Return the steps whose technique was added, in order."""
        return [step for step in self.steps if step.figures is not None]

    @property
    def last_figures(self) -> Figures:
        return [self.naive, *(step.figures for step in self.steps if step.figures is not None)][-1]

    @property
    def last_flags(self) -> str:
        return [self.naive_flags, *(step.flags for step in self.taken)][-1]


@document_options(Pool, Traffic, Cost)
@validate_arguments
@with_flags
def stack(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    order: Sequence[str] | None = None,
    slo_window: str = "15m",
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Stack:
    """Add techniques one after another, from none to all, each simulated on the same requests.

    `order`: names from `technique_steps.ORDER` in the order to add them; others are left out. None: all, in that
    order. `progress(done, total)` is called after each technique. Raises DoesNotFit, UnknownName or InvalidInput.
    """
    names = ordered_techniques(order)
    as_it_is = ComparedDeployment.read(model, options, "stack", slo_window, workload, profiles, download)
    resolved, requests, file = as_it_is.resolved, as_it_is.requests, as_it_is.file
    if resolved.model.task == "embed":
        raise InvalidInput(
            f"{resolved.model.name} generates no tokens, so the stack does not apply: use `capacity advise`"
        )
    if as_it_is.busiest_window is not None:
        requests = replace(requests, asked_per_s=None)  # judge overload by the window's own rate
    techniques = techniques_by_name(resolved, requests)
    ladder = make_from(
        TechniqueStack,
        as_it_is,
        file,
        model=resolved.model if isinstance(file.model, ModelSpec) else file.model,
        workload=requests,
        techniques=techniques,
        naive=naive_fields(resolved, techniques, requests),
    )
    beginning = ladder.fewest_that_fit(names)
    steps = list(report_each(ladder.evaluate_steps(names, beginning), len(names), progress))
    naive = ladder.simulate_with(beginning).figures
    cumulative = [step.cumulative for step in steps if step.cumulative is not None]
    return make_from(
        Stack,
        as_it_is,
        naive_flags=ladder.simulate_with(beginning).flags,
        naive=naive,
        steps=tuple(steps),
        together=[factors_between(naive, naive), *cumulative][-1],
        product_of_single=product_of(step.alone for step in steps if step.alone is not None),
        observations=(
            *requests.notices,
            *resolved.notes,
            *ladder.observations(beginning, steps),
            *price_cautions(as_it_is.price),
        ),
    )
