"""Compiled step times are those of Python, to the picosecond: every model, engine and format, lines and ranks."""

from __future__ import annotations

import ctypes
import gc
import math
import random
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
from capacity_validate.replaying import _WithOverhead
from engine_runs import KneedStepTimes
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resolved_pools import pool
from step_library import compiled, joint, library, packed, times
from step_models import FunctionStepTimes, steps
from step_shapes import random_shape

from capacity.planning.evaluation.step_error import Factors, ScaledSteps
from capacity.pool.drafting import Speculation, find_speculator
from capacity.pool.drafting.rounds import DraftedSteps
from capacity.simulator.core.interface import enums, structs
from capacity.simulator.core.step_data import StepData
from capacity.step import (
    AffineStepTimes,
    DecodePiece,
    SlowestRank,
    StepShape,
    decode_shape,
    prefill_shape,
)
from capacity.step.model import StepModel, make_seconds
from capacity.step.operators import Traffic
from capacity.step.setting import HostTime

SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-8b", "engine": "vllm"},
    "dense, eager": {"model": "llama-3.1-8b", "engine": "vllm", "enforce_eager": True},
    "dense, no host": {"model": "llama-3.1-70b", "gpu": "a100-sxm-80gb", "tp": 4, "host": HostTime()},
    "host in sequence": {
        "model": "qwen3-8b",
        "host": HostTime(step_s=1e-3, per_sequence_s=1e-6, overlapped=False),
    },
    "host that nothing hides": {
        "model": "qwen3-8b",
        "host": HostTime(
            step_s=1e-3, per_sequence_s=1e-6, serial_s=3e-4, serial_per_sequence_s=3e-5, graph_sizes=(1, 8, 9)
        ),
        "top_k": 40,
        "repetition_penalty": 1.1,
    },
    "all-reduce of one shot": {"model": "llama-3.1-70b", "gpu": "h200", "tp": 8, "engine": "tensorrt-llm"},
    "another family's all-reduce": {"model": "llama-3.1-70b", "gpu": "b200", "tp": 8, "engine": "vllm"},
    "host with eager, added": {
        "model": "qwen3-8b",
        "host": HostTime(eager_s=2e-3, step_s=1e-3, overlap_sharpness=1.0, graph_sizes=(1, 8, 9)),
    },
    **{
        f"host with eager, norm of {sharpness:g}": {
            "model": "qwen3-8b",
            "host": HostTime(eager_s=2e-3, step_s=1e-3, overlap_sharpness=sharpness, graph_sizes=(1, 8, 9)),
        }
        for sharpness in (0.2, 40.0)
    },
    "host with eager, a graph for each size": {
        "model": "qwen3-8b",
        "host": HostTime(eager_s=2e-3, step_s=1e-3),
    },
    "launches that wait": {"model": "qwen3-30b-a3b", "engine": "sglang", "tp": 2},
    "fp8": {"model": "llama-3.1-8b", "gpu": "h200", "quantization": "fp8", "kv": "fp8", "engine": "vllm"},
    "awq": {"model": "llama-3.1-70b", "gpu": "l40s", "tp": 4, "quantization": "awq", "engine": "vllm"},
    "nf4": {"model": "llama-3.1-8b", "quantization": "nf4", "engine": "vllm"},
    "llm-int8": {
        "model": "llama-3.1-8b",
        "gpu": "a100-sxm-80gb",
        "quantization": "llm-int8",
        "engine": "vllm",
    },
    "gguf": {"model": "llama-3.1-70b", "gpu": "h200", "tp": 2, "quantization": "q4_k_m", "engine": "vllm"},
    "gguf in llama.cpp": {
        "model": "llama-3.1-8b",
        "gpu": "rtx-4090",
        "quantization": "q5_k_m",
        "engine": "llama.cpp",
    },
    "gguf of latents and experts": {
        "model": "deepseek-v2-lite",
        "gpu": "h200",
        "quantization": "q4_k_m",
        "engine": "vllm",
    },
    "awq without marlin": {
        "model": "llama-3.1-8b",
        "gpu": "l40s",
        "quantization": "awq-no-marlin",
        "engine": "vllm@0.6",
    },
    "old vllm": {"model": "llama-2-13b", "gpu": "a10g", "tp": 2, "engine": "vllm@0.6"},
    "sglang": {"model": "qwen2.5-72b", "gpu": "h200", "tp": 8, "engine": "sglang"},
    "tensorrt-llm": {"model": "llama-3.3-70b", "gpu": "b200", "tp": 4, "engine": "tensorrt-llm"},
    "tgi": {"model": "mistral-7b", "gpu": "a100-pcie-40gb", "engine": "tgi"},
    "naive": {"model": "phi-4", "gpu": "rtx-4090", "engine": "hf-transformers"},
    "llama.cpp": {"model": "qwen3-4b", "gpu": "rtx-5090", "engine": "llama.cpp"},
    "gemma 2": {"model": "gemma-2-9b", "gpu": "l4", "engine": "vllm"},
    "gemma 3": {"model": "gemma-3-27b", "gpu": "h100", "tp": 2, "engine": "vllm"},
    "gpt-oss": {"model": "gpt-oss-120b", "gpu": "h200", "engine": "vllm"},
    "weights over pcie": {"model": "mixtral-8x7b", "gpu": "l40s", "engine": "vllm", "host_weight_share": 0.4},
    "layers on the cpu": {
        "model": "qwen3-30b-a3b",
        "gpu": "rtx-3090",
        "quantization": "q4_k_m",
        "engine": "llama.cpp",
        "gpu_layers": 20,
        "host_cpu": "core-i9-13900k",
    },
    "window alone": {"model": "mistral-7b-v0.1", "gpu": "mi300x", "engine": "vllm"},
    "llama 4": {"model": "llama-4-scout", "gpu": "h200", "tp": 8, "engine": "vllm"},
    "experts": {"model": "mixtral-8x7b", "gpu": "h100-pcie", "tp": 2, "engine": "vllm"},
    "experts apart": {
        "model": "qwen3-235b-a22b",
        "gpu": "h200",
        "tp": 8,
        "engine": "vllm",
        "enable_expert_parallel": True,
    },
    "experts apart, padded": {
        "model": "qwen3-235b-a22b",
        "gpu": "h200",
        "tp": 8,
        "engine": "vllm@0.11.1",
        "enable_expert_parallel": True,
        "quantization": "fp8-block",
    },
    "experts, faster with more tokens": {
        "model": "qwen3-30b-a3b",
        "gpu": "h100",
        "engine": "vllm",
        "experts_tilt": -0.06,
    },
    "experts, slower with more tokens": {
        "model": "gpt-oss-120b",
        "gpu": "h100",
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
        "engine": "vllm",
        "experts_tilt": 0.11,
    },
    "latent": {"model": "deepseek-v3", "gpu": "h200", "tp": 8, "engine": "vllm"},
    "latent, 8 bit": {"model": "deepseek-v2-lite", "gpu": "h100", "kv": "fp8", "engine": "sglang"},
    "sparse": {"model": "deepseek-v3.2", "gpu": "b200", "tp": 8, "engine": "vllm"},
    "sparse, filled": {"model": "deepseek-v3.2", "gpu": "h200", "tp": 8, "engine": "vllm@0.13"},
    "linear": {"model": "qwen3-next-80b-a3b", "gpu": "h200", "tp": 4, "engine": "vllm"},
    "linear, small": {"model": "qwen3.5-35b-a3b", "gpu": "h100", "tp": 2, "engine": "sglang"},
    "stages": {
        "model": "llama-3.1-405b",
        "gpu": "h100",
        "tp": 8,
        "pipeline_parallel_size": 2,
        "engine": "vllm",
    },
    "ranks of experts": {
        "model": "deepseek-v3",
        "gpu": "h200",
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
        "engine": "vllm",
    },
    "ranks, experts cut": {
        "model": "gpt-oss-120b",
        "gpu": "h100",
        "tp": 2,
        "data_parallel_size": 4,
        "engine": "vllm",
    },
    "ranks of 3": {"model": "mixtral-8x7b", "gpu": "h200", "data_parallel_size": 3, "engine": "vllm"},
    "ranks, dense": {"model": "llama-3.1-8b", "gpu": "h200", "data_parallel_size": 2, "engine": "vllm"},
}


