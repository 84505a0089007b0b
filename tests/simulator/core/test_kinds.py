"""Both engines do the same where rows are known by their sums: stages, drafts, offload and ranks, each by itself.

And wrong rules of these show: each is one change of the sources, compiled and run, as in test_core_mutations.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from core_mutant import SOURCES, CoreMutants
from core_mutations import CoreMutation
from core_runs import needs_core
from kind_mutations import KIND_MUTATIONS
from kinds_of_deployments import KINDS, MADE, Deployment, deployment_of, differing_of, outcome, unlike

from capacity.simulator.core import build

SHORT, LONG = 12, 500
FEW, MANY = 6, 150  # deployments of a kind that a mutant meets

Shown = Callable[[CoreMutation | None], str | None]


def named(mutation: CoreMutation) -> str:
    return mutation.name.replace(" ", "-")


@needs_core
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_does_the_same(kind: str) -> None:
    assert {seed: found for seed in range(SHORT) if (found := differing_of(kind, seed))} == {}


@needs_core
@pytest.mark.parametrize("seed", [319, 2060])
def test_a_request_started_again_beside_a_token_of_before_computes_that_too(seed: int) -> None:
    """With stages it may run again before its last step from before it was preempted has ended."""
    assert differing_of("stages", seed) == []


@needs_core
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_a_kind_do_the_same(kind: str) -> None:
    assert {seed: found for seed in range(SHORT, LONG) if (found := differing_of(kind, seed))} == {}


@needs_core
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_for_a_rule_does_the_same(name: str) -> None:
    deployment = MADE[name]()
    assert unlike(outcome(deployment, "events"), outcome(deployment, "core")) == []


def kinds_and_made(seeds: int) -> dict[str, Deployment]:
    found = {f"{kind} {seed}": deployment_of(kind, seed) for kind in KINDS for seed in range(seeds)}
    return found | {name: make() for name, make in MADE.items()}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return CoreMutants(tmp_path_factory.mktemp("few"), [], kinds_and_made(FEW)).shown_by


@pytest.fixture(scope="module")
def shown_in_the_end(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return CoreMutants(tmp_path_factory.mktemp("many"), [], kinds_and_made(MANY)).shown_by


needs_compiler = pytest.mark.skipif(build.working_compiler() is None, reason="no C compiler")


@pytest.mark.parametrize("mutation", KIND_MUTATIONS, ids=named)
def test_a_mutation_applies(mutation: CoreMutation) -> None:
    assert mutation.applied((SOURCES / mutation.file).read_text())


@pytest.mark.ci
@needs_compiler
@pytest.mark.parametrize("mutation", [m for m in KIND_MUTATIONS if m.short], ids=named)
def test_a_broken_rule_shows(mutation: CoreMutation, shown: Shown) -> None:
    assert shown(mutation) is not None


@pytest.mark.ci
@needs_compiler
def test_the_engines_as_they_are_show_nothing(shown: Shown) -> None:
    assert shown(None) is None


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(m, marks=pytest.mark.xfail(strict=False, reason="open") if m.open else ())
        for m in KIND_MUTATIONS
        if not m.short
    ],
    ids=named,
)
def test_every_broken_rule_shows(mutation: CoreMutation, shown_in_the_end: Shown) -> None:
    assert shown_in_the_end(mutation) is not None
