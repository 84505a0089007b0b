"""The core's pools answer as Python's block pool does, whatever is done to both."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import capacity.simulator
from capacity.simulator.core import build
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.contiguous_pool import ContiguousPool
from capacity.simulator.transfer import LoadBlockPool, allocate_computed

CORE = Path(capacity.simulator.__file__).parent / "core"
SOURCES = ("memory.c", "runs.c", "run_pool.c", "block_pool.c", "contiguous_pool.c")

RUN_POOL, BLOCK_POOL, CONTIGUOUS_POOL = range(3)
OPEN, LOOKUP, BLOCKS_NEEDED, GROW, CACHE, LEAVE_WINDOW, RELEASE, HELD_BLOCKS, LOAD, HOLD_COMPUTED = range(10)
FREE_BLOCKS, TAKE, FINISH, SET_HELD = range(10, 14)


class CoreContents(ctypes.Structure):
    _fields_ = (
        ("offsets", ctypes.POINTER(ctypes.c_int64)),
        ("keys", ctypes.POINTER(ctypes.c_int64)),
        ("stops", ctypes.POINTER(ctypes.c_int64)),
        ("num_keys", ctypes.c_int64),
    )


def compile_pools(folder: Path, *flags: str) -> Path:
    sources = [*(CORE / name for name in SOURCES), Path(__file__).parent / "pools.c"]
    target = folder / build.library_name()
    build.compile_library(sources, target, [*build.FLAGS, f"-I{CORE}", *flags])
    return target


def load_pools(library: Path) -> ctypes.CDLL:
    core = ctypes.CDLL(str(library))
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    numbers = ctypes.POINTER(i64)
    core.pools_new.argtypes = (numbers, numbers, ctypes.POINTER(CoreContents))
    core.pools_new.restype = pointer
    core.pools_free.argtypes = (pointer,)
    core.pools_free.restype = None
    core.pools_do.argtypes = (pointer, i64, i64, i64, i64, i64)
    core.pools_do.restype = i64
    core.pools_serve.argtypes = (pointer, i64, i64, i64, i64, i64)
    core.pools_serve.restype = None
    return core


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if build.working_compiler() is None:
        pytest.skip("no C compiler")
    return load_pools(compile_pools(tmp_path_factory.mktemp("pools")))


def ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


Chain = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pool and the contents of its requests."""

    num_blocks: int
    block_size: int = 4
    caching: bool = True
    windows: tuple[int | None, ...] = (None,)
    max_model_len: int = 1 << 40
    batched_tokens: int = 64
    chains: tuple[Chain, ...] = ()
    contiguous_blocks: int = 0

    @property
    def num_keys(self) -> int:
        return 1 + max((key for keys, _ in self.chains for key in keys), default=-1)


class CorePool:
    """A pool of the core, and its tables by number."""

    def __init__(self, core: ctypes.CDLL, kind: int, case: Case, num_tables: int) -> None:
        self._core = core
        offsets = [0]
        for keys, _ in case.chains:
            offsets.append(offsets[-1] + len(keys))
        self._arrays = [
            ints(offsets),
            ints([key for keys, _ in case.chains for key in keys]),
            ints([stop for _, stops in case.chains for stop in stops]),
        ]
        contents = CoreContents(*self._arrays, case.num_keys) if offsets[-1] else CoreContents()
        values = (
            kind,
            case.num_blocks,
            case.block_size,
            case.caching,
            len(case.windows),
            case.max_model_len,
            case.batched_tokens,
            case.contiguous_blocks,
            max(len(case.chains), 1),
            num_tables,
        )
        windows = ints([-1 if window is None else window for window in case.windows])
        self._pool = core.pools_new(ints(values), windows, ctypes.byref(contents))
        assert self._pool

    def __call__(
        self, operation: int, table: int, tokens: int = 0, *, hit: bool = False, capped: bool = False
    ) -> int:
        answer: int = self._core.pools_do(self._pool, operation, table, tokens, hit, capped)
        assert answer >= 0, answer
        return answer

    def close(self) -> None:
        self._core.pools_free(self._pool)


