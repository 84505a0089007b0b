"""What an answer hangs on: each input moves alone, by what it says, and the way that it must."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from capacity import cost, simulate, tornado
from capacity.answers.engine_setup import make_workload
from capacity.deployment import Pool, Traffic
from capacity.planning.hits import ideal_hits, with_hits
from capacity.planning.saturated import full_load
from capacity.planning.tornado import SWING, Tornado, with_acceptance, with_outputs, with_prompts
from capacity.pool.drafting import find_speculator
from capacity.pool.resolve import resolve
from capacity.workload import Workload
from capacity.workload.content import PromptContent

MODEL = "llama-3.1-8b"
PREFIXES = {"input_len": 300, "random_prefix_len": 300, "num_prefixes": 5}
TURNS = {"input_len": 200, "turns": "4"}


def requests(**traffic: object) -> Workload:
    asked = {"output_len": 40, "request_rate": 4.0, "num_prompts": 300, **traffic}
    return make_workload(Traffic(**asked))  # type: ignore[arg-type]


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
    moved = with_hits(work, factor)
    assert ideal_hits(moved).sum() == pytest.approx(factor * ideal_hits(work).sum(), rel=0.03)
    assert (moved.prompt_tokens == work.prompt_tokens).all()
    assert (moved.arrival_s == work.arrival_s).all()
    assert (moved.output_tokens == work.output_tokens).all()
    seen = [simulate(MODEL, gpu="h100", workload=w).run.prefix_cache_hit_fraction for w in (work, moved)]
    assert seen[0] is not None
    assert seen[1] == pytest.approx(factor * seen[0], rel=0.05)


def test_hits_are_never_beyond_the_prompts() -> None:
    work = requests(**PREFIXES)
    most = with_hits(work, 100.0)
    assert (ideal_hits(most) <= work.prompt_tokens).all()
    assert ideal_hits(most).sum() > 1.5 * ideal_hits(work).sum()


def test_longer_prompts_share_as_large_a_part() -> None:
    work = requests(**PREFIXES)
    longer = with_prompts(work, 1.2)
    assert longer.prompt_tokens.mean() == pytest.approx(1.2 * work.prompt_tokens.mean(), rel=0.01)
    shares = [ideal_hits(w).sum() / w.prompt_tokens.sum() for w in (work, longer)]
    assert shares[1] == pytest.approx(shares[0], rel=0.01)
    assert with_outputs(work, 0.5).output_tokens.mean() == pytest.approx(20, rel=0.01)


def test_acceptance_moves_alone() -> None:
    pool = resolve(MODEL, Pool(gpu="h100", speculator="eagle3"))
    low, high = (with_acceptance(pool, factor).pool.acceptance for factor in (0.8, 1.2))
    eagle = find_speculator("eagle3")
    k = eagle.draft_tokens
    tokens = [eagle.accepting(text).tokens_per_round(k) for text in (low or "", high or "")]
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
    for name in ("prefix-cache hit rate", "acceptance of drafts"):
        low, high = found[name]
        assert low is not None
        assert high is not None
        assert low > high, name
    assert found["price of a GPU-hour"] == (0.0, 0.0)
    price = next(swing for swing in answer.swings if swing.input == "price of a GPU-hour")
    assert price.cost_change == pytest.approx((-SWING, SWING))
    spans = [swing.span for swing in answer.swings]
    assert spans == sorted(spans, reverse=True)


def test_what_is_not_varied_is_said() -> None:
    answer = tornado(MODEL, gpu="h100", input_len=100, output_len=10, concurrency=4, num_prompts=40)
    assert {text.partition(" (")[0] for text in answer.not_varied} == {
        "prefix-cache hit rate",
        "acceptance of drafts",
        "request rate",
        "price of a GPU-hour",
    }
    off = tornado(
        MODEL, gpu="h100", enable_prefix_caching=False, workload=requests(**PREFIXES, num_prompts=50)
    )
    assert any("cache is off" in text for text in off.not_varied)
    assert "prefix-cache hit rate" not in bars(off)


@pytest.mark.parametrize("speculator", [None, "eagle3", "ngram"])
def test_full_load_is_what_a_full_closed_loop_serves(speculator: str | None) -> None:
    """Of lengths that vary: equal ones keep step. The run also drains, for about a tenth of its time."""
    pool = {"gpu": "h100", "max_num_seqs": 64, "speculator": speculator}
    load = {"input_len": 300, "output_len": 60, "concurrency": 64, "length_distribution": "gamma"}
    run = simulate(MODEL, **pool, **load, num_prompts=1500).run.to_dict()
    tokens = run["total_output_tokens"] / run["completed"]
    bill = cost(
        MODEL,
        **pool,
        price="2",
        input_len=round(run["total_input_tokens"] / run["completed"]),
        output_len=round(tokens),
    )
    assert 0.85 < run["request_throughput"] / bill.full.requests_per_s < 1.15


def test_full_load_of_data_parallel_ranks() -> None:
    one, two = (
        full_load(resolve(MODEL, Pool(gpu="h100", data_parallel_size=ranks)), (500.0, 100.0), 1)
        for ranks in (1, 2)
    )
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s)
    experts = resolve("qwen3-30b-a3b", Pool(gpu="h100", data_parallel_size=2, enable_expert_parallel=True))
    both = full_load(experts, (500.0, 100.0), 1)
    assert both.requests_per_s == pytest.approx(full_load(experts, (500.0, 100.0), 2).requests_per_s / 2)
    assert dataclasses.asdict(both)["prefill_share"] < 1
