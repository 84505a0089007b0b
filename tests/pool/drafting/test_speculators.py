"""Ways to draft: published lengths come back, and acceptance is read in each of its forms."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.pool.drafting import find_speculator, pool_speculator, speculators


def test_lengths_by_depth_come_back_as_they_went_in() -> None:
    """DeepSeek-R1's published 1.00 to 3.01: gains 0.92, 0.66, 0.24, 0.17, 0.02 of a token."""
    mtp = find_speculator("mtp")
    assert [round(mtp.tokens_per_round(k), 2) for k in range(6)] == [1.0, 1.92, 2.58, 2.82, 2.99, 3.01]
    assert mtp.rates(3) == pytest.approx((0.92, 0.66 / 0.92, 0.24 / 0.66))


def test_every_preset_gives_its_published_length_and_names_its_source() -> None:
    for speculator in speculators().values():
        assert speculator.source
        assert speculator.date
        if speculator.accepted_length is not None:
            depth = speculator.draft_tokens
            assert speculator.tokens_per_round(depth) == pytest.approx(speculator.accepted_length, abs=1e-6)


def test_acceptance_is_read_in_each_of_its_forms() -> None:
    eagle = find_speculator("eagle").as_chain()
    assert eagle.with_acceptance("0.5").tokens_per_round(2) == 1.75
    assert eagle.with_acceptance("0.5,0.25").tokens_per_round(3) == 1 + 0.5 + 0.125 + 0.03125
    assert eagle.with_acceptance("length:2.5").tokens_per_round(5) == pytest.approx(2.5)
    for wrong in ("1.5", "x", "0.5,2", "length:9", "length:0.2", "nan"):
        with pytest.raises(InvalidInput, match="accept"):
            eagle.with_acceptance(wrong)


def test_a_pool_drafts_at_the_acceptance_and_depth_that_it_gives() -> None:
    plain = pool_speculator(Pool(gpu="h100", speculator="eagle3"))
    assert plain == find_speculator("eagle3")
    assert plain.depth(None) == plain.draft_tokens
    at_half = pool_speculator(Pool(gpu="h100", speculator="eagle3", acceptance="0.5"))
    assert at_half.first_rates(at_half.depth(2)) == (0.5, 0.5)
    with pytest.raises(UnknownName):
        pool_speculator(Pool(gpu="h100", speculator="eagle9"))


def test_a_task_has_the_length_that_was_published_for_it() -> None:
    """EAGLE-3's chain of 7: 3.62 tokens a round on code; of 3 drafts the same rate gives fewer."""
    code = pool_speculator(Pool(gpu="h100", speculator="eagle3", acceptance="code"))
    assert code.tokens_per_round(7) == pytest.approx(3.62)
    shorter = pool_speculator(
        Pool(gpu="h100", speculator="eagle3", acceptance="code", num_speculative_tokens=3)
    )
    assert shorter.rates(3) == pytest.approx(code.rates(7)[:3])
    assert code.acceptance_model.endswith("code")
    with pytest.raises(InvalidInput, match="by task: chat, code, math"):
        pool_speculator(Pool(gpu="h100", speculator="eagle3", acceptance="poems"))


def test_lookahead_verifies_its_window_and_its_guesses() -> None:
    """(N - 1)(W + G) rows a step, one of which is the last token: 120 at 5, 15, 15, as its authors count."""
    way = find_speculator("lookahead")
    assert way.verified_tokens(4) == 4 * (7 + 7) - 1
    wide = way.model_copy(update={"window_tokens": 15, "guesses": 15})
    assert wide.verified_tokens(4) + 1 == 120
    assert way.verified_tokens(0) == 0
    assert way.tree_sizes(4) == (55,)
    assert way.tokens_per_round(4) == pytest.approx(1.66)
    assert len(way.rates(4)) == 4
    assert "56 rows per step" in way.describe_shape(4)
    assert find_speculator("eagle3").describe_shape(3) == "3 draft tokens"