class Twins:
    """The same operations on a pool of the core and on Python's block pool: equal answers, each time."""

    TABLES = 6

    def __init__(self, core: ctypes.CDLL, kind: int, case: Case) -> None:
        self.case, self.kind = case, kind
        self.core = CorePool(core, kind, case, self.TABLES + 1)
        self.python = LoadBlockPool(
            case.num_blocks,
            case.block_size,
            prefix_caching=case.caching,
            windows=case.windows,
            max_model_len=case.max_model_len,
            in_flight_tokens=case.batched_tokens,
        )
        self.tables: list[Any] = [None] * self.TABLES
        self.requests = [-1] * self.TABLES
        self.tokens = [0] * self.TABLES  # that have a place; 0: the table is empty
        self.processed = [0] * self.TABLES
        self.grouped = [False] * self.TABLES  # its blocks are taken, and not yet in the core's table

    def content(self, request: int) -> Content:
        keys, stops = self.case.chains[request]
        return Content(~request, keys, stops)

    def open(self, t: int, request: int) -> None:
        self.core(OPEN, t, request)
        self.tables[t] = self.python.table(self.content(request))
        self.requests[t] = request

    def inside(self) -> set[int]:
        """Requests that hold blocks: an engine has each once, and nobody else asks for what is private to it."""
        return {request for request, tokens in zip(self.requests, self.tokens, strict=True) if tokens}

    def lookup(self, t: int, tokens: int) -> Any:
        hit = self.python.lookup(self.tables[t], tokens)
        assert self.core(LOOKUP, t, tokens) == hit[0]
        return hit

    def needed(self, t: int, tokens: int, hit: Any = None) -> int:
        for capped in (True, False):
            needed = self.python.blocks_needed(self.tables[t], tokens, hit, capped=capped)
            if not self.grouped[t] and not (capped and self.kind == RUN_POOL):
                found = self.core(BLOCKS_NEEDED, t, tokens, hit=hit is not None, capped=capped)
                assert found == needed
        return needed

    def grow(self, t: int, tokens: int, hit: Any = None) -> None:
        before = self.python.free_blocks
        self.python.grow(self.tables[t], tokens, hit)
        if self.grouped[t]:
            self.core(TAKE, t, before - self.python.free_blocks)
        else:
            self.core(GROW, t, tokens, hit=hit is not None)
        self.tokens[t] = max(self.tokens[t], tokens)

    def cache(self, t: int, tokens: int) -> None:
        self.python.cache(self.tables[t], tokens)
        self.core(CACHE, t, tokens)

    def leave_window(self, t: int, tokens: int) -> None:
        self.python.leave_window(self.tables[t], tokens)
        self.core(LEAVE_WINDOW, t, tokens)

    def spell_out(self, t: int) -> None:
        if self.grouped[t]:
            self.core(SET_HELD, t, len(self.tables[t].blocks[0]))
            self.grouped[t] = False

    def release(self, t: int) -> None:
        self.spell_out(t)
        self.python.release(self.tables[t])
        self.core(RELEASE, t)
        self.tokens[t] = self.processed[t] = 0

    def finish(self, t: int) -> None:
        self.python.cache(self.tables[t], self.tokens[t])
        self.python.release(self.tables[t])
        self.core(FINISH, t, self.tokens[t])
        self.grouped[t] = False
        self.tokens[t] = self.processed[t] = 0

    def load(self, t: int, tokens: int) -> bool:
        loaded = self.python.load(self.tables[t], tokens)
        assert self.core(LOAD, t, tokens) == loaded
        if loaded:
            self.tokens[t] = tokens
        return loaded

    def hold_computed(self, t: int, tokens: int) -> None:
        held = allocate_computed(self.python, self.tables[t], tokens, self.lookup(t, tokens))
        assert self.core(HOLD_COMPUTED, t, tokens, hit=True) == held
        if held:
            self.tokens[t] = tokens

    def check(self, *, contents: bool) -> None:
        assert self.core(FREE_BLOCKS, 0) == self.python.free_blocks
        for t, table in enumerate(self.tables):
            if table is not None and not self.grouped[t]:
                assert self.core(HELD_BLOCKS, t) == self.python.held_blocks(table)
        if contents:
            for request in set(range(len(self.case.chains))) - self.inside():
                self.core(OPEN, self.TABLES, request)
                for tokens in (9, 23, 400):
                    hit = self.python.lookup(self.python.table(self.content(request)), tokens)
                    assert self.core(LOOKUP, self.TABLES, tokens) == hit[0]


