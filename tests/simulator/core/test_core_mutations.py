"""Wrong rules in the compiled engines, each compiled and run: deployments that both engines do alike show every one.

The first are shown within a few deployments; every run tries those of test_kinds.py, which are fewer.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from core_mutant import SOURCES, CoreMutants
from core_mutations import CORE_MUTATIONS, CoreMutation

from capacity.simulator.core import build

pytestmark = pytest.mark.skipif(build.working_compiler() is None, reason="no C compiler")

FEW, MANY = 40, 400

Shown = Callable[[CoreMutation | None], str | None]


def named(mutation: CoreMutation) -> str:
    return mutation.name.replace(" ", "-")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return CoreMutants(tmp_path_factory.mktemp("few"), range(FEW)).shown_by


@pytest.fixture(scope="module")
def shown_in_the_end(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return CoreMutants(tmp_path_factory.mktemp("many"), range(MANY)).shown_by


@pytest.mark.parametrize("mutation", CORE_MUTATIONS, ids=named)
def test_a_mutation_applies(mutation: CoreMutation) -> None:
    assert mutation.applied((SOURCES / mutation.file).read_text())


@pytest.mark.slow
@pytest.mark.parametrize("mutation", [m for m in CORE_MUTATIONS if m.short], ids=named)
def test_a_broken_rule_shows(mutation: CoreMutation, shown: Shown) -> None:
    assert shown(mutation) is not None


@pytest.mark.slow
def test_the_engines_as_they_are_show_nothing(shown: Shown) -> None:
    assert shown(None) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(m, marks=pytest.mark.xfail(strict=False, reason="open") if m.open else ())
        for m in CORE_MUTATIONS
        if not m.short
    ],
    ids=named,
)
def test_every_broken_rule_shows(mutation: CoreMutation, shown_in_the_end: Shown) -> None:
    assert shown_in_the_end(mutation) is not None
