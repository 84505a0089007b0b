"""TGI's scheduler: hand-worked schedules."""

from __future__ import annotations

from scheduler_bench import Bench


def test_tgi_takes_all_blocks_at_the_start() -> None:
    bench = Bench("tgi", blocks=10, enable_chunked_prefill=False)
    bench.add(8, 12)
    bench.add(8, 16)
    assert bench.run() == [(0, 8)]
    assert bench.pool.free_blocks == 5


def test_tgi_joins_when_enough_wait_or_after_so_many_decode_steps() -> None:
    """Ten run, ratio 0.3: three must wait; one alone joins after 4 decode steps."""
    options = {"max_waiting_steps": 4}
    bench = Bench(
        "tgi",
        blocks=1000,
        max_num_seqs=64,
        max_num_batched_tokens=64,
        enable_chunked_prefill=False,
        options=options,
    )
    for _ in range(10):
        bench.add(4, 40)
    assert len(bench.run()) == 10
    bench.add(4, 40)
    assert [len(bench.run()) for _ in range(5)] == [10, 10, 10, 10, 1]
    bench.add(4, 40)
    assert [len(bench.run()) for _ in range(5)] == [11, 11, 11, 11, 1]
    for _ in range(3):
        bench.add(4, 40)
    assert bench.run() == [(12, 4), (13, 4), (14, 4)]


def test_tgi_takes_the_blocks_of_what_a_client_asks_for() -> None:
    """Prompt 8, output 12: 19 slots are 5 blocks of 4; allowed 20 tokens, 27 slots are 7."""
    bench = Bench("tgi", blocks=10, enable_chunked_prefill=False)
    bench.add(8, 12, max_tokens=20)
    bench.run()
    assert bench.pool.free_blocks == 3
    for _ in range(11):
        bench.run()
    assert bench.pool.free_blocks == 10  # the answer ended at its 12th token, and gave back all
