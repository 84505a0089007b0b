"""SGLang's scheduler: hand-worked schedules."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_bench import Bench

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.schedulers import SchedulerLimits, Sequence, Step, make_policy
from capacity.simulator.schedulers.rules import rules_without
from capacity.simulator.schedulers.sglang import Sglang
from capacity.simulator.transfer import LoadBlockPool


def test_sglang_prefills_alone_before_anyone_decodes() -> None:
    bench = Bench("sglang")
    bench.add(6, 3)
    assert bench.run() == [(0, 6)]
    bench.add(5, 3)
    assert bench.run() == [(1, 5)]  # request 0 waits
    assert bench.run() == [(0, 1), (1, 1)]


def test_sglang_mixed_chunk_decodes_beside_a_prefill() -> None:
    bench = Bench("sglang", options={"mixed_chunk": True})
    bench.add(6, 3)
    bench.run()
    bench.add(5, 3)
    assert bench.run() == [(1, 5), (0, 1)]


def test_sglang_has_one_chunked_request_which_goes_on_first() -> None:
    bench = Bench("sglang")
    bench.add(10, 2)
    bench.add(22, 2)
    bench.add(3, 2)
    assert bench.run() == [(0, 10), (1, 4)]  # 6 left of 16: whole pages of 4 tokens
    assert bench.run() == [(1, 16)]
    assert bench.run() == [(1, 2), (2, 3)]
    assert bench.run() == [(0, 1), (1, 1), (2, 1)]


def test_sglang_forgets_a_chunked_request_whose_client_is_gone() -> None:
    bench = Bench("sglang")
    chunked = bench.add(22, 2)
    assert bench.run() == [(0, 16)]
    bench.policy.abort(chunked)
    assert (bench.policy.unfinished, bench.pool.free_blocks) == (0, bench.pool.num_blocks)
    bench.add(5, 2)
    assert bench.run() == [(1, 5)]


def test_sglang_mixed_who_starts_with_all_but_one_token_cached_takes_one_row() -> None:
    """A retracted request, of whose 9 tokens 8 are still cached, is prefilled: it decodes from the next step on."""
    pool = BlockPool(20, 4)
    limits = SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=16)
    policy = Sglang(limits, pool, mixed_chunk=True, asynchronous=False)
    sequences = [
        Sequence(i, id=i, arrival=0, prompt_tokens=7, max_known=13, priority=0, table=pool.table(Content(i)))
        for i in range(2)
    ]
    for sequence in sequences:
        policy.add(sequence)
    for _ in range(2):
        policy.update(policy.schedule(0))
    assert sequences[1].known == 9
    retracted = Step()
    policy.preempt(sequences[1], retracted)
    step = policy.schedule(0)
    assert [(row.sequence.index, row.tokens) for row in step.rows] == [(1, 1), (0, 1)]


def test_sglang_decode_engine_starts_loaded_requests_without_a_forward_pass() -> None:
    """Their rows compute no token and yield the first one; the others decode in the step that is decided next."""
    pool = LoadBlockPool(40, 4)
    policy = Sglang(SchedulerLimits(max_num_seqs=3, max_num_batched_tokens=16), pool)
    loaded = [
        Sequence(i, id=i, arrival=0, prompt_tokens=10, max_known=13, priority=0, table=pool.table(Content(i)))
        for i in range(4)
    ]
    steps = []
    for sequence in loaded:
        assert pool.load(sequence.table, sequence.prompt_tokens)
        policy.add_loaded(sequence)
        steps += [policy.schedule(0), policy.schedule(0)]
    rows = [[(row.sequence.index, row.tokens, row.yields) for row in step.rows] for step in steps]
    assert rows[:4] == [[(0, 0, True)], [(0, 1, True)], [(1, 0, True)], [(0, 1, True), (1, 1, True)]]
    assert rows[4:6] == [[(2, 0, True)], [(1, 1, True), (2, 1, True)]]
    assert [row[0] for row in rows[6]] == [2], "the fourth waits for a place among max_num_seqs"
    for step in steps:
        policy.update(step)
    assert [sequence.known for sequence in loaded] == [13, 13, 13, 10]
    assert [row.sequence.index for row in policy.schedule(0).rows] == [3]


def test_sglang_without_chunking_lets_a_long_prompt_exceed_the_cap_alone() -> None:
    bench = Bench("sglang", enable_chunked_prefill=False, options={"max_prefill_tokens": 16})
    bench.add(20, 2)
    bench.add(8, 2)
    assert bench.run() == [(0, 20)]
    assert bench.run() == [(1, 8)]


def test_sglang_admits_by_the_expected_need_of_the_outputs() -> None:
    """40 tokens of KV. A step later 32 are free, of which 0.7 x 7 are promised: 27.1 < 8 + 16 + a page of 4."""
    bench = Bench("sglang", blocks=10)
    bench.add(8, 8)
    bench.add(8, 16)
    assert bench.run() == [(0, 8)]
    assert bench.run() == [(0, 1)]


def test_sglang_new_token_ratio_decays_by_the_documented_steps() -> None:
    bench = Bench("sglang", blocks=1000)
    bench.add(4, 700)
    bench.run()
    policy: Any = bench.policy
    assert policy.new_token_ratio == 0.7
    bench.run()
    assert policy.new_token_ratio == pytest.approx(0.7 - 0.7 * 0.86 / 600)
    for _ in range(650):
        bench.run()
    assert policy.new_token_ratio == pytest.approx(0.7 * 0.14)


def test_sglang_retracts_who_produced_least_and_then_the_longer_prompt() -> None:
    """Three prompts fill six of eight blocks of 4 tokens; the decode that needs three more finds two."""
    bench = Bench("sglang", blocks=8, options={"conservativeness": 0.01})
    for prompt in (8, 8, 7):
        bench.add(prompt, 4)
        bench.run()
    while not any(r.preemptions for r in [*bench.policy.running, *bench.policy.waiting]):  # type: ignore[attr-defined]
        bench.run()
    retracted = bench.policy.waiting[0]  # type: ignore[attr-defined]
    others = bench.policy.running  # type: ignore[attr-defined]
    produced = retracted.known - retracted.prompt_tokens
    assert all(
        (r.known - r.prompt_tokens - 1, -r.prompt_tokens) >= (produced, -retracted.prompt_tokens)
        for r in others
    )
    assert bench.policy.new_token_ratio > 0.01  # type: ignore[attr-defined]


def test_sglang_longest_prefix_first() -> None:
    pool = BlockPool(100, 4)
    policy: Any = make_policy(
        "sglang",
        SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=64),
        pool,
        order="lpm",
        asynchronous=False,
    )

    def request(index: int, key: str) -> Sequence:
        return Sequence(
            index,
            id=index,
            arrival=0,
            prompt_tokens=17,
            max_known=19,
            priority=0,
            table=pool.table(Content(index, [key], [4])),
        )

    policy.add(request(0, "shared"))
    for _ in range(2):
        policy.update(policy.schedule(0))
    policy.add(request(1, "other"))
    policy.add(request(2, "shared"))
    rows = policy.schedule(0).rows
    assert [(row.sequence.index, row.tokens, row.cached) for row in rows] == [(2, 1, 16)]


def test_sglang_admits_by_what_clients_ask_for() -> None:
    """Prompts of 8 in 40 tokens of KV: outputs of 4 leave room for a second request, 40 that may come do not.

    A request needs prompt + max_tokens + a page below what is left, and less than 4,096 of a longer max_tokens.
    """
    started = {}
    for max_tokens in (4, 40):
        bench = Bench("sglang", blocks=15, max_num_batched_tokens=64)
        bench.add(8, 4, max_tokens=max_tokens)
        bench.add(8, 4, max_tokens=max_tokens)
        started[max_tokens] = [request for request, _ in bench.run()]
    assert started == {4: [0, 1], 40: [0]}


def test_sglang_reserves_no_more_than_its_clip_of_what_clients_ask_for() -> None:
    bench = Bench("sglang", blocks=1100, max_num_batched_tokens=64)
    bench.add(8, 4, max_tokens=1 << 20)
    assert bench.run() == [(0, 8)]
    assert bench.policy._promised_tokens() == pytest.approx(0.7 * 4096)  # type: ignore[attr-defined]


def test_sglang_receives_every_so_many_decode_steps_and_after_a_prefill() -> None:
    """Requests that come while others decode are seen after three of their steps; those behind a prefill at once."""
    bench = Bench("sglang", options={"recv_interval": 3})
    bench.add(6, 20)
    assert bench.run() == [(0, 6)]  # an idle engine looks at once
    bench.add(5, 20)
    assert bench.run() == [(1, 5)]  # the step before was a prefill
    both = [(0, 1), (1, 1)]
    assert bench.run() == both  # looked, after a prefill: nothing was there
    bench.add(4, 20)
    bench.add(3, 20)
    assert [bench.run() for _ in range(3)] == [both, both, [(2, 4), (3, 3)]]


def test_sglang_an_idle_engine_receives_at_once() -> None:
    bench = Bench("sglang", options={"recv_interval": 100})
    bench.add(6, 2)
    assert [bench.run() for _ in range(2)] == [[(0, 6)], [(0, 1)]]
    assert bench.policy.unfinished == 0
    bench.add(5, 2)
    assert bench.run() == [(1, 5)]


def test_sglang_forgets_a_request_that_it_has_not_received() -> None:
    bench = Bench("sglang", options={"recv_interval": 4})
    bench.add(6, 20)
    bench.run()
    bench.run()
    gone, stays = bench.add(5, 9), bench.add(4, 9)
    bench.policy.abort(gone)
    assert [bench.run() for _ in range(4)] == [[(0, 1)]] * 3 + [[(stays.index, 4)]]


def test_sglang_refuses_an_interval_below_one_step() -> None:
    with pytest.raises(InvalidInput, match="recv_interval is 0"):
        Bench("sglang", options={"recv_interval": 0})


def test_sglang_request_that_does_not_fit_stops_admissions_until_one_ends() -> None:
    """4 + 16 tokens and a page are more than 396 - 0.98 x 384 = 20. A lower ratio makes room, but request 1 waits."""
    bench = Bench("sglang", blocks=100, options={"conservativeness": 1.4})
    first = bench.add(4, 60, max_tokens=384)
    bench.run()
    bench.add(4, 2, max_tokens=16)
    assert bench.run() == [(0, 1)]
    policy: Any = bench.policy
    policy.new_token_ratio = 0.1  # now it would fit
    rows = [bench.run() for _ in range(70)]
    assert rows.index([(1, 4)]) == 58
    assert first.known == 64


def test_sglang_retracted_request_waits_behind_others() -> None:
    bench = Bench("sglang", blocks=8, options={"conservativeness": 0.01})
    for prompt in (8, 8, 7):
        bench.add(prompt, 4)
        bench.run()
    waiting = bench.add(9, 3, max_tokens=30)
    while not any(r.preemptions for r in bench.policy.waiting):  # type: ignore[attr-defined]
        assert bench.run()
    assert bench.policy.waiting[0] is waiting  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rule", "started", "without"),
    [
        # 15 blocks of 4; 8 + 8 tokens and a page of the first, then 8 + 20 of 60 - 8 - 12 = 40 or 60 - 8 - 8 = 44
        ("reserves_page", [0], [0, 1]),
        ("admits_with_page", [0], [0, 1]),
        ("chunks_past_prefill_limit", [0, 1], [0]),
    ],
)
def test_sglang_rules_of_older_releases(rule: str, started: list[int], without: list[int]) -> None:
    second = {"reserves_page": (8, 30), "admits_with_page": (8, 30), "chunks_past_prefill_limit": (40, 1)}[
        rule
    ]
    found = []
    for names in ((), (rule,)):
        blocks = 100 if rule == "chunks_past_prefill_limit" else 15
        options = {"max_prefill_tokens": 32} if blocks == 100 else {}
        bench = Bench(
            "sglang", blocks=blocks, max_num_batched_tokens=64, rules=rules_without(names), options=options
        )
        bench.add(8, 8)
        bench.add(*second)
        found.append([request for request, _ in bench.run()])
    assert found == [started, without]


@pytest.mark.parametrize(("names", "third"), [((), [(1, 8)]), (("spent_step_ends",), [(0, 1)])])
def test_sglang_last_chunk_that_spends_the_budget_ends_the_step(
    names: tuple[str, ...], third: list[tuple[int, int]]
) -> None:
    """80 tokens of KV: 24 are left after 32 tokens and a reserve of 24, too few for 8 + 16 + a page of 4.

    A step later the first request reserves only 0.7 x 19, so the second fits, unless admissions were stopped.
    """
    bench = Bench("sglang", blocks=20, max_num_batched_tokens=16, rules=rules_without(names))
    bench.add(32, 20)
    bench.add(8, 16)
    assert [bench.run() for _ in range(3)] == [[(0, 16)], [(0, 16)], third]


@pytest.mark.parametrize("names", [(), ("spent_step_ends",)])
def test_sglang_last_chunk_that_leaves_no_memory_stops_admissions(names: tuple[str, ...]) -> None:
    """56 tokens of KV: 24 are left after eight blocks, all of them reserved. A step later there would be room."""
    bench = Bench("sglang", blocks=14, max_num_batched_tokens=16, rules=rules_without(names))
    bench.add(29, 20)
    bench.add(1, 1)
    assert [bench.run() for _ in range(3)] == [[(0, 16)], [(0, 13)], [(0, 1)]]


@pytest.mark.parametrize(
    ("prompt", "output", "missing", "started"),
    [
        # a request reserves 2 + 1 tokens and a page of 50: 12 fit (4 < 50 - 4 x 11)
        (2, 1, (), 12),
        # before, at least a window of 8 and a page: 5 fit (9 < 50 - 9 x 4)
        (2, 1, ("budgets_window_outputs",), 5),
        # 12 - 8 tokens of the chunk before the window, the window, a page: 3 fit (13 < 50 - 13 x 2)
        (12, 20, (), 3),
        # before, the smaller pool needs room for the second prompt, both outputs and pages: 33 >= 50 - 12 - 21
        (12, 20, ("budgets_windows_apart",), 1),
    ],
)
def test_sglang_starts_requests_that_fit_in_the_pool_of_windows(
    prompt: int, output: int, missing: tuple[str, ...], started: int
) -> None:
    bench = Bench("sglang", **windowed(0.05, missing))
    for _ in range(20):
        bench.add(prompt, output)
    assert bench.run() == [(index, prompt) for index in range(started)]


def windowed(share: float, missing: tuple[str, ...] = ()) -> dict[str, Any]:
    """1,000 tokens of KV, and a pool of windows of 8 tokens with this share of them."""
    options = {"window": 8, "window_share": share}
    limits = {"max_num_seqs": 20, "max_num_batched_tokens": 64, "rules": rules_without(missing)}
    return {"blocks": 1000, "block_size": 1, "options": options, **limits}


def test_sglang_retracts_a_request_when_windows_and_outputs_fill_their_pool() -> None:
    bench = Bench("sglang", **windowed(0.03))
    for _ in range(2):
        bench.add(8, 60)
    steps = [bench.run() for _ in range(9)]
    # two windows of 8 and two outputs of 7 fill 30 tokens
    assert steps[0] == [(0, 8), (1, 8)]
    assert steps[1:] == [*[[(0, 1), (1, 1)]] * 7, [(0, 1)]]


@pytest.mark.parametrize(("missing", "second"), [((), [(1, 30)]), (("locks_windows_only",), [(0, 1)])])
def test_sglang_keeps_only_the_window_of_a_prompt_since_0_5_12(
    missing: tuple[str, ...], second: list[tuple[int, int]]
) -> None:
    bench = Bench("sglang", **windowed(0.06, missing))
    for _ in range(2):
        bench.add(30, 20)
        if bench.count == 1:
            assert [bench.run(), bench.run()] == [[(0, 30)], [(0, 1)]]
    assert bench.run() == second  # it needs 31 of 60 tokens, and the first keeps 8 or 30 and an output


@pytest.mark.parametrize(
    ("prompt", "missing", "first"), [(200, (), 136), (60, (), 76), (200, ("frees_windows_by_128",), 16)]
)
def test_sglang_frees_outputs_behind_the_window_at_intervals(
    prompt: int, missing: tuple[str, ...], first: int
) -> None:
    """The first output tokens are freed when 128 tokens (before: a window) are behind the window of 8."""
    policy = Sglang(
        SchedulerLimits(rules=rules_without(missing)), BlockPool(1000, 1), window=8, window_share=0.8
    )
    r = Sequence(
        0,
        id=0,
        arrival=0,
        prompt_tokens=prompt,
        max_known=900,
        asked_known=900,
        priority=0,
        table=policy.pool.table(Content(0)),
    )
    kept = []
    for outputs in range(1, first + 1):
        r.computed, r.in_flight_tokens = prompt + outputs, 1
        kept.append(policy._kept_in_windows(r))
    assert kept == [*range(9, 8 + first), 16]


def test_sglang_gives_smaller_chunks_to_a_prompt_that_never_fits_in_the_pool_of_windows() -> None:
    bench = Bench("sglang", **windowed(0.03))
    bench.add(64, 10)
    # 64 - 8 + 8 and a page never fit in 30: 30 - 8 and a page are left for the first chunk
    assert bench.run() == [(0, 21)]
