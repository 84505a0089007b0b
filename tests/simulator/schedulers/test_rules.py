"""Scheduling rules: the releases that lack each, and names that do not exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from capacity.base.errors import UnknownName
from capacity.deployment.engines import find_engine
from capacity.simulator.schedulers import rules
from capacity.simulator.schedulers.rules import SchedulingRules, rules_without

BEGINNINGS = re.compile(r"# SGLang (0\.5\.\d+), (?:(?!\n\n).)*?\n    (\w+): bool", re.DOTALL)


def test_an_unknown_rule_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"no scheduling rule 'reserve_page'.*'reserves_page'"):
        rules_without(["reserve_page"])


def test_a_rule_of_sglang_is_missing_in_all_releases_before_that_of_its_comment() -> None:
    first = {name: release for release, name in BEGINNINGS.findall(Path(rules.__file__).read_text("utf-8"))}
    names = [field.name for field in fields(SchedulingRules)]
    assert list(first) == names[names.index("spent_step_ends") :]
    for minor in range(4, 24):
        missing = set(find_engine(f"sglang@0.5.{minor}").missing_scheduling_rules)
        assert missing == {name for name, release in first.items() if int(release.split(".")[2]) > minor}
