"""Random fleets through the core's C interface, sensible and hostile: nothing that it is given may crash it.

Run as a program on a library that was compiled with sanitizers: `core_fuzzer.py LIBRARY FIRST_SEED NUM_SEEDS`.
Arrays have the lengths that their counts say; all else may be anything: negative, huge, missing, out of order.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections import Counter
from ctypes import POINTER, byref, c_int64
from typing import Any

from capacity.simulator.core import step_data
from capacity.simulator.core.interface import declare, enums, structs
from capacity.step import AffineStepTimes

HOSTILE = (
    -(2**63),
    -(2**62),
    -(2**31),
    -2,
    -1,
    0,
    1,
    2**15,
    2**30,
    2**31,
    2**40,
    2**60,
    2**62 - 1,
    2**62,
    2**63 - 1,
)
HOSTILE_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e308, 1e-308)
MAX_STEPS = 300  # of one call
VLLM_V1, TENSORRT_LLM = 0, 3  # the policy with tiers of KV, the one that can hold prompts back
EVENT_FIELDS = len(structs.core_event._fields_)
POINTERS = ("windows", "contents", "times", "accept", "rates", "step_factors")
SENSIBLE: dict[str, tuple[int, int]] = {
    "policy": (0, 6),
    "role": (0, 2),
    "max_num_seqs": (1, 12),
    "max_num_batched_tokens": (12, 512),
    "max_model_len": (16, 2000),
    "long_prefill_token_threshold": (0, 200),
    "watermark_blocks": (0, 3),
    "max_num_active_seqs": (0, 12),
    "prefill_schedule_interval": (1, 4),
    "pipeline_stages": (1, 3),
    "num_blocks": (1, 200),
    "block_size": (1, 32),
    "contiguous_blocks": (0, 3),
    "window_tokens": (-1, 100),
    "draft_tokens": (0, 3),
    "lookahead_slots": (0, 3),
    "draft_seed": (0, 2**63),
    "data_parallel_size": (1, 3),
    "balance": (0, 2),
    "prompt_wait_steps": (0, 5),
    "sglang_max_prefill_tokens": (1, 2000),
    "sglang_recv_interval": (1, 4),
    "sglang_window": (0, 64),
    "trt_batch_wait_steps": (0, 4),
    "trt_prompts_per_step": (0, 4),
    "tgi_max_waiting_steps": (0, 20),
    "static_window_ps": (0, 10**9),
    "slots_max_waiting": (-1, 5),
    "v0_num_cpu_blocks": (0, 100),
    "v0_swap_block_ps": (0, 10**6),
    "num_tiers": (0, 2),
    "chunk_blocks": (1, 4),
    "max_loras": (0, 3),
    "max_cpu_loras": (0, 9),
    "adapter_load_ps": (0, 10**9),
    "adapter_read_ps": (0, 10**9),
    "num_processes": (1, 3),
    "message_ps": (0, 10**6),
    "stream_interval": (1, 4),
    "step_seed": (0, 2**63),
}  # others are 0 or 1


class Case:
    """One fleet with what it was given; `hostility` is the share of numbers that cannot be."""

    def __init__(self, core: ctypes.CDLL, seed: int) -> None:
        self.core = core
        self.random = random.Random(seed)
        self.hostility = self.random.choice((0.0, 0.0, 0.002, 0.02, 0.3))
        self.kept: list[Any] = []
        self.outcomes: Counter[str] = Counter()
        self.count = self.random.choice((0, 1, 5, 40))
        self.times = step_data.StepData(AffineStepTimes(0.001, 1e-5), core)

    def hostile(self) -> bool:
        return self.random.random() < self.hostility

    def number(self, low: int, high: int) -> int:
        return self.random.choice(HOSTILE) if self.hostile() else self.random.randint(low, high)

    def array(self, count: int, low: int, high: int, *, rising: bool = False) -> int | None:
        """Its address, or none at all."""
        if self.hostile() and self.hostile():
            return None
        values = [self.number(low, high) for _ in range(count)]
        if rising and not self.hostile():
            values.sort()
        held = (c_int64 * max(count, 1))(*values)
        self.kept.append(held)
        return ctypes.addressof(held)

    def doubles(self, count: int) -> int:
        values = [self.double() for _ in range(count)]
        held = (ctypes.c_double * max(count, 1))(*values)
        self.kept.append(held)
        return ctypes.addressof(held)

    def double(self) -> float:
        return self.random.choice(HOSTILE_FLOATS) if self.hostile() else self.random.random()

    # what a fleet is given

    def requests(self) -> ctypes.Structure:
        optional = [self.random.random() < 0.5 for _ in range(3)]
        return structs.core_requests(
            count=self.count,
            prompt_tokens=self.array(self.count, 1, 400),
            output_tokens=self.array(self.count, 1, 60),
            max_tokens=self.array(self.count, 1, 100) if optional[0] else None,
            priority=self.array(self.count, -2, 2) if optional[1] else None,
            adapter=self.array(self.count, 0, 5) if optional[1] else None,
            order=self.array(self.count, 0, 100) if optional[2] else None,
        )

    def columns(self) -> ctypes.Structure:
        return structs.core_columns(
            **{name: self.array(self.count, -1, -1) for name, _ in structs.core_columns._fields_}
        )

    def contents(self) -> ctypes.Structure:
        """Each request's chain is a path down a tree of runs, one or more blocks each."""
        known: dict[tuple[int, ...], int] = {}
        keys, stops, offsets = [], [], [0]
        for _ in range(self.count):
            path: tuple[int, ...] = ()
            for depth in range(self.random.randint(0, 3)):
                path = (*path, self.random.randint(0, 2))
                keys.append(known.setdefault(path, len(known)))
                stops.append(2 * depth + 1)
            offsets.append(len(keys))
        for column in (keys, stops, offsets):
            if column and self.hostile():
                column[self.random.randrange(len(column))] = self.random.choice(HOSTILE)
        offsets = [min(offset, len(keys)) for offset in offsets]  # else there is no such array
        held = [(c_int64 * max(len(column), 1))(*column) for column in (offsets, keys, stops)]
        self.kept += held
        return structs.core_contents(*(ctypes.addressof(column) for column in held), len(known))

    def engine(self) -> ctypes.Structure:
        e = structs.core_engine()
        for name, kind in structs.core_engine._fields_:
            if kind is c_int64:
                setattr(e, name, self.number(*SENSIBLE.get(name, (0, 1))))
            elif kind is ctypes.c_uint64:
                setattr(e, name, self.random.getrandbits(64))
            elif kind is ctypes.c_double:
                setattr(e, name, self.double())
        if self.random.random() < 0.5:
            e.role = 0
        elif self.random.random() < 0.9:
            e.data_parallel_size = 1  # apart and with ranks is refused
        if e.policy != VLLM_V1 and not self.hostile():
            e.num_tiers = 0
        if e.policy != TENSORRT_LLM:
            e.prompt_wait_steps = 0
        e.num_windows, e.num_accept = self.random.randint(1, 3), self.random.randint(0, 5)
        e.num_rates, e.num_classes = self.random.randint(0, 5), self.random.choice((1, 16))
        e.windows = self.array(e.num_windows, 8, 100)
        if self.random.random() < 0.5:
            held = (c_int64 * e.num_windows)(*[-1] * e.num_windows)
            self.kept.append(held)
            e.windows = ctypes.addressof(held)
        e.accept, e.rates = self.array(e.num_accept, 0, 3), self.doubles(16 * e.num_rates)
        if self.random.random() < 0.5:
            factors = (ctypes.c_double * 4096)(*[0.5 + self.random.random()] * 4096)
            factors[self.random.randrange(4096)] = self.double()
            self.kept.append(factors)
            e.step_factors = ctypes.addressof(factors)
        if self.random.random() < 0.5:
            contents = self.contents()
            self.kept.append(contents)
            e.contents = ctypes.addressof(contents)
        for place in range(2):
            e.tiers[place] = structs.core_tier(
                self.number(-1, 20), 1e9 * self.double(), self.number(0, 10**9)
            )
        e.times = self.times.pointer
        if self.hostile():
            setattr(e, self.random.choice(POINTERS), None)
        return e

    # what is asked of it

    def run(self) -> Counter[str]:
        columns, requests = self.columns(), self.requests()
        nothing = self.hostile() and self.hostile()
        fleet = self.core.fleet_new(
            None if nothing else byref(requests), byref(columns), self.random.randint(0, 1)
        )
        said = self.core.fleet_error(fleet)
        self.outcomes["refused" if said else "taken"] += 1
        if not said:
            for _ in range(self.random.randint(1, 3)):
                setup = self.engine()
                number = self.core.fleet_add(fleet, byref(setup), self.number(0, 10**9))
                reason = core_says(self.core, fleet)
                self.outcomes[f"engine refused: {reason}" if number < 0 else "engine"] += 1
                if number >= 0:
                    self.kept.append(setup)
            self.calls(fleet)
        self.core.fleet_free(fleet)
        return self.outcomes

    def calls(self, fleet: int) -> None:
        core, now_ps = self.core, 0
        events, log = POINTER(c_int64)(), POINTER(c_int64)()
        for _ in range(60):
            engine, request = self.number(0, 2), self.number(0, max(self.count - 1, 0))
            now_ps += self.random.randint(0, 10**11)
            at_ps = self.number(now_ps, now_ps)
            which = self.random.randrange(16)
            result = 0
            if which == 0:
                count = self.random.randint(0, self.count)
                instants = self.array(count, now_ps, now_ps + 10**12, rising=True)
                whom = self.array(count, 0, self.count - 1) if count and self.random.random() < 0.5 else None
                result = core.fleet_feed(fleet, engine, count, whom, instants)
                if count % 3 == 0:
                    room = self.array(self.count, 0, 0)
                    result = core.fleet_feed_loop(
                        fleet, engine, self.number(1, 9), now_ps, self.number(0, 10**10), room
                    )
            elif which in (1, 2):
                core.fleet_deliver(fleet, engine, request, at_ps)
            elif which in (3, 4, 5):
                result = core.fleet_advance(
                    fleet,
                    4 * now_ps + 1,
                    self.random.randint(0, 1),
                    self.number(1, MAX_STEPS) % (MAX_STEPS + 1),
                )
            elif which == 6:
                for index in range(core.fleet_events(fleet, byref(events))):
                    assert 0 <= events[EVENT_FIELDS * index] < 5
            elif which == 7:
                state = structs.core_state()
                core.fleet_state(fleet, engine, byref(state))
            elif which == 8:
                uses = (structs.core_tier_use * 2)()
                core.fleet_tier_use(fleet, engine, uses)
                for index in range(core.fleet_log(fleet, engine, byref(log))):
                    assert log[index] is not None
            elif which == 9:
                result = core.fleet_cancel(fleet, engine, request, at_ps)
            elif which == 10:
                result = core.fleet_release_kept(fleet, engine, request, at_ps)
            elif which == 11:
                core.fleet_want_load(fleet, engine, request, self.number(1, 300), at_ps)
            elif which == 12:
                result = core.fleet_load_begun(fleet, engine, request, at_ps)
            elif which == 13:
                result = core.fleet_loaded(fleet, engine, request, at_ps)
            elif which == 14:
                result = core.fleet_unload(fleet, engine, request, at_ps)
            elif self.random.random() < 0.1:
                core.fleet_stop(fleet, engine)
            core.fleet_next_key(fleet)
            if result:
                said = core.fleet_error(fleet).decode()
                if result == enums.BROKEN:
                    said = f"broken: {said}"
                    self.outcomes[said] += 1
                    return
                self.outcomes["call refused"] += 1


def core_says(core: ctypes.CDLL, fleet: int) -> str:
    return " ".join(core.fleet_error(fleet).decode().split()[:6])


def main() -> None:
    path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    core = declare(ctypes.CDLL(path))
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + count):
        print(
            f"\rseed {seed} ", end="", file=sys.stderr, flush=True
        )  # the last one is whom a crash belongs to
        outcomes += Case(core, seed).run()
    print(dict(outcomes))


if __name__ == "__main__":
    main()
