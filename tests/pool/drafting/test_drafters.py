"""What drafts: its layer, its memory, and the first token that waits for it."""

from __future__ import annotations

import pytest
from resolved_pools import pool

from capacity.pool.drafting import Speculation, find_speculator, layer_model


def test_an_eagle_layer_is_one_layer_and_a_projection() -> None:
    """EAGLE for Llama-2-7B is published as 0.24B: one layer of 202 M, and 2h x h = 34 M to join its inputs."""
    target = pool("llama-2-7b", "h100")
    layer = layer_model(target.model, find_speculator("eagle"))
    own = sum(p.params for p in layer.parameter_parts() if p.kind not in ("embedding", "lm_head", "norm"))
    assert own == pytest.approx(202.4e6 + 2 * 4096**2, rel=0.001)
    assert Speculation(target, find_speculator("eagle")).memory().draft_weights_bytes == pytest.approx(
        2 * own, rel=1e-3
    )


def test_drafting_delays_the_first_token() -> None:
    plain, drafted = Speculation(pool("llama-3.1-8b", "h100"), find_speculator("eagle3")).ttft_s(4000)
    assert plain < drafted < 1.2 * plain
    plain, drafted = Speculation(pool("llama-3.1-8b", "h100"), find_speculator("ngram")).ttft_s(4000)
    assert plain == drafted
