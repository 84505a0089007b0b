"""Step models by name, each built once, and shapes of every kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.hardware.adjustment import NO_ADJUSTMENT
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import scheme_for
from capacity.step import DecodePiece, StepCost, StepShape, decode_shape, picoseconds, prefill_shape
from capacity.step.model import StepModel
from capacity.step.setting import HostTime, StepSetting

NO_HOST = HostTime()  # every row count its own graph: nothing but operators
MODELS = (
    "llama-3.1-8b",
    "mixtral-8x7b",
    "deepseek-v3",
    "qwen3-next-80b-a3b",
    "gpt-oss-120b",
    "deepseek-v3.2",
)
SHAPES = (
    prefill_shape(1, 512, window_tokens=128),
    prefill_shape(3, 2000, cached_tokens=1000, window_tokens=128),
    decode_shape(1, 100, window_tokens=128),
    decode_shape(77, 5000, window_tokens=128),
    decode_shape(100, 1000, window_tokens=128)._replace(
        prefill_sequences=1,
        prefill_tokens=300,
        prefill_pairs=45_150,
        prefill_context_tokens=300,
        prefill_window_pairs=30_000,
        prefill_window_context_tokens=300,
        prompts_completed=1,
        draft_tokens=200,
    ),
)


@lru_cache(maxsize=64)
def steps(
    model: str = "llama-3.1-8b",
    gpu: str = "h100",
    *,
    tp: int = 1,
    quantization: str | None = None,
    kv: str = "auto",
    host: HostTime | None = NO_HOST,
    engine: str | None = None,
    host_cpu: str | None = None,
    experts_tilt: float = 0.0,
    **more: object,
) -> StepModel:
    spec, profile = load_model(model), load_profile(gpu)
    if experts_tilt:
        profile = profile.with_adjustment(NO_ADJUSTMENT.shift_means({"experts_tilt": experts_tilt}))
    setting = StepSetting(
        model=spec,
        profile=profile,
        engine=find_engine(engine) if engine else None,
        scheme=scheme_for(spec, quantization) if quantization else None,
        kv_cache_dtype=kv,
        tensor_parallel_size=tp,
        host=host,
        host_cpu=load_profile(host_cpu) if host_cpu else None,
        **more,  # type: ignore[arg-type]
    )
    return StepModel(setting)


def steps_of(model: ModelSpec, *, tp: int = 1) -> StepModel:
    """Of any model, on H100s without host time."""
    setting = StepSetting(model=model, profile=load_profile("h100"), tensor_parallel_size=tp, host=NO_HOST)
    return StepModel(setting)


def flops_by_name(cost: StepCost) -> Counter[str]:
    """Of operators of one name together: they may have several shapes."""
    found: Counter[str] = Counter()
    for operator in cost.operators:
        found[operator.name] += operator.flops  # type: ignore[assignment]
    return found


class FunctionStepTimes:
    """Any function of the shape, in seconds (exponential service, say): asked for at every step."""

    def __init__(self, step_s: Callable[[StepShape], float]) -> None:
        self._step_s = step_s

    def step_ps(self, shape: StepShape) -> int:
        return max(1, picoseconds(self._step_s(shape)))

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:  # noqa: ARG002
        return None
