"""Which experts a CUDA graph can hold: where torch has a grouped product of its own, and nowhere else."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import make_case  # noqa: E402
from capacity_validate.kernels import KernelContext, experts  # noqa: E402
from capacity_validate.small_models import small_model  # noqa: E402
from capacity_validate.transformer import Transformer  # noqa: E402
from fake_cuda import FakeCuda, FakeDevice  # noqa: E402
from kernel_checks import prepared  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
LOOPED = make_case("moe", "fp32", variant="loop", tokens=4, experts=4, top_k=2, hidden=64, intermediate=64)


@pytest.mark.parametrize(
    ("capability", "dtype", "held"),
    [
        ((9, 0), "bfloat16", True),
        ((10, 0), "bfloat16", True),
        ((10, 3), "bfloat16", True),
        ((8, 0), "bfloat16", False),  # A100: falls back to a loop that reads the groups' ends on the host
        ((8, 9), "bfloat16", False),
        ((12, 0), "bfloat16", False),
        ((9, 0), "float32", False),
    ],
)
def test_grouped_products_are_captured_where_they_ask_nothing_of_the_host(
    capability: tuple[int, int], dtype: str, held: bool
) -> None:
    fake = FakeCuda(devices=(FakeDevice(major=capability[0], minor=capability[1]),))
    fake.torch.bfloat16, fake.torch._grouped_mm = torch.bfloat16, None
    assert experts.grouped_in_one_kernel(fake.torch, "cuda:0", getattr(torch, dtype)) is held
    assert not experts.grouped_in_one_kernel(torch, "cpu", torch.bfloat16)
    del fake.torch._grouped_mm  # torch 2.6
    assert not experts.grouped_in_one_kernel(fake.torch, "cuda:0", torch.bfloat16)


def test_a_loop_over_experts_is_never_put_into_a_graph() -> None:
    assert prepared(LOOPED).capturable is False


def test_one_set_of_experts_is_enough_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    rotating = KernelContext.rotating_tensors

    def counted(self: KernelContext, count: int, *shape: int, **options: Any) -> Any:
        made.append(count)
        return rotating(self, count, *shape, **options)

    monkeypatch.setattr(KernelContext, "rotating_tensors", counted)
    monkeypatch.setattr(KernelContext, "copy_count", lambda *_: 1)
    prepared(LOOPED)
    assert set(made) == {1}


def test_a_model_knows_whether_a_graph_can_hold_its_steps() -> None:
    dense, mixture = (
        Transformer(small_model(name), device="cpu", num_blocks=2) for name in ("tiny", "tiny-moe")
    )
    assert not dense.capturable  # a CPU has no graphs
    dense.device = mixture.device = "cuda:0"
    assert dense.capturable
    assert not mixture.capturable
