"""KV on its way from prefill to decode replicas: ports, payload, and blocks that it is loaded into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from capacity.simulator.kv_cache.content import Content
from capacity.simulator.transfer import KvLink, LoadBlockPool, Port, Transfers


class Alarms:
    """A clock that keeps what is to happen, for transfers without a simulation around them."""

    def __init__(self) -> None:
        self.due: list[tuple[int, Callable[[], None]]] = []

    def at(self, at_ps: int, act: Callable[[], None]) -> None:
        self.due.append((at_ps, act))

    def ring(self) -> None:
        for _, act in sorted(self.due, key=lambda alarm: alarm[0]):
            act()
        self.due.clear()


def test_transfers_pass_one_after_the_other() -> None:
    clock, arrived = Alarms(), []
    transfers = Transfers(KvLink(bytes_per_token=1.0, bytes_per_s=1.0, latency_s=0.5), clock.at)
    sender, first, second = Port(), Port(), Port()
    asked = [(2, 0, sender, first), (3, 0, sender, second), (1, 10**12, Port(), first)]
    ends = [transfers.begin(*each, arrived=arrived.append).end_ps for each in asked]
    assert ends == [2.5e12, 5.5e12, 3.5e12], "the sender is busy for 2 s, its latency overlaps"
    clock.ring()
    assert arrived == sorted(ends)
    assert (transfers.begun, transfers.arrived, transfers.aborted) == (3, 3, 0)


def test_who_waits_behind_an_aborted_transfer_moves_up() -> None:
    clock, arrived = Alarms(), []
    transfers = Transfers(KvLink(bytes_per_token=1.0, bytes_per_s=1.0), clock.at)
    port, other = Port(), Port()
    begun, waits, last = (
        transfers.begin(tokens, 0, port, other, arrived=arrived.append) for tokens in (4, 6, 2)
    )
    assert [t.end_ps for t in (begun, waits, last)] == [4e12, 10e12, 12e12]
    transfers.abort(waits, 10**12)
    assert [t.end_ps for t in (begun, last)] == [4e12, 6e12], "what is on its way keeps its ports"
    transfers.abort(begun, 2 * 10**12)
    assert last.end_ps == 4e12
    clock.ring()
    assert arrived == [4e12]
    assert (transfers.begun, transfers.arrived, transfers.aborted) == (3, 1, 2)


def test_layers_are_sent_while_the_next_ones_are_computed() -> None:
    """12 s of payload in 4 layers; computed from 0 to 20 s: the last layer's 3 s remain. From 15 to 20 s: 7 s of it."""
    link = KvLink(bytes_per_token=1.0, bytes_per_s=1.0, latency_s=0.5, layers=4)
    for begun_s, end_s in ((0, 23.5), (15, 27.5), (20, 32.5)):
        transfers = Transfers(link, Alarms().at)
        computed_ps = begun_s * 10**12, 20 * 10**12
        sent = transfers.begin(12, 20 * 10**12, Port(), arrived=print, computed_ps=computed_ps)
        assert sent.end_ps == end_s * 10**12
    late = Transfers(link, Alarms().at).begin(
        12, 60 * 10**12, Port(), arrived=print, computed_ps=(0, 20 * 10**12)
    )
    assert late.end_ps == 60 * 10**12  # it was there when it was asked for, and not before
    whole = Transfers(replace(link, layers=0), Alarms().at).begin(
        12, 20 * 10**12, Port(), arrived=print, computed_ps=(0, 20 * 10**12)
    )
    assert whole.end_ps == 32.5 * 10**12


def test_layers_of_two_requests_share_a_port() -> None:
    link = KvLink(bytes_per_token=1.0, bytes_per_s=1.0, layers=4)
    transfers, port = Transfers(link, Alarms().at), Port()
    second_ps = 10**12
    ends = [
        transfers.begin(
            12, 20 * second_ps, port, arrived=print, computed_ps=(begun_s * second_ps, 20 * second_ps)
        ).end_ps
        for begun_s in (0, 10)
    ]
    assert ends == [23 * second_ps, 35 * second_ps]


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
