"""What an answer hangs on: each input moves alone, by what it says, and the way that it must."""

from __future__ import annotations

import pytest
from shared_prompts import PREFIXES, requests

from capacity import tornado
from capacity.deployment import Pool
from capacity.planning.variations.prefix_hit_rate import ideal_hits
from capacity.planning.variations.tornado import SWING, Tornado, with_acceptance, with_outputs, with_prompts
from capacity.pool.drafting import find_speculator
from capacity.pool.resolve import resolve
from capacity.workload import Workload

MODEL = "llama-3.1-8b"


def test_longer_prompts_share_as_large_a_part() -> None:
    work = requests(**PREFIXES)
    longer = with_prompts(work, 1.2)
    assert longer.prompt_tokens.mean() == pytest.approx(1.2 * work.prompt_tokens.mean(), rel=0.01)
    shares = [ideal_hits(w).sum() / w.prompt_tokens.sum() for w in (work, longer)]
    assert shares[1] == pytest.approx(shares[0], rel=0.01)
    assert with_outputs(work, 0.5).output_tokens.mean() == pytest.approx(20, rel=0.01)


def test_longer_prompts_have_the_same_images() -> None:
    """50 tokens of text beside two images of 60."""
    columns = {"arrival_s": [0.0], "prompt_tokens": [170], "output_tokens": [1]}
    pictured = Workload(**columns, images=[2], image_tokens=[60])
    assert with_prompts(pictured, 0.8).prompt_tokens.tolist() == [160]
    assert with_prompts(Workload(**columns), 0.8).prompt_tokens.tolist() == [136]


def test_acceptance_moves_alone() -> None:
    pool = resolve(MODEL, Pool(gpu="h100", speculator="eagle3"))
    low, high = (with_acceptance(pool, factor).pool.acceptance for factor in (0.8, 1.2))
    eagle = find_speculator("eagle3")
    k = eagle.draft_tokens
    tokens = [eagle.with_acceptance(text).tokens_per_round(k) for text in (low or "", high or "")]
    assert tokens[0] < eagle.tokens_per_round(k) < tokens[1] <= k + 1


def bars(answer: Tornado) -> dict[str, tuple[float | None, float | None]]:
    return {swing.input: swing.e2e_p95_change for swing in answer.swings}


def test_every_input_moves_latency_the_way_that_it_must() -> None:
    answer = tornado(
        MODEL, gpu="h100", price="2", speculator="eagle3", workload=requests(**PREFIXES, request_rate=12.0)
    )
    assert not answer.not_varied
    found = bars(answer)
    assert len(found) == 7
    for name in ("prompt lengths", "output lengths", "step times (calibration error)", "request rate"):
        low, high = found[name]
        assert low is not None
        assert high is not None
        assert low < high, name
    for name in ("prefix-cache hit rate", "draft acceptance rate"):
        low, high = found[name]
        assert low is not None
        assert high is not None
        assert low > high, name
    assert found["price per GPU-hour"] == (0.0, 0.0)
    price = next(swing for swing in answer.swings if swing.input == "price per GPU-hour")
    assert price.cost_change == pytest.approx((-SWING, SWING))
    spans = [swing.span for swing in answer.swings]
    assert spans == sorted(spans, reverse=True)


def test_what_is_not_varied_is_said() -> None:
    answer = tornado(MODEL, gpu="h100", input_len=100, output_len=10, concurrency=4, num_prompts=40)
    assert {text.partition(" (")[0] for text in answer.not_varied} == {
        "prefix-cache hit rate",
        "draft acceptance rate",
        "request rate",
        "price per GPU-hour",
    }
    off = tornado(
        MODEL, gpu="h100", enable_prefix_caching=False, workload=requests(**PREFIXES, num_prompts=50)
    )
    assert any("cache is off" in text for text in off.not_varied)
    assert "prefix-cache hit rate" not in bars(off)
