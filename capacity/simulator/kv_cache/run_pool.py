"""Paged KV cache that handles runs of blocks at a time: equal to `BlockPool` in every answer, and much faster.

A *run* is a stretch of one content span whose blocks were cached together and have the same reference count. A run
is split where a hit, or an eviction, takes a part of it. Runs without references form the free queue, least
recently freed first; a run gives up its deepest block first, as blocks freed tail first would.
One group of layers with full attention; windows and hybrid groups need `BlockPool`.
"""

from __future__ import annotations

from collections.abc import Hashable

from capacity.simulator.kv_cache.content import Content

RunHit = tuple[
    int, list[tuple["Run", int, int]]
]  # tokens, and (run, from, to) in block positions of its span


class Run:
    """Blocks `start` to `stop` of the span `key`. `right` leads a holder on to the rest, if the run was split."""

    __slots__ = ("after", "before", "key", "references", "right", "start", "stop")

    def __init__(self, key: Hashable, start: int, stop: int, references: int) -> None:
        self.key = key
        self.start = start
        self.stop = stop
        self.references = references
        self.right: Run | None = None
        self.before: Run | None = None  # neighbours in the free queue; None: not in it
        self.after: Run | None = None


class RunTable:
    """The KV blocks of one request: `held` in all, the first `cached` of them as runs."""

    __slots__ = ("cached", "content", "held", "runs", "stops")

    def __init__(self, content: Content) -> None:
        self.content = content
        self.held = 0
        self.cached = 0
        self.runs: list[Run] = []
        self.stops: list[int] = []  # where in its span this request's part of each run ends