class Run:
    """A random sequence of what policies do to their pool."""

    def __init__(self, core: ctypes.CDLL, kind: int, case: Case, rng: Random) -> None:
        self.twins, self.rng, self.case = Twins(core, kind, case), rng, case
        self.unit = case.block_size

    def go(self, steps: int) -> None:
        contents = self.rng.random() < 0.5
        for _ in range(steps):
            t = self.rng.randrange(Twins.TABLES)
            if not self.twins.tokens[t]:
                self.start(t)
            else:
                self.go_on(t)
            self.twins.check(contents=contents)
        self.twins.check(contents=True)
        for t in range(Twins.TABLES):
            if self.twins.tokens[t]:
                self.twins.release(t)
        self.twins.check(contents=True)
        assert self.twins.python.free_blocks == self.case.num_blocks
        self.twins.core.close()

    def start(self, t: int) -> None:
        twins, rng = self.twins, self.rng
        inside = twins.inside()
        if twins.requests[t] < 0 or twins.requests[t] in inside or rng.random() < 0.6:
            outside = [request for request in range(len(self.case.chains)) if request not in inside]
            if not outside:
                return
            twins.open(t, rng.choice(outside))
        kind = rng.random()
        known = rng.randint(1, 16 * self.unit)
        if kind < 0.15:
            if not twins.load(t, known):
                return
            if rng.random() < 0.2:
                twins.release(t)
                return
            hit = twins.lookup(t, known - 1)
            if twins.needed(t, known, hit) <= twins.python.free_blocks:
                twins.grow(t, known, hit)
            twins.processed[t] = min(hit[0], known - 1)
            return
        if kind < 0.25:
            twins.hold_computed(t, known)
            return
        hit = twins.lookup(t, known - 1)
        end = min(known, hit[0] + rng.randint(1, 12 * self.unit))
        slots = end + rng.choice([0, 0, 3])
        twins.needed(t, known, hit)
        if twins.needed(t, slots, hit) > twins.python.free_blocks:
            return
        twins.grow(t, slots, hit)
        twins.processed[t] = hit[0]
        if rng.random() < 0.9:
            twins.cache(t, end)

    def go_on(self, t: int) -> None:
        twins, rng = self.twins, self.rng
        kind = rng.random()
        if kind < 0.12:
            twins.release(t)
        elif kind < 0.2 and twins.kind == RUN_POOL:
            twins.finish(t)
        elif kind < 0.25 and twins.kind == RUN_POOL:
            if twins.grouped[t]:
                twins.spell_out(t)
            else:
                twins.grouped[t] = True
        elif kind < 0.4 and not twins.grouped[t]:
            twins.cache(t, rng.randint(0, twins.tokens[t]))
        else:
            self.extend(t)

    def extend(self, t: int) -> None:
        twins, rng = self.twins, self.rng
        tokens = twins.tokens[t] + rng.choice([1, 1, 2, self.unit, rng.randint(1, 8 * self.unit)])
        twins.processed[t] = rng.randint(twins.processed[t], twins.tokens[t])
        twins.leave_window(t, twins.processed[t])
        if twins.needed(t, tokens) > twins.python.free_blocks:
            return
        twins.grow(t, tokens)
        if not twins.grouped[t] and rng.random() < 0.8:
            twins.cache(t, tokens - rng.choice([0, 0, 1]))


SHARED: tuple[Chain, ...] = (
    ((), ()),
    ((0,), (2,)),
    ((0,), (4,)),
    ((0, 1), (4, 6)),
    ((0, 2), (4, 9)),
    ((0, 2), (4, 9)),
    ((3, 4, 5), (1, 3, 8)),
    ((3,), (1,)),
    ((), ()),
)

