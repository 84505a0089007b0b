"""Runs of the compiled core in which the n-th allocation fails, for every n: MemoryError, nothing leaked, same answer.

Run as a program on a library of `faulty_allocations.c` and the core's sources: `core_faults.py LIBRARY EVERY`
(EVERY 3: every third allocation).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

import capacity
from capacity.simulator.core import fleet, interface

LENGTHS = {"input_len": 60, "output_len": 8, "num_prompts": 12, "request_rate": 50.0, "seed": 3}
RUNS = {
    "drafts": {"speculator": "eagle3", "num_speculative_tokens": 2},
    "shared prefixes": {"random_prefix_len": 64, "num_prefixes": 2, "enable_prefix_caching": True},
    "prefill and decode": {"replicas": 2, "prefill_replicas": 1},
}


def check(library: ctypes.CDLL, ask: Callable[[], object], every: int) -> tuple[int, int]:
    """Let one allocation in `every` of a run fail; return how many there are, and how many failures changed nothing."""
    live = ctypes.c_long.in_dll(library, "live_allocations")
    calls, failing = (ctypes.c_long.in_dll(library, name) for name in ("allocations", "failing_allocation"))
    ask()  # what it keeps for later runs is allocated now
    calls.value = 0
    expected = ask()
    count, harmless = calls.value, 0
    gc.collect()
    before = live.value
    for number in range(1, count + 1, every):
        calls.value, failing.value = 0, number
        try:
            found = ask()
        except MemoryError:
            pass
        else:  # a table that only saves time could not grow
            assert found == expected, f"allocation {number} of {count}: another answer"
            harmless += 1
        failing.value = 0
        gc.collect()
        assert live.value <= before, f"allocation {number} of {count}: {live.value - before} are not freed"
    assert ask() == expected
    return count, harmless


def main(path: str, every: str) -> None:
    """Check every run, and print its number of allocations."""
    library = ctypes.CDLL(path)
    declared = interface.declare(library)
    fleet._load_core = lambda: declared
    for name, options in RUNS.items():

        def ask(options: dict[str, object] = options) -> object:
            asked = {"gpu": "h100", "engine_loop": "core", **LENGTHS, **options}
            return capacity.simulate("llama-3.2-1b", **asked).run.to_dict()  # type: ignore[arg-type]

        count, harmless = check(library, ask, int(every))
        print(f"{name}: {count} allocations, {harmless} failures without effect")


if __name__ == "__main__":
    main(*sys.argv[1:])
