"""Use of a GPU by an engine at a load: bytes and FLOPs per second, and the part of the time in which kernels run.

It counts the same steps as the module `time_shares`, with their cost tables. `capacity/hardware/drawn_power.py`
computes the power that a GPU draws at this use.
"""

import math
from collections.abc import Iterable

from capacity.hardware.drawn_power import GpuUse
from capacity.step.closed_form import EMPTY_SHAPE, EngineLimits, StepModelLike, prefill_steps
from capacity.step.shape import Bound, StepCost, StepShape
from capacity.step.time_shares import EngineLoad, mean_decode_shape, request_seconds

GAPS: tuple[Bound, ...] = ("launch", "host")  # the GPU waits
LEAST_KERNEL_FRACTION = 0.05

StepRates = Iterable[tuple[float, StepCost]]
"""Pairs of (steps per second, cost of one step); decode steps that mixed steps replace have a negative rate."""


def gpu_use(steps: StepModelLike, limits: EngineLimits, load: EngineLoad) -> GpuUse:
    """Return the mean use of each GPU of an engine at `load`; an infinite rate means full load.

    A request adds the cost of its prompt to the steps in which it is prefilled, and its share of the decode steps at
    the mean batch size. Synchronised data-parallel ranks share the load equally.
    """
    each = request_seconds(steps, limits, load)
    rate = min(load.requests_per_s, 1 / each.total_s)
    fewer = math.floor(each.decode_batch)
    more_share = each.decode_batch - fewer
    batches = [(1 - more_share, mean_decode_shape(fewer, limits, load))]
    if more_share:
        batches.append((more_share, mean_decode_shape(fewer + 1, limits, load)))
    rates: list[tuple[float, StepCost]] = []
    for share, shape in batches:
        rates += prompt_rates(steps, limits, load, decode=shape, prompts_per_s=share * rate / load.ranks)
    if each.decode_s:
        costs = [(share, steps.step_cost(shape)) for share, shape in batches]
        step_s = math.fsum(share * cost.seconds for share, cost in costs)
        rates += [(share * rate * each.decode_s / step_s, cost) for share, cost in costs]
    return use_of_steps(rates, duty=rate * each.total_s)


def prompt_rates(
    steps: StepModelLike,
    limits: EngineLimits,
    load: EngineLoad,
    *,
    decode: StepShape = EMPTY_SHAPE,
    prompts_per_s: float,
) -> StepRates:
    """Yield the mixed steps of prompts on one rank and, with negative rates, the decode steps that they replace."""
    decode_part = decode if limits.mixes_prefill_with_decode else EMPTY_SHAPE
    computed = prompts_per_s * (1 - load.hit_fraction)
    for shape in prefill_steps(1, load.input_len, limits, decode=decode_part):
        yield computed, steps.step_cost(shape)
        yield -computed, steps.step_cost(decode_part)


def use_of_steps(rates: StepRates, *, duty: float) -> GpuUse:
    """Return the GPU's use by steps at these rates; `duty` is the fraction of time in which steps run."""
    moved = computed = waited = 0.0
    for per_s, cost in rates:
        moved += per_s * cost.bytes
        computed += per_s * cost.flops
        waited += per_s * math.fsum(op.seconds for op in cost.operators if op.bound in GAPS)
    kernels = 1 - waited / duty
    return GpuUse(
        duty=min(duty, 1.0),
        kernel_fraction=min(max(kernels, LEAST_KERNEL_FRACTION), 1.0),
        bytes_per_s=max(moved, 0.0) / duty,
        flops_per_s=max(computed, 0.0) / duty,
    )