WINDOWS: tuple[tuple[int | None, ...], ...] = (
    (None, 9),
    (None, 5, 5, 17),
    (7,),
    (None, 1, 1),
    (None, None, 12),
    (13, None),
    (1,),
    (4, 22),
    (None, 1000),
)


def random_chains(rng: Random) -> tuple[Chain, ...]:
    """Paths in a random tree of texts; the last run of a path may be cut short."""
    texts: list[tuple[int, int, int]] = []  # parent, and the blocks from where to where
    for _ in range(rng.randint(1, 6)):
        parent = rng.randrange(-1, len(texts))
        start = texts[parent][2] if parent >= 0 else 0
        texts.append((parent, start, start + rng.randint(1, 6)))
    chains: list[Chain] = []
    for _ in range(rng.randint(3, 10)):
        keys: list[int] = []
        text = rng.randrange(-1, len(texts))
        while text >= 0:
            keys.insert(0, text)
            text = texts[text][0]
        stops = [texts[key][2] for key in keys]
        if keys and rng.random() < 0.4:
            stops[-1] = rng.randint(texts[keys[-1]][1] + 1, stops[-1])
        chains.append((tuple(keys), tuple(stops)))
    return tuple(chains)


def random_case(rng: Random, kind: int) -> Case:
    windows: tuple[int | None, ...] = (None,) if kind == RUN_POOL else rng.choice(WINDOWS)
    return Case(
        num_blocks=rng.choice([10, 14, 22, 40]) * len(windows),
        block_size=rng.choice([4, 16, 3, 1]),
        caching=rng.random() < 0.9,
        windows=windows,
        max_model_len=rng.choice([1 << 40, 40]),
        batched_tokens=rng.choice([4, 64]),
        chains=rng.choice([SHARED, random_chains(rng), (((), ()),) * 5]),
    )


def run_randomly(core: ctypes.CDLL, kind: int, rng: Random, steps: int) -> None:
    Run(core, kind, random_case(rng, kind), rng).go(steps)


@pytest.mark.parametrize("kind", [RUN_POOL, BLOCK_POOL])
def test_random_operations_are_answered_as_python_answers_them(core: ctypes.CDLL, kind: int) -> None:
    for seed in range(150):
        run_randomly(core, kind, Random(seed), 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RUN_POOL, BLOCK_POOL])
def test_many_random_operations_are_answered_as_python_answers_them(core: ctypes.CDLL, kind: int) -> None:
    for seed in range(150, 3000):
        run_randomly(core, kind, Random(seed), 120)


@given(rng=st.randoms(use_true_random=False), kind=st.sampled_from([RUN_POOL, BLOCK_POOL]))
@settings(max_examples=examples(60), deadline=None)
def test_any_operations_are_answered_as_python_answers_them(
    core: ctypes.CDLL, rng: Random, kind: int
) -> None:
    run_randomly(core, kind, rng, 30)


def test_a_piece_of_memory_is_found_as_python_finds_it(core: ctypes.CDLL) -> None:
    for seed in range(100):
        rng = Random(seed)
        case = Case(
            num_blocks=rng.randint(1, 30), block_size=rng.choice([1, 4]), contiguous_blocks=rng.randint(1, 9)
        )
        python = ContiguousPool(
            case.num_blocks, case.block_size, reserved_tokens=case.contiguous_blocks * case.block_size
        )
        ours = CorePool(core, CONTIGUOUS_POOL, case, 8)
        tables = [python.table(Content(number)) for number in range(8)]
        for _ in range(60):
            t, tokens = rng.randrange(8), rng.randint(0, 12 * case.block_size)
            needed = python.blocks_needed(tables[t], tokens)
            assert ours(BLOCKS_NEEDED, t, tokens) == needed
            if rng.random() < 0.4:
                python.release(tables[t])
                ours(RELEASE, t)
            elif needed <= python.free_blocks:
                python.grow(tables[t], tokens)
                ours(GROW, t, tokens)
            assert ours(FREE_BLOCKS, t) == python.free_blocks
            assert ours(HELD_BLOCKS, t) == python.held_blocks(tables[t])
        ours.close()
