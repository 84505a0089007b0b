"""Reference attention: no future, and memory by the square."""

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import make_case  # noqa: E402
from capacity_validate.kernels.attention import reference_attention  # noqa: E402
from capacity_validate.predictions import (  # noqa: E402
    Predictor,
    Target,
    calibration_target,
    case_constants,
    formula,
    profile_lookup,
)
from invented_kernels import H200  # noqa: E402
from kernel_checks import error_of, prepared  # noqa: E402

from capacity.hardware.power import sustained_constants  # noqa: E402
from capacity.model import load_model  # noqa: E402
from capacity.step import prefill_shape  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_causal_reference_masks_the_future() -> None:
    q, k, v = (torch.randn(1, 2, 6, 8, dtype=torch.float64) for _ in range(3))
    whole = reference_attention(torch, q, k, v, positions=range(q.shape[2]))
    first_three = reference_attention(torch, q[:, :, :3], k[:, :, :3], v[:, :, :3], positions=range(3))
    assert torch.allclose(whole[:, :, :3], first_three, atol=1e-14)


def test_plain_attention_needs_memory_by_the_square_and_flash_does_not() -> None:
    """Bytes created on the way, at 128 and 512 tokens: 16 times and 4 times (with what both must create)."""

    def created(tokens: int, backend: str) -> float:
        case = make_case(
            "prefill_attention",
            "fp32",
            variant=backend,
            batch=1,
            heads=2,
            kv_heads=2,
            head_dim=32,
            tokens=tokens,
        )
        extra_bytes = prepared(case).extra_bytes
        assert extra_bytes is not None
        return extra_bytes()

    assert created(512, "math") / created(128, "math") > 10
    assert created(512, "flash") / created(128, "flash") < 5


def test_a_cache_in_fp8_is_read_as_what_it_holds() -> None:
    """Queries in 16 bit over an FP8 cache: right, half the bytes, and constants of their own."""
    sizes = {"batch": 3, "context": 200, "heads": 8, "kv_heads": 2, "head_dim": 32}
    half, eight = (
        prepared(make_case("decode_attention", kernel, variant="paged", **sizes))
        for kernel in ("bf16", "fp8")
    )
    assert error_of(eight) < eight.tolerance
    assert eight.bytes < 0.6 * half.bytes
    case = make_case("decode_attention", "fp8", variant="paged", **sizes)
    assert calibration_target(case) == Target("decode_attention", "8bit")


def test_prefill_under_mla_is_right_and_priced_as_the_step_model_prices_it() -> None:
    """Its FLOPs and bytes are those of the operator of a step of DeepSeek-V2-Lite with that prompt."""
    small = make_case("mla_prefill", "fp32", batch=1, tokens=96, heads=4, nope=64, rope=32, value=64)
    built = prepared(small)
    assert error_of(built) < built.tolerance
    case = make_case("mla_prefill", "bf16", batch=1, tokens=1024, heads=16, nope=128, rope=64, value=128)
    function = formula(case, H200)
    assert function is not None
    constants = sustained_constants(
        case_constants(case, profile_lookup(H200)), H200
    )  # steps hold lower clocks
    model = load_model("deepseek-v2-lite")
    steps = Predictor(H200, model=model).step_model()
    (operator,) = (
        op for op in steps.step_cost(prefill_shape(1, 1024)).operators if op.name == "attention prefill"
    )
    assert function(constants) == pytest.approx(operator.seconds / model.num_layers, rel=1e-6)
