"""Paged decode attention is attention over the tables' tokens."""

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.kernels.attention import reference_attention  # noqa: E402
from capacity_validate.kernels.paged import paged_decode_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("window", [None, 5, 40])
def test_paged_decode_is_attention_over_the_tables_tokens(window: int | None) -> None:
    """Ragged contexts, scattered blocks, grouped heads; against plain softmax in float64."""
    generator = torch.Generator().manual_seed(3)
    keys, values = (torch.randn(32, 16, 2, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    contexts = [1, 17, 100]
    table = torch.randperm(32, generator=generator)[: 3 * 7].view(3, 7)
    query = torch.randn(3, 8, 32, generator=generator, dtype=torch.float64)
    out = paged_decode_attention(
        query, keys, values, table, torch.tensor(contexts), max_context=100, window_tokens=window
    )
    for row, context in enumerate(contexts):
        first = 0 if window is None else max(0, context - window)
        k, v = (c[table[row]].flatten(0, 1)[first:context].transpose(0, 1)[None] for c in (keys, values))
        expected = reference_attention(torch, query[row][None, :, None], k, v)[0, :, 0]
        assert float((out[row] - expected).abs().max()) < 1e-12
