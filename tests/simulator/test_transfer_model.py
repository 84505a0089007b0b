"""KV transfers compared with a plain model of ports, and blocks for loaded KV counted by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import simpy

from capacity.base.clock import LATEST_S
from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.contiguous_pool import ContiguousPool
from capacity.simulator.kv_cache.pool import PagedPool
from capacity.simulator.transfer import KvLink, LoadBlockPool, Port, Transfer, Transfers, allocate_computed
from capacity.step import PS_PER_S


def make_ps_link(latency_ps: int = 0, layers: int = 0) -> KvLink:
    """Return a link that sends one token per picosecond."""
    return KvLink(bytes_per_token=1.0, bytes_per_s=PS_PER_S, latency_s=latency_ps / PS_PER_S, layers=layers)


@dataclass(eq=False)
class PlainTransfer:
    """A transfer of the model, over the ports with these numbers."""

    tokens: int
    ports: set[int]
    computed: tuple[int, int]
    begin: int = 0
    sent: int = 0
    end: int = 0


@dataclass
class PlainLinks:
    """Each port does one thing at a time, in the order in which the transfers are requested."""

    latency: int
    layers: int
    busy: list[PlainTransfer] = field(default_factory=list)  # active, waiting or arrived
    freed: dict[int, int] = field(default_factory=dict)  # time of the last abort, by port

    def begin(self, new: PlainTransfer, now: int) -> int:
        used = [other.sent for other in self.busy if other.ports & new.ports]
        freed = [at for port, at in self.freed.items() if port in new.ports]
        new.begin = max([new.computed[0] if self.layers else now, *used, *freed])
        new.sent = new.begin + new.tokens
        if self.layers:
            new.sent = max(new.sent, new.computed[1] + math.ceil(new.tokens / self.layers))
        new.end = max(new.sent + self.latency, now)
        self.busy.append(new)
        return new.end

    def abort(self, gone: PlainTransfer, now: int) -> None:
        waiting = [other for other in self.busy if other.begin > now and other is not gone]
        ports = set().union(gone.ports, *(other.ports for other in waiting))
        self.busy = [other for other in self.busy if other is not gone and other not in waiting]
        self.freed |= dict.fromkeys(ports, now)
        for other in waiting:
            self.begin(other, now)

    def active(self, now: int) -> list[PlainTransfer]:
        return [each for each in self.busy if each.end >= now]


@pytest.mark.parametrize("layers", [0, 3])
def test_transfers_equal_a_plain_model_of_ports(layers: int) -> None:
    """Random transfers and aborts; after each, the times of all active and waiting transfers are equal."""
    for seed in range(60):
        rng = random.Random(seed)
        latency = rng.choice((0, 0, 7, 40))
        env, arrived = simpy.Environment(initial_time=0), list[tuple[Transfer, int]]()
        transfers = Transfers(
            env, make_ps_link(latency, layers), lambda each, at_ps, to=arrived: to.append((each, at_ps))
        )
        model, ports, pairs = PlainLinks(latency, layers), [Port() for _ in range(4)], {}
        now = aborted = 0
        for _ in range(30):
            now += rng.randint(1, 30)
            env.run(until=now)
            active = model.active(now)
            if active and rng.random() < 0.3:
                gone = rng.choice(active)
                transfers.abort(pairs.pop(gone), now)
                model.abort(gone, now)
                aborted += 1
            else:
                done = now - rng.randint(0, 40)
                computed = (max(done - rng.randint(0, 40), 0), max(done, 0))
                plain = PlainTransfer(rng.randint(1, 60), set(rng.sample(range(4), 2)), computed)
                pairs[plain] = Transfer(plain.tokens, [ports[port] for port in plain.ports], computed)
                assert transfers.begin(pairs[plain], now) == model.begin(plain, now)
            assert [(pairs[each].begin_ps, pairs[each].end_ps) for each in model.busy] == [
                (each.begin, each.end) for each in model.busy
            ]
            assert transfers.under_way == len(model.active(now))
            assert transfers.begun == transfers.arrived + transfers.aborted + transfers.under_way
        env.run()
        assert sorted(at_ps for _, at_ps in arrived) == sorted(each.end for each in model.busy)
        assert {each for each, _ in arrived} == set(pairs.values())
        assert (transfers.arrived, transfers.aborted) == (len(model.busy), aborted)
        assert transfers.under_way == 0


def test_a_transfer_may_end_at_the_last_simulated_time() -> None:
    link = KvLink(bytes_per_token=1.0, bytes_per_s=1.0)
    latest = Transfers(simpy.Environment(initial_time=0), link, lambda *_: None)
    assert latest.begin(Transfer(int(LATEST_S), [Port()]), 0) == int(LATEST_S) * PS_PER_S
    with pytest.raises(InvalidInput, match="simulated time ends at"):
        latest.begin(Transfer(int(LATEST_S), [Port()]), 1)


@pytest.mark.parametrize("latency_s", [-1e-12, math.inf, math.nan])
def test_latency_that_is_no_time_is_rejected(latency_s: float) -> None:
    with pytest.raises(InvalidInput, match="latency must be finite and at least 0 s"):
        KvLink(bytes_per_token=1.0, bytes_per_s=1.0, latency_s=latency_s)


def test_payload_is_the_bytes_over_the_rate() -> None:
    plain = KvLink(bytes_per_token=2.0, bytes_per_s=1e12)
    assert [plain.payload_ps(tokens) for tokens in (0, 1, 7)] == [0, 2, 14]
    assert KvLink(bytes_per_token=2.0, bytes_per_s=math.inf).payload_ps(7) == 0
    assert KvLink(bytes_per_token=2.0, bytes_per_s=0.5).payload_ps(1) == 4 * PS_PER_S


@pytest.mark.parametrize(("layers", "last_ps"), [(0, 10), (1, 10), (2, 5), (3, 4), (4, 3), (10, 1), (20, 1)])
def test_the_last_layer_is_its_part_of_the_payload_rounded_up(layers: int, last_ps: int) -> None:
    assert make_ps_link(layers=layers).last_layer_ps(10) == last_ps


def blocks_of(tokens: int, window: int | None, block_size: int) -> int:
    """Count the blocks that have one of the last `window` tokens, or of all tokens without a window."""
    first = 0 if window is None else max(0, tokens - window)
    return len({token // block_size for token in range(first, tokens)})


@pytest.mark.parametrize("windows", [(None,), (None, 5), (None, 8, 3), (6,), (1,)])
@pytest.mark.parametrize("tokens", [1, 3, 4, 8, 9, 12, 13, 40, 41])
def test_loading_takes_exactly_the_blocks_that_later_tokens_attend_to(
    windows: tuple[int | None, ...], tokens: int
) -> None:
    needed = sum(blocks_of(tokens, window, 4) for window in windows)
    small = LoadBlockPool(needed - 1, 4, windows=windows)
    assert not small.load(small.table(Content("a")), tokens)
    assert small.free_blocks == needed - 1
    pool = LoadBlockPool(needed, 4, windows=windows)
    table = pool.table(Content("a"))
    assert pool.load(table, tokens)
    assert (pool.free_blocks, pool.held_blocks(table)) == (0, needed)
    no_hits = tuple([] for _ in windows)
    assert [pool.lookup(table, most) for most in (tokens - 1, tokens, tokens + 9)] == [
        (tokens - 1, no_hits), (tokens, no_hits), (tokens, no_hits)
    ]  # fmt: skip
    pool.grow(table, tokens, pool.lookup(table, tokens - 1))
    pool.leave_window(table, tokens - 1)
    assert pool.held_blocks(table) == needed, "the next token attends to all of them"
    pool.release(table)
    assert (pool.free_blocks, table.loaded) == (needed, 0)


def test_loading_shares_cached_blocks_and_counts_those_that_are_free() -> None:
    """10 tokens are 2 full blocks, which are cached, and a partial one."""
    pool = LoadBlockPool(7, 4)
    first, second = (pool.table(Content(name, ("prefix",), (2,))) for name in "ab")
    assert pool.load(first, 10)
    pool.cache(first, 10)
    assert pool.free_blocks == 4
    assert pool.load(second, 10)
    assert pool.free_blocks == 3, "two blocks are shared"
    pool.release(first)
    pool.release(second)
    assert pool.free_blocks == 7
    other = pool.table(Content("c"))
    assert pool.load(other, 17)
    assert not pool.load(pool.table(Content("d", ("prefix",), (2,))), 10), (
        "the cached blocks are 2 of the 2 free"
    )
    pool.release(other)
    assert pool.load(other, 16)
    assert pool.load(pool.table(Content("d", ("prefix",), (2,))), 10)
    assert pool.free_blocks == 0


def test_a_prompt_shorter_than_the_window_shares_all_its_cached_blocks() -> None:
    """In each of two groups, 10 tokens are 2 cached blocks and a partial one."""
    pool = LoadBlockPool(8, 4, windows=(None, 100))
    first, second = (pool.table(Content(name, ("prefix",), (2,))) for name in "ab")
    assert pool.load(first, 10)
    pool.cache(first, 10)
    assert pool.load(second, 10)
    assert [len(blocks) for blocks in second.blocks] == [3, 3]
    assert [blocks[:2] for blocks in second.blocks] == [blocks[:2] for blocks in first.blocks]
    assert pool.free_blocks == 0
    assert second.passed == [0, 0]


def test_a_request_that_was_not_loaded_takes_its_hits() -> None:
    pool = LoadBlockPool(6, 4)
    first, second = (pool.table(Content(name, ("prefix",), (2,))) for name in "ab")
    pool.grow(first, 10, pool.lookup(first, 9))
    pool.cache(first, 10)
    hit = pool.lookup(second, 9)
    assert hit == (8, (first.blocks[0][:2],))
    pool.grow(second, 10, hit)
    assert (second.blocks[0][:2], pool.free_blocks) == (first.blocks[0][:2], 2)


@pytest.mark.parametrize(
    "make_pool",
    [lambda blocks: BlockPool(blocks, 4), lambda blocks: ContiguousPool(blocks, 4, reserved_tokens=9)],
)
def test_computed_kv_is_allocated_in_any_pool_if_it_fits(make_pool: Callable[[int], PagedPool]) -> None:
    small, pool = make_pool(2), make_pool(3)
    table = small.table(Content("a"))
    assert not allocate_computed(small, table, 9, small.lookup(table, 9))
    assert small.free_blocks == 2
    table = pool.table(Content("a"))
    assert allocate_computed(pool, table, 9, pool.lookup(table, 9))
    assert (pool.free_blocks, pool.held_blocks(table)) == (0, 3)
