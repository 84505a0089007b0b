"""The same schedules from both engines: those of real engines' code, and those worked by hand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
from engine_loops import HAS_CORE, LOOPS, on
from library import SHARED
from long_forms import mostly_slow
from reference_schedules import NAMED, POLICIES, RELEASES, differs, library_lines, lines, release_lines
from rule_scenarios import RULES, RuleScenario, departs

from capacity.simulator import scenarios
from capacity.simulator.core import logged_run
from capacity.simulator.scenarios import schedule_scenario


def scheduled(
    scenario: dict[str, Any], policy: str, engine_loop: str, engine: str | None = None
) -> dict[str, Any]:
    return schedule_scenario(scenario, policy, engine=engine, **on(schedule_scenario, engine_loop))


def all_differences(
    references: Iterable[dict[str, Any]], policy: str, engine_loop: str, engine: str | None = None
) -> dict[str, str]:
    found = {}
    for line in references:
        difference = differs(scheduled(line["scenario"], policy, engine_loop, engine), line)
        if difference:
            found[line["scenario"]["name"]] = difference
    return found


@pytest.mark.parametrize("engine_loop", LOOPS)
@pytest.mark.parametrize("engine", POLICIES)
def test_named_scenarios_equal_the_engine(engine: str, engine_loop: str) -> None:
    assert all_differences(lines(NAMED / f"{engine}_named.jsonl.gz"), POLICIES[engine], engine_loop) == {}


@pytest.mark.skipif(SHARED is None, reason="needs the reference library")
@pytest.mark.parametrize("engine_loop", mostly_slow(LOOPS, LOOPS[-1:]))
@pytest.mark.parametrize("engine", POLICIES)
def test_all_scenarios_equal_the_engine(engine: str, engine_loop: str) -> None:
    assert SHARED is not None
    assert (
        all_differences(lines(SHARED / "oracle" / f"{engine}.jsonl.gz"), POLICIES[engine], engine_loop) == {}
    )


@pytest.mark.parametrize("engine_loop", LOOPS)
@pytest.mark.parametrize("release", ["0.33", *RELEASES])
@pytest.mark.parametrize("engine", ["v1", "v1async"])
def test_named_scenarios_equal_the_release(engine: str, release: str, engine_loop: str) -> None:
    known = {line["scenario"]["name"]: line for line in lines(NAMED / f"{engine}_named.jsonl.gz")}
    references = list(release_lines(NAMED / f"{engine}_releases.jsonl.gz", known, release))
    assert references
    assert all_differences(references, POLICIES[engine], engine_loop, f"vllm@{release}") == {}


@pytest.mark.skipif(SHARED is None, reason="needs the reference library")
@pytest.mark.parametrize("engine_loop", LOOPS[-1:])
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("engine", ["v1", "v1async"])
def test_scenarios_equal_the_release(engine: str, release: str, engine_loop: str) -> None:
    """Each release has its share of the scenarios, and all of them together have every one."""
    assert SHARED is not None
    references = islice(
        library_lines(SHARED / "oracle", engine, release), RELEASES.index(release), None, len(RELEASES)
    )
    assert all_differences(references, POLICIES[engine], engine_loop, f"vllm@{release}") == {}


@pytest.mark.slow
@pytest.mark.skipif(SHARED is None, reason="needs the reference library")
@pytest.mark.parametrize("engine_loop", LOOPS)
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("engine", ["v1", "v1async"])
def test_all_scenarios_equal_the_release(engine: str, release: str, engine_loop: str) -> None:
    assert SHARED is not None
    references = library_lines(SHARED / "oracle", engine, release)
    assert all_differences(references, POLICIES[engine], engine_loop, f"vllm@{release}") == {}


@pytest.mark.parametrize("engine_loop", LOOPS)
@pytest.mark.parametrize("case", RULES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_rule_decides_as_worked_by_hand(case: RuleScenario, engine_loop: str) -> None:
    assert departs(scheduled(case.scenario, "vllm-v1", engine_loop), case.steps) is None, case.rule


def stripped(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "engine"}


@pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not built in")
@pytest.mark.parametrize("policy", POLICIES.values())
def test_both_engines_answer_alike_to_the_last_digit(policy: str) -> None:
    """The reference adds up seconds in floating point; our two engines count the same picoseconds.

    Every scenario under every policy that reads it, whichever engine's code it was written for.
    """
    scenarios = [
        line["scenario"] for engine in POLICIES for line in lines(NAMED / f"{engine}_named.jsonl.gz")
    ]
    for scenario in [*scenarios, *(case.scenario for case in RULES)]:
        read, ran = (scheduled(scenario, policy, engine_loop) for engine_loop in ("events", "core"))
        assert stripped(ran) == stripped(read), scenario.get("name")


@pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not built in")
@pytest.mark.parametrize("most", mostly_slow([60, 1000], [60]))
@pytest.mark.parametrize("policy", POLICIES.values())
def test_a_run_without_a_log_keeps_the_same_ledger(
    policy: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a log every row is written down; without, decodes of vLLM V1 are known by their sums."""
    ran: list[tuple[Any, Any]] = []

    def both(*arguments: Any, **keywords: Any) -> logged_run.LoggedRun:
        run = logged_run.run_with_log(*arguments, **keywords)
        ran.append((run, logged_run.run_with_log(*arguments, **keywords, keep_log=False)))
        return run

    monkeypatch.setattr(scenarios, "run_with_log", both)
    for engine in POLICIES:
        folder = NAMED if SHARED is None else SHARED / "oracle"
        name = f"{engine}_named.jsonl.gz" if SHARED is None else f"{engine}.jsonl.gz"
        for line in lines(folder / name)[:most]:
            scheduled(line["scenario"], policy, "core")
    assert ran
    for with_log, without in ran:
        assert not without.steps
        assert without.columns == with_log.columns
        assert without.stalled_by == with_log.stalled_by