@cache
def model(name: str) -> StepModel:
    options = {"host": None, "gpu": "h100"} | SETTINGS[name]
    return steps(options.pop("model"), options.pop("gpu"), **options)


def with_operators(own: StepModel, **operators: Any) -> StepModel:
    """A copy of a model with other operators."""
    changed = StepModel.__new__(StepModel)
    changed.__dict__.update(vars(own))
    changed._operators = replace(own._operators, **operators)
    changed._pieces = {}
    return changed


def ranks_of(name: str) -> int:
    return int(SETTINGS[name].get("data_parallel_size", 1))


def line_of(data: StepData, shape: StepShape) -> DecodePiece | None:
    line = structs.decode_line()
    found = library().decode_piece(data.pointer, packed([shape]), ctypes.byref(line))
    data.raise_error()
    none = 1 << 62
    limits = [
        None if value == none else value
        for value in (line.max_context_tokens, line.max_window_context_tokens)
    ]
    return DecodePiece(line.base_ps, line.context_ps, line.window_context_ps, *limits) if found else None


def require_equal(name: str, rng: random.Random, count: int, *, most_rows: int = 2048) -> None:
    """`count` shapes, a line and joint steps among them."""
    own, ranks = model(name), ranks_of(name)
    data = compiled(own)
    assert data.kind == enums.STEPS_MODEL
    shapes = [random_shape(rng, most_rows=most_rows, window=own.model.window_tokens) for _ in range(count)]
    expected = [own.step_ps(shape) for shape in shapes]
    assert times(data, shapes) == expected
    decodes = [shape for shape in shapes if shape[7] and not shape[1]]
    assert times(data, decodes, by_line=True) == [own.step_ps(shape) for shape in decodes]
    for shape in decodes[: count // 8]:
        assert line_of(data, shape) == own.decode_piece(shape)
    for at in range(0, count - ranks, 8 * ranks):
        together = shapes[at : at + ranks]
        assert joint(data, together) == own.joint_ps(together)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_models_times_are_pythons(name: str) -> None:
    require_equal(name, random.Random(name), 250)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_models_times_are_pythons_at_length(name: str) -> None:
    require_equal(name, random.Random(name + " at length"), 12_000, most_rows=20_000)


sizes = st.integers(0, 1 << 20)


@settings(max_examples=examples(200))
@given(
    st.sampled_from(sorted(SETTINGS)),
    st.builds(
        StepShape,
        *(
            st.integers(0, 512),
            st.integers(0, 4000),
            st.integers(0, 1 << 54),
            sizes,
            st.integers(0, 1 << 54),
            sizes,
        ),
        *(st.integers(0, 512), st.integers(0, 600), st.integers(0, 600), st.integers(0, 1 << 42), sizes),
        *[st.just(0)] * 4,  # images and audio are not compiled
    ),
)
@example("latent", decode_shape(4000, 1 << 40))
@example("dense", StepShape(decode_sequences=1, decode_context_tokens=1 << 60))
def test_any_integers_give_pythons_time(name: str, shape: StepShape) -> None:
    """Whatever an engine would never ask, sums beyond all reason included."""
    own, data = model(name), compiled(model(name))
    expected = own.step_ps(shape)
    if expected >= 1 << 62:
        with pytest.raises(OverflowError):
            times(data, [shape])
        return
    assert times(data, [shape]) == [expected]
    if shape[7] and not shape[1]:
        assert line_of(data, shape) == own.decode_piece(shape)


@settings(max_examples=examples(60))
@given(st.sampled_from(sorted(SETTINGS)), st.integers(1, 512), st.integers(1, 4096), st.data())
def test_a_line_is_good_up_to_its_limits(
    name: str, sequences: int, context: int, data: st.DataObject
) -> None:
    """At the borders between two knots, from both sides."""
    own, native = model(name), compiled(model(name))
    shape = decode_shape(sequences, context, window_tokens=data.draw(st.sampled_from([None, 64, 1024])))
    piece = own.decode_piece(shape)
    last = shape._replace(
        decode_context_tokens=piece.max_context_tokens,
        decode_window_context_tokens=piece.max_window_context_tokens,
    )
    after = shape._replace(decode_context_tokens=last.decode_context_tokens + 1)
    asked = [shape, last, after, last, shape._replace(draft_tokens=1), shape]
    assert times(native, asked, by_line=True) == [own.step_ps(one) for one in asked]


def test_every_graph_size_and_its_neighbours() -> None:
    own, data = model("dense"), compiled(model("dense"))
    sizes = sorted({size + by for size in own.host.graph_sizes for by in (-1, 0, 1)} - {0})
    shapes = [decode_shape(size, 1000) for size in sizes]
    shapes += [prefill_shape(1, size) for size in sizes]
    assert times(data, shapes) == [own.step_ps(shape) for shape in shapes]


def test_ranks_without_work_and_other_numbers_of_ranks() -> None:
    for name in ("ranks of experts", "ranks, dense", "dense"):
        own, data = model(name), compiled(model(name))
        idle, busy = StepShape(), decode_shape(8, 1000)
        for shapes in (
            [idle] * 8,
            [busy] + [idle] * 7,
            [busy] * 3,
            [idle, busy],
            [busy],
            [prefill_shape(2, 900), idle],
        ):
            assert joint(data, shapes) == own.joint_ps(shapes)


# the mathematical library


def require_equal_functions(count: int) -> None:
    rng, own = random.Random(14), library()
    for _ in range(count):
        base, exponent = (
            2.0 ** rng.uniform(-60, 1),
            rng.choice((rng.uniform(0.05, 16), float(rng.randint(1, 16)))),
        )
        assert own.step_times_pow(base, exponent) == base**exponent
        assert own.step_times_pow(1.0 + base, 1.0 / exponent) == (1.0 + base) ** (1.0 / exponent)
        assert own.step_times_log2(1.0 + base * 2.0**40) == math.log2(1.0 + base * 2.0**40)


def test_powers_and_logarithms_are_pythons() -> None:
    require_equal_functions(34_000)


@pytest.mark.slow
def test_powers_and_logarithms_are_pythons_at_length() -> None:
    require_equal_functions(340_000)


# other step times


@dataclass(frozen=True)
class Alone:
    """Step times without lines, and of no data."""

    base_ps: int = 1000

    def step_ps(self, shape: StepShape) -> int:
        return self.base_ps + sum(shape)


def shapes_of(seed: int) -> list[StepShape]:
    rng = random.Random(seed)
    return [random_shape(rng) for _ in range(100)]


@pytest.mark.parametrize(
    ("own", "kind"),
    [
        (AffineStepTimes(0.01, 0.001, per_context_token_s=1.234e-6), enums.STEPS_AFFINE),
        (AffineStepTimes(0.01, 0.0), enums.STEPS_AFFINE),
        (KneedStepTimes(1000), enums.STEPS_ASKED),
        (FunctionStepTimes(lambda shape: 1e-3 + shape[9] * 1e-9), enums.STEPS_ASKED),
        (SlowestRank(KneedStepTimes(1000)), enums.STEPS_SLOWEST),
        (ScaledSteps(KneedStepTimes(777), Factors(prefill=1.3, decode=1.1)), enums.STEPS_SCALED),
        (
            ScaledSteps(
                FunctionStepTimes(lambda shape: 1e-3 + shape[9] * 1e-9), Factors(prefill=1.3, decode=0.9)
            ),
            enums.STEPS_SCALED,
        ),
        (_WithOverhead(KneedStepTimes(1000), 1e-4), enums.STEPS_DELAYED),
        (_WithOverhead(AffineStepTimes(0.01, 0.001), -1.0), enums.STEPS_DELAYED),
    ],
)
def test_other_times_are_pythons(own: Any, kind: int) -> None:
    data = compiled(own)
    assert data.kind == kind
    shapes = shapes_of(1)
    assert times(data, shapes) == [own.step_ps(shape) for shape in shapes]
    for shape in shapes:
        if shape[7] and not shape[1]:
            assert line_of(data, shape) == own.decode_piece(shape)
    working = [shape for shape in shapes if shape.num_tokens]
    together = own if hasattr(own, "joint_ps") else SlowestRank(own)
    if not isinstance(own, ScaledSteps):
        assert joint(data, working[:4]) == together.joint_ps(working[:4])


MANY_ROWS = decode_shape(1 << 17, 8)  # more than lines and drafting times are kept for
EXTREME = (
    MANY_ROWS,
    MANY_ROWS._replace(draft_tokens=1 << 17),
    decode_shape(3, 1 << 16)._replace(draft_tokens=9),
    decode_shape(1 << 23, 8),  # rows beyond the tables
    decode_shape(1, 1 << 41),  # contexts beyond what C computes
    decode_shape(1, 1 << 41)._replace(draft_tokens=1),
    decode_shape(1, 17),
    prefill_shape(1, 3 << 20),
    decode_shape(1 << 39, 1)._replace(draft_tokens=1 << 39),  # drafts beyond them
    decode_shape(2, 100)._replace(encoder_tokens=5),
    decode_shape(2, 100)._replace(audio_tokens=5),
    StepShape(),
)


def extreme_times() -> dict[str, Any]:
    target, draft = pool("llama-3.1-8b", "h200"), pool("llama-3.2-1b", "h200")
    inner: dict[str, Any] = {"dense": model("dense"), "ranks": model("ranks of experts")}
    for rate in (1.0, 1e-6):  # bytes/s of the KV cache
        slow = [
            replace(one, device=replace(one.device, hbm_bytes_per_s=rate))
            for one in model("dense")._operators.per_context
        ]
        inner[f"{rate:g} bytes/s"] = with_operators(model("dense"), per_context=tuple(slow))
    for kind, own in (("eagle3", None), ("draft-model", draft)):
        inner[kind] = DraftedSteps(Speculation(target, find_speculator(kind), draft=own), 2)
    rows = AffineStepTimes(0.01, 4e6)  # beyond 64 bits with 2 rows
    inner["rows"] = SlowestRank(rows)
    inner["no base"] = SlowestRank(AffineStepTimes(0.0, 0.0, per_context_token_s=4e6))
    found = inner | {
        "affine rows": rows,
        "contexts": AffineStepTimes(0.01, 0.0, per_context_token_s=4e6),
        "base and rows": AffineStepTimes(4e6, 40.0),
        "base and contexts": AffineStepTimes(4e6, 0.0, per_context_token_s=9.0),
        "added": _WithOverhead(model("dense"), 1e-4),
    }
    for factor in (1.2, 1e13, 1e19):  # with the last, no time is in 64 bits
        found |= {
            f"{name}, {factor:g}": ScaledSteps(own, Factors(decode=factor)) for name, own in inner.items()
        }
    return found


def answer(ask: Callable[[], Any]) -> Any:
    """The answer, or the kind of error; numbers beyond the core's are an OverflowError."""
    try:
        found = ask()
    except Exception as error:
        return type(error)
    numbers = [found] if isinstance(found, int) else found or []
    return OverflowError if any(number is not None and abs(number) > 1 << 62 for number in numbers) else found


@pytest.mark.parametrize("name", extreme_times())
def test_extreme_times_are_pythons_or_refused(name: str) -> None:
    own = extreme_times()[name]
    data, together = compiled(own), own if hasattr(own, "joint_ps") else SlowestRank(own)
    for shape in EXTREME:
        assert answer(partial(times, data, [shape])) == answer(lambda one=shape: [own.step_ps(one)])
        for shapes in ([shape, shape], [shape, decode_shape(1, 10)]):
            assert answer(partial(joint, data, shapes)) == answer(partial(together.joint_ps, shapes))
        line = answer(partial(own.decode_piece, shape))
        if shape.decode_sequences and line is not OverflowError:
            assert answer(partial(line_of, data, shape)) == line


@pytest.mark.parametrize("name", ["dense", "gpt-oss", "ranks of experts"])
@pytest.mark.parametrize("factors", [Factors(), Factors(prefill=1.0371, decode=1.2345)])
def test_scaled_and_delayed_models(name: str, factors: Factors) -> None:
    for own in (ScaledSteps(model(name), factors), _WithOverhead(model(name), 1e-4)):
        data = compiled(own)
        shapes = shapes_of(2)
        assert times(data, shapes) == [own.step_ps(shape) for shape in shapes]
        assert times(data, shapes) == [own.step_ps(shape) for shape in shapes]
        if isinstance(own, ScaledSteps):
            working = [shape for shape in shapes if shape.num_tokens][: ranks_of(name)]
            assert joint(data, working) == own.joint_ps(working)


def test_times_without_lines() -> None:
    data = compiled(Alone())
    assert line_of(data, decode_shape(3, 100)) is None
    assert times(data, [decode_shape(3, 100)], by_line=True) == [1000 + 603]
    assert joint(data, [decode_shape(3, 100), decode_shape(1, 1)]) == 1603


def test_a_subclass_is_asked() -> None:
    """It may time its steps otherwise: its base's data say nothing of it."""

    class Twice(AffineStepTimes):
        def step_ps(self, shape: StepShape) -> int:
            return 2 * super().step_ps(shape)

    class Slow(StepModel):
        def _step_seconds(self, shape: StepShape) -> float:
            return 1.0 + super()._step_seconds(shape)

    twice = Twice(0.01, 0.001)
    assert compiled(twice).kind == enums.STEPS_ASKED
    assert times(compiled(twice), [decode_shape(1, 1)]) == [twice.step_ps(decode_shape(1, 1))]
    slow = Slow.__new__(Slow)
    slow.__dict__.update(vars(model("dense")))
    assert compiled(slow).kind == enums.STEPS_ASKED


def test_an_operator_without_a_form_leaves_its_model_asked() -> None:
    first, *others = model("dense")._operators.per_context
    strange = replace(first, work=lambda shape: (1e12, 1e9, 1.0 + shape[7], 0.0))
    own = with_operators(model("dense"), per_context=(strange, *others))
    assert own.step_data() is None
    data = compiled(own)
    assert data.kind == enums.STEPS_ASKED
    shapes = shapes_of(3)
    assert times(data, shapes) == [own.step_ps(shape) for shape in shapes]


SPECULATORS = ("eagle3", "eagle3", "medusa", "ngram", "mtp", "draft-model")


@pytest.mark.parametrize("name", SPECULATORS)
@pytest.mark.parametrize("depth", [1, 4])
def test_drafting_is_paid_for_as_in_python(name: str, depth: int) -> None:
    target = pool("deepseek-v3" if name == "mtp" else "llama-3.1-8b", "h200", tp=8 if name == "mtp" else 1)
    draft = pool("llama-3.2-1b", "h200") if name == "draft-model" else None
    own = DraftedSteps(Speculation(target, find_speculator(name), draft=draft), depth)
    data = compiled(own)
    assert data.kind == enums.STEPS_DRAFTED
    shapes = [shape for shape in shapes_of(4) + shapes_of(5) if shape[7] or not shape[8]]
    assert times(data, shapes, by_line=True) == [own.step_ps(shape) for shape in shapes]
    scaled = ScaledSteps(own, Factors(prefill=1.2, decode=1.3))
    assert times(compiled(scaled), shapes) == [scaled.step_ps(shape) for shape in shapes]
    working = [shape for shape in shapes if shape.num_tokens][:4]
    assert joint(data, working) == own.joint_ps(working)
    with pytest.raises(ZeroDivisionError):
        times(data, [StepShape(draft_tokens=3)])


@pytest.mark.parametrize(
    "inner", [AffineStepTimes(0.01, 0.001), AffineStepTimes(0.0, 0.001), KneedStepTimes(1000)]
)
def test_a_joint_step_of_no_tokens_takes_as_long_as_an_empty_one(inner: Any) -> None:
    for own in (inner, SlowestRank(inner)):
        data = compiled(own)
        for ranks in (1, 3):
            nobody = [StepShape()] * ranks
            assert joint(data, nobody) == SlowestRank(own).joint_ps(nobody) == inner.step_ps(StepShape())
            somebody = [*nobody, decode_shape(1, 10)]
            assert joint(data, somebody) == inner.step_ps(decode_shape(1, 10))


# what goes wrong in Python


class Breaking:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error: BaseException | None = error or ValueError("broken")

    def step_ps(self, shape: StepShape) -> int:  # noqa: ARG002
        if self.error:
            raise self.error
        return 7

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:  # noqa: ARG002
        if self.error:
            raise self.error
        return None


WRAPPED: tuple[Callable[[Any], Any], ...] = (
    lambda own: own,
    lambda own: ScaledSteps(own, Factors()),
    SlowestRank,
    lambda own: _WithOverhead(own, 1.0),
)


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_exception_ends_the_call_and_is_raised_after_it(error: BaseException) -> None:
    shape = decode_shape(1, 10)
    asked: tuple[Callable[[StepData], object], ...] = (
        lambda data: times(data, [shape]),
        lambda data: times(data, [shape], by_line=True),
        lambda data: joint(data, [shape, shape]),
        lambda data: line_of(data, shape),
    )
    for wrapped, ask in product(WRAPPED, asked):
        breaking = Breaking(error)
        data = compiled(wrapped(breaking))
        assert library().step_ps(data.pointer, packed([shape])) == -1
        with pytest.raises(type(error)):
            ask(data)
        with pytest.raises(type(error)):
            ask(data)
        breaking.error = None
        assert times(data, [shape])[0] >= 1


class Strange(Traffic):
    """Traffic of a formula that no data can tell."""

    __slots__ = ()


def strange_model() -> StepModel:
    """A model whose seconds by rows are asked for."""
    operators = model("experts")._operators.per_token
    traffic = next(one for one in operators if type(one) is Traffic)
    strange = Strange(**{name: getattr(traffic, name) for name in Traffic.__dataclass_fields__})
    own = with_operators(model("experts"), per_token=(*operators, strange))
    own.row_seconds = make_seconds(own._operators.per_token)
    return own


def test_a_table_without_data_is_asked_for() -> None:
    own = strange_model()
    known = own.step_data()
    assert known is not None
    assert known.row_operators is None
    data, shapes = compiled(own), shapes_of(6)
    assert data.kind == enums.STEPS_MODEL
    assert times(data, shapes) == [own.step_ps(shape) for shape in shapes]
    assert times(data, shapes[:1]) != [model("experts").step_ps(shape) for shape in shapes[:1]]


def test_an_exception_in_a_table_is_raised_and_forgotten() -> None:
    own = strange_model()

    def broken(rows: int) -> float:
        raise ZeroDivisionError(rows)

    kept, own.row_seconds = own.row_seconds, broken  # type: ignore[assignment]
    data = compiled(own)
    with pytest.raises(ZeroDivisionError):
        times(data, [decode_shape(1, 10), prefill_shape(1, 100)])
    own.row_seconds = kept
    assert times(data, [decode_shape(1, 10)]) == [own.step_ps(decode_shape(1, 10))]


@pytest.mark.parametrize("ps", [-5, 1 << 62, 1 << 80])
def test_times_that_are_none_are_refused(ps: int) -> None:
    class Odd:
        def step_ps(self, shape: StepShape) -> int:  # noqa: ARG002
            return ps

        def decode_piece(self, shape: StepShape) -> DecodePiece:  # noqa: ARG002
            return DecodePiece(-ps, 1 << 70)

    data = compiled(Odd())
    with pytest.raises(OverflowError):
        times(data, [decode_shape(1, 10)])
    with pytest.raises(OverflowError):
        line_of(data, decode_shape(1, 10))


# what is kept


def test_a_models_tables_are_kept_by_thread_and_go_with_it() -> None:
    held = [steps.__wrapped__("llama-3.1-8b", "h100")]
    first = compiled(held[0])
    assert compiled(held[0]).pointer == first.pointer
    others: list[int] = []
    thread = threading.Thread(target=lambda: others.append(compiled(held[0]).pointer))
    thread.start()
    thread.join()
    assert others != [first.pointer]
    times(first, [decode_shape(1, 10)])
    gone = weakref.ref(held.pop())
    del first
    gc.collect()
    assert gone() is None
