"""Prepared calls: their references, memory and inputs."""

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.kernels import live_peak_bytes  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_live_peak_is_of_tensors_that_are_there_at_once() -> None:
    """Views count once, what is dropped counts no more, what was there before not at all."""
    a = torch.ones(1024)
    assert live_peak_bytes(torch, lambda: (a + 1) * 2) == 2 * 4096

    def dropping() -> object:
        x = a + 1
        for _ in range(5):
            x = x.view(32, 32) * 2
        return x

    assert live_peak_bytes(torch, dropping) == 2 * 4096
    assert live_peak_bytes(torch, lambda: a.view(2, 512).add_(1)) == 0
    assert live_peak_bytes(torch, lambda: [p + 1 for p in (a + 1).chunk(2)]) == 2 * 4096
