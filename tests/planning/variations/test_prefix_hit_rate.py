"""More and fewer prefix-cache hits, against hits counted by hand and by the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from shared_prompts import PREFIXES, TURNS, requests

from capacity import simulate
from capacity.planning.variations.prefix_hit_rate import ideal_hits, scale_prefix_hits
from capacity.planning.variations.tornado import SWING
from capacity.workload import Workload
from capacity.workload.content import PromptContent

MODEL = "llama-3.1-8b"


def test_hits_counted_by_hand() -> None:
    """Answers are said too; a text agrees as far as the shorter of two goes, and nothing after a difference counts."""
    content = PromptContent.from_segments(
        [[(1, 10), (2, 5)], [(1, 10), (2, 5), (70, 4), (3, 2)], [(1, 6), (2, 5)], [(9, 3)]],
        answer_ids=[70, 71, 72, 73],
    )
    work = Workload(
        arrival_s=np.arange(4.0),
        prompt_tokens=content.prompt_tokens,
        output_tokens=np.full(4, 4),
        content=content,
    )
    assert ideal_hits(work).tolist() == [0, 19, 6, 0]


@pytest.mark.parametrize("traffic", [PREFIXES, TURNS])
@pytest.mark.parametrize("factor", [1 - SWING, 1 + SWING])
def test_hits_move_by_what_they_should_and_nothing_else_does(
    traffic: dict[str, object], factor: float
) -> None:
    work = requests(**traffic)
    moved = scale_prefix_hits(work, factor)
    assert ideal_hits(moved).sum() == pytest.approx(factor * ideal_hits(work).sum(), rel=0.03)
    assert (moved.prompt_tokens == work.prompt_tokens).all()
    assert (moved.arrival_s == work.arrival_s).all()
    assert (moved.output_tokens == work.output_tokens).all()
    seen = [simulate(MODEL, gpu="h100", workload=w).run.prefix_cache_hit_fraction for w in (work, moved)]
    assert seen[0] is not None
    assert seen[1] == pytest.approx(factor * seen[0], rel=0.05)


def test_hits_are_never_beyond_the_prompts() -> None:
    work = requests(**PREFIXES)
    most = scale_prefix_hits(work, 100.0)
    assert (ideal_hits(most) <= work.prompt_tokens).all()
    assert ideal_hits(most).sum() > 1.5 * ideal_hits(work).sum()