class RunPool:
    """`num_blocks` usable blocks of `block_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.free_blocks = num_blocks
        self._spans: dict[Hashable, list[Run]] = {}  # cached copies of each span, first cached first
        self._queue = Run(None, 0, 0, 0)  # sentinel of the free queue
        self._queue.before = self._queue.after = self._queue
        self._evictable = 0  # blocks in the queue; the other free blocks have no content

    def table(self, content: Content) -> RunTable:
        return RunTable(content)

    # look-up

    def lookup(self, table: RunTable, max_tokens: int) -> RunHit:
        """Longest cached prefix of at most `max_tokens` tokens, in whole blocks."""
        if self._evictable > self.free_blocks:
            self._evict()
        size = self.block_size
        limit = max_tokens // size if self.prefix_caching else 0
        found: list[tuple[Run, int, int]] = []
        position = start = 0
        content, spans = table.content, self._spans
        if not content.keys and content.private not in spans:
            return 0, found
        for key, stop in zip(content.keys, content.stops):
            if position >= limit:
                break
            runs = spans.get(key)
            if runs is None:
                break
            position = start + self._follow(runs, (stop if stop < limit else limit) - start, found)
            if position < stop:
                break
            start = stop
        else:
            if position < limit:
                runs = spans.get(content.private)
                if runs is not None:
                    position = start + self._follow(runs, limit - start, found)
        return position * size, found

    @staticmethod
    def _follow(runs: list[Run], limit: int, found: list[tuple[Run, int, int]]) -> int:
        """How far copies of one span reach from its start, and which: the first cached copy of each block."""
        if len(runs) == 1:
            run = runs[0]
            if run.start:
                return 0
            to = run.stop if run.stop < limit else limit
            if to > 0:
                found.append((run, 0, to))
            return max(to, 0)
        at = 0
        while at < limit:
            to = limit
            for run in runs:
                if run.start <= at < run.stop:
                    to = min(to, run.stop)
                    found.append((run, at, to))
                    break
                if at < run.start < to:
                    to = run.start  # an older copy takes over there
            else:
                break
            at = to
        return at

    # allocation

    def blocks_needed(
        self,
        table: RunTable,
        tokens: int,
        hit: RunHit | None = None,
        *,
        capped: bool = False,  # noqa: ARG002
    ) -> int:
        """Free blocks that holding `tokens` tokens would take, those of `hit` that are free now included."""
        needed = -(-tokens // self.block_size) - table.held
        evictable = 0
        if hit is not None:
            for run, start, stop in hit[1]:
                needed -= stop - start
                if run.references == 0:
                    evictable += stop - start
        return (needed if needed > 0 else 0) + evictable

    def grow(self, table: RunTable, tokens: int, hit: RunHit | None = None) -> None:
        """Take the blocks of `hit` and then new ones, so that `tokens` tokens have a place. They must be free."""
        if hit is not None and hit[1]:  # looked up just now: nothing is left to evict
            for run, start, stop in hit[1]:
                part = run if run.start == start and run.stop == stop else self._part(run, start, stop)
                if part.references == 0:
                    self._leave_queue(part)
                part.references += 1
                table.runs.append(part)
                table.stops.append(stop)
                table.held += stop - start
            table.cached = table.held
        new = -(-tokens // self.block_size) - table.held
        if new > 0:
            table.held += new
            self.free_blocks -= new

    def take(self, blocks: int) -> None:
        """Take free blocks, those without content first, then the least recently freed."""
        self.free_blocks -= blocks

    def _evict(self) -> None:
        """Take the content from blocks that were taken: put off until it can make a difference."""
        blocks = self._evictable - self.free_blocks
        self._evictable -= blocks
        queue, spans = self._queue, self._spans
        run = queue.after
        assert run is not None
        while blocks:
            size = run.stop - run.start
            if size > blocks:
                run.stop -= blocks
                break
            blocks -= size
            key, after = run.key, run.after
            assert after is not None
            run.before = run.after = None
            runs = spans[key]
            if len(runs) == 1:
                del spans[key]
            else:
                runs.remove(run)
            run = after
        queue.after = run
        run.before = queue

    def cache(self, table: RunTable, tokens: int) -> None:
        """Give the full blocks of the first `tokens` tokens their content, so that others can hit them."""
        full = tokens // self.block_size
        at = table.cached
        if full <= at or not self.prefix_caching:
            return
        table.cached = full
        content = table.content
        stops = content.stops
        start = stops[-1] if stops else 0  # of the private span
        if at < start:
            at = self._register_shared(table, at, full)
        if at < full:
            self._register(table, content.private, at - start, full - start)

    def _register_shared(self, table: RunTable, at: int, full: int) -> int:
        """Blocks from `at` on that lie in shared spans; returns where these, or the blocks, end."""
        start = 0
        for key, stop in zip(table.content.keys, table.content.stops):
            if at < stop:
                end = stop if stop < full else full
                self._register(table, key, at - start, end - start)
                at = end
                if at == full:
                    break
            start = stop
        return at

    def _register(self, table: RunTable, key: Hashable, start: int, stop: int) -> None:
        runs, held = self._spans.get(key), table.runs
        if runs is None:
            run = Run(key, start, stop, 1)
            self._spans[key] = [run]
        else:
            if len(runs) == 1 and held:
                run = runs[0]
                if run is held[-1] and run.stop == start and run.references == 1:
                    run.stop = table.stops[-1] = stop
                    return
            run = Run(key, start, stop, 1)
            runs.append(run)
        held.append(run)
        table.stops.append(stop)

    # release

    def release(self, table: RunTable) -> None:
        """Give back all blocks, tail first."""
        if self._evictable > self.free_blocks:
            self._evict()
        self.free_blocks += table.held - table.cached
        runs, stops = table.runs, table.stops
        for run, stop in zip(reversed(runs), reversed(stops)):
            if run.stop < stop:
                self._drop_parts(run, stop)
            elif run.references > 1:
                run.references -= 1
            else:
                self._drop(run)
        if runs:
            runs.clear()
            stops.clear()
        table.held = table.cached = 0

    def finish(self, table: RunTable, tokens: int) -> None:
        """A request ends whose first `tokens` tokens have their place and content: `cache` them, `release` them all."""
        table.held = -(-tokens // self.block_size)
        if tokens // self.block_size > table.cached:
            self.cache(table, tokens)
        self.release(table)

    def _drop_parts(self, run: Run, stop: int) -> None:
        """A run that was split while it was held: its parts, the deepest first."""
        parts = [run]
        while run.stop < stop:
            assert run.right is not None
            run = run.right
            parts.append(run)
        for part in reversed(parts):
            if part.references > 1:
                part.references -= 1
            else:
                self._drop(part)

    def _drop(self, run: Run) -> None:
        """The last holder lets go of a run."""
        run.references = 0
        size = run.stop - run.start
        self.free_blocks += size
        self._evictable += size
        queue = self._queue
        last = queue.before
        assert last is not None
        last.after = run
        run.before = last
        run.after = queue
        queue.before = run

    def _leave_queue(self, run: Run) -> None:
        size = run.stop - run.start
        before, after = run.before, run.after
        assert before is not None
        assert after is not None
        before.after = after
        after.before = before
        run.before = run.after = None
        self.free_blocks -= size
        self._evictable -= size

    def _part(self, run: Run, start: int, stop: int) -> Run:
        """The blocks `start` to `stop` of the run, cut out of it if they are not all of it."""
        while run.stop <= start:  # an earlier part of the same hit has split it
            assert run.right is not None
            run = run.right
        if run.start < start:
            run = self._split(run, start)
        if run.stop > stop:
            self._split(run, stop)
        return run

    def _split(self, run: Run, at: int) -> Run:
        """Cut the run at `at`, keeping it as the left half; returns the right half."""
        right = Run(run.key, at, run.stop, run.references)
        right.right = run.right
        run.stop = at
        run.right = right
        runs = self._spans[run.key]
        runs.insert(runs.index(run) + 1, right)
        before = run.before
        if before is not None:  # the deeper half is evicted first
            before.after = right
            right.before = before
            right.after = run
            run.before = right
        return right

    def leave_window(self, table: RunTable, processed_tokens: int) -> None:
        """Nothing: full attention looks back on every token."""

    def held_blocks(self, table: RunTable) -> int:
        return table.held
