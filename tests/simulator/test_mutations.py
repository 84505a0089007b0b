"""Rules broken on purpose, one at a time: each must change a schedule that an engine's own code has decided."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from library import SHARED
from reference_schedules import NAMED, differs, lines

import capacity.simulator.scenarios
from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache import block_pool
from capacity.simulator.scenarios import schedule_scenario
from capacity.simulator.schedulers import vllm_v1

MUTATIONS = {
    "victim first": (vllm_v1, "return running[-1]", "return running[0]"),
    "admit after preemption": (vllm_v1, "if not step.preempted and not holds:", "if not holds:"),
    "preempted to the back of the queue": (vllm_v1, "put_back = deque.appendleft", "put_back = deque.append"),
    "skip instead of head-of-line break": (
        vllm_v1,
        "            if not tokens:\n                break\n",
        "            if not tokens:\n                waiting.add(waiting.pop())\n"
        "                tried = locals().get('tried', 0) + 1\n"
        "                if tried > len(waiting):\n                    break\n                continue\n",
    ),
    "uncached blocks freed to the tail": (
        block_pool,
        "uncached_first: bool = True",
        "uncached_first: bool = False",
    ),
    "freed head first": (block_pool, "for block in reversed(blocks):", "for block in blocks:"),
    "evictable hits not counted": (
        block_pool,
        "needed += sum(1 for b in hits if b != NULL and self.ref_counts[b] == 0)",
        "pass",
    ),
    "hit capped at n-2": (
        vllm_v1,
        "self.pool.lookup(r.table, r.known - 1)",
        "self.pool.lookup(r.table, r.known - 2)",
    ),
    "full-sequence reservation ignored": (vllm_v1, "if limits.reserve_full_isl and", "if False and"),
    "watermark ignored": (vllm_v1, "if self._watermark_blocks and self.running:", "if False:"),
    "long-prefill threshold on a lone request": (
        vllm_v1,
        "return 0 if limit and self.limits.lone_prefill_exempt and self.unfinished <= 1 else limit",
        "return limit",
    ),
    "priority ties ignore arrival": (
        vllm_v1,
        "key=lambda r: (r.priority, r.arrival))",
        "key=lambda r: r.priority)",
    ),
}
NEED_RANDOM_SCENARIOS = {
    "admit after preemption",
    "priority ties ignore arrival",
}  # named ones do not show them


def mutated(module: ModuleType, old: str, new: str) -> ModuleType:
    """A copy of the module with one place of its source changed."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
    copy = ModuleType(module.__name__)
    exec(compile(source.replace(old, new), module.__file__, "exec"), copy.__dict__)
    return copy


def shows(line: dict[str, Any]) -> bool:
    try:
        return differs(schedule_scenario(line["scenario"]), line) is not None
    except (InvalidInput, LookupError):
        return True  # it takes a block that is not there


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = MUTATIONS[name]
    if name in NEED_RANDOM_SCENARIOS and SHARED is None:
        pytest.skip("needs the reference library")
    copy = mutated(module, old, new)
    if module is block_pool:
        monkeypatch.setattr(capacity.simulator.scenarios, "BlockPool", copy.BlockPool)
    else:
        monkeypatch.setattr(
            capacity.simulator.scenarios,
            "make_policy",
            lambda _, limits, pool, **options: copy.VllmV1(limits, pool, **options),
        )
    path = NAMED / "v1_named.jsonl.gz" if SHARED is None else SHARED / "oracle" / "v1.jsonl.gz"
    assert any(shows(line) for line in lines(path))
