"""The activation peak against the memory model."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.small_models import small_model  # noqa: E402
from capacity_validate.technique_checks import (  # noqa: E402
    activation_findings,
    gpu_memory,
    peak_activation_bytes,
    pool_bytes,
)
from capacity_validate.transformer import Transformer  # noqa: E402
from fake_cuda import GIB, FakeCuda, FakeDevice  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_activation_peak_of_a_prefill_is_the_memory_models_form(tiny: Transformer) -> None:
    """To the byte, but for masks and positions: two hidden states and the FFN's four, whatever the length."""
    for tokens in (64, 256):
        (finding,) = activation_findings(tiny, tokens, peak_activation_bytes(torch, tiny, tokens))
        assert finding.passed, finding
        assert finding.value < 0.02
    wrong = activation_findings(tiny, 64, 2 * peak_activation_bytes(torch, tiny, 64))
    assert not wrong[0].passed
    mixture = Transformer(small_model("tiny-moe"), device="cpu", num_blocks=8)
    assert activation_findings(mixture, 64, 1.0) == []


def test_graphs_are_charged_what_their_own_pool_holds() -> None:
    """Not the difference of all reserved memory, from which a capture takes away what others had cached."""
    segments = [
        {"segment_pool_id": (0, 7), "total_size": 3 * 2**20},
        {"segment_pool_id": (0, 0), "total_size": 900 * 2**20},
        {"segment_pool_id": (0, 7), "total_size": 2**20},
    ]
    fake = SimpleNamespace(cuda=SimpleNamespace(memory_snapshot=lambda: segments))
    assert pool_bytes(fake, (0, 7)) == 4 * 2**20
    assert pool_bytes(fake, (0, 8)) == 0


def test_what_others_hold_of_a_card_is_not_called_a_context() -> None:
    fake = FakeCuda(devices=(FakeDevice(total_bytes=80 * GIB, used_bytes=30 * GIB),))
    fake.torch.cuda.memory_reserved = lambda _: 4 * GIB
    fake.torch.cuda.memory_allocated = lambda _: 3 * GIB
    assert gpu_memory(fake.torch, "cuda:0")["nontorch_bytes"] == 26 * GIB
    assert "nontorch_bytes" not in gpu_memory(fake.torch, "cuda:0", alone=False)
