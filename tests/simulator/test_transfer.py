"""KV on its way from prefill to decode replicas: ports, payload, and blocks that it is loaded into."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simpy

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.transfer import KvLink, LoadBlockPool, Port, Transfer, Transfers


def make_transfers(link: KvLink) -> tuple[simpy.Environment, Transfers, list[int]]:
    """Transfers on a clock of their own, and when they have arrived."""
    env, arrived = simpy.Environment(initial_time=0), list[int]()
    return env, Transfers(env, link, lambda _, at_ps: arrived.append(at_ps)), arrived


def test_transfers_pass_one_after_the_other() -> None:
    env, transfers, arrived = make_transfers(KvLink(bytes_per_token=1.0, bytes_per_s=1.0, latency_s=0.5))
    sender, first, second = Port(), Port(), Port()
    asked = [(2, 0, (sender, first)), (3, 0, (sender, second)), (1, 10**12, (Port(), first))]
    ends = [transfers.begin(Transfer(tokens, ports), now_ps) for tokens, now_ps, ports in asked]
    assert ends == [2.5e12, 5.5e12, 3.5e12], "the sender is busy for 2 s, its latency overlaps"
    env.run()
    assert arrived == sorted(ends)
    assert (transfers.begun, transfers.arrived, transfers.aborted) == (3, 3, 0)


def test_transfer_that_ends_beyond_simulated_time_is_refused() -> None:
    _, transfers, _ = make_transfers(KvLink(bytes_per_token=1.0, bytes_per_s=1e-6))
    ports = Port(), Port()
    assert transfers.begin(Transfer(1, ports), 0) == 10**18
    with pytest.raises(
        InvalidInput, match=r"arrives after 2e[+]06 s at 1e-06 bytes/s, but .* --kv-transfer-bytes-per-s"
    ):
        transfers.begin(Transfer(1, ports), 0)


def test_who_waits_behind_an_aborted_transfer_moves_up() -> None:
    env, transfers, arrived = make_transfers(KvLink(bytes_per_token=1.0, bytes_per_s=1.0))
    ports = Port(), Port()
    begun, waits, last = (Transfer(tokens, ports) for tokens in (4, 6, 2))
    assert [transfers.begin(each, 0) for each in (begun, waits, last)] == [4e12, 10e12, 12e12]
    env.run(until=10**12)
    transfers.abort(waits, 10**12)
    assert [t.end_ps for t in (begun, last)] == [4e12, 6e12], "what is on its way keeps its ports"
    env.run(until=2 * 10**12)
    transfers.abort(begun, 2 * 10**12)
    assert last.end_ps == 4e12
    env.run()
    assert arrived == [4e12]
    assert (transfers.begun, transfers.arrived, transfers.aborted) == (3, 1, 2)


def test_layers_are_sent_while_the_next_ones_are_computed() -> None:
    """12 s of payload in 4 layers; computed from 0 to 20 s: the last layer's 3 s remain. From 15 to 20 s: 7 s of it."""
    link = KvLink(bytes_per_token=1.0, bytes_per_s=1.0, latency_s=0.5, layers=4)

    def end_of(link: KvLink, begun_s: int, now_s: int) -> float:
        transfer = Transfer(12, (Port(),), (begun_s * 10**12, 20 * 10**12))
        return make_transfers(link)[1].begin(transfer, now_s * 10**12) / 1e12

    assert [end_of(link, begun_s, 20) for begun_s in (0, 15, 20)] == [23.5, 27.5, 32.5]
    assert end_of(link, 0, 60) == 60.0, "it was there when it was asked for, and not before"
    assert end_of(replace(link, layers=0), 0, 20) == 32.5


def test_layers_of_two_requests_share_a_port() -> None:
    _, transfers, _ = make_transfers(KvLink(bytes_per_token=1.0, bytes_per_s=1.0, layers=4))
    port, second_ps = Port(), 10**12
    both = [Transfer(12, (port,), (begun_s * second_ps, 20 * second_ps)) for begun_s in (0, 10)]
    assert [transfers.begin(each, 20 * second_ps) for each in both] == [23 * second_ps, 35 * second_ps]


def test_what_a_transfer_carries() -> None:
    link = KvLink(
        bytes_per_token=10.0,
        bytes_per_s=1e3,
        window_bytes_per_token=5.0,
        window_tokens=100,
        bytes_per_request=50.0,
    )
    assert link.payload_ps(40) == (400 + 200 + 50) * 10**9
    assert link.payload_ps(400) == (4000 + 500 + 50) * 10**9


def test_loaded_blocks_are_given_back() -> None:
    pool = LoadBlockPool(20, 4)
    table = pool.table(Content("a"))
    assert pool.load(table, 10)
    assert pool.free_blocks == 17
    assert pool.lookup(table, 9) == (9, ([],))
    pool.grow(table, 10, pool.lookup(table, 9))
    pool.cache(table, 10)
    pool.release(table)
    assert pool.free_blocks == 20
    again = pool.table(Content("a"))
    assert pool.lookup(again, 10)[0] == 8
    assert not pool.load(pool.table(Content("b")), 100)


def test_of_windowed_layers_only_the_window_is_loaded() -> None:
    """100 tokens in blocks of 4: 25 blocks of full attention; of a window of 10, those of the last 10 tokens."""
    pool = LoadBlockPool(60, 4, windows=(None, 10), max_model_len=1000, in_flight_tokens=50)
    table = pool.table(Content("a"))
    assert pool.load(table, 100)
    assert pool.free_blocks == 60 - 25 - 3
    assert pool.lookup(table, 99) == (99, ([], []))
    pool.grow(table, 100, pool.lookup(table, 99))
    pool.cache(table, 100)
    pool.leave_window(table, 99)
    assert pool.free_blocks == 60 - 25 - 3, "the last token looks back on all of them"
    assert not pool.load(pool.table(Content("b")), 120), "30 and 3 more are not free"
    pool.release(table)
    assert pool.free_blocks == 60
    again = pool.table(Content("a"))
    assert pool.lookup(again, 100)[0] == 100, "what was loaded can be hit"
    assert pool.load(again, 100)
    assert pool.free_blocks == 60 - 28


def test_prompts_shorter_than_the_window_are_loaded_whole() -> None:
    """5 tokens in blocks of one token, for full attention and for a window of 10."""
    pool = LoadBlockPool(20, 1, windows=(None, 10), max_model_len=100, in_flight_tokens=5)
    assert pool.load(pool.table(Content("a")), 5)
    assert pool.free_blocks == 20 - 5 - 5


def test_a_link_of_no_bytes_per_second_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be above 0 bytes/s, not 0"):
        KvLink(bytes_per_token=1.0, bytes_per_s=0.0)
