"""The deployment around the engines equals an independent model of it, request by request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from long_forms import mostly_slow
from random_worlds import MS, draw, run_product
from world_model import Fleet, World

from capacity.base.errors import InvalidInput
from capacity.simulator.fleet import Autoscaling

FAST, LONG = 200, 6000  # fleets
PART = 25
LEAVES_AT_ONCE = 2250  # in fleet 2267, requests leave their replica before the reports of the same time


def differences(seed: int) -> list[str]:
    """Return what differs between the model and the package for the fleet of this seed."""
    fleet, cascade = draw(seed)
    world, run = World(fleet).run(), run_product(fleet, cascade, ("core", "events")[seed // 4 % 2])
    found = []

    def same(name: str, model: Any, product: Any) -> None:
        if list(model) != list(product):
            found.append(f"seed {seed} {name}: the model has {list(model)}, the package {list(product)}")

    def times(column: np.ndarray) -> list[float]:
        return [at if at < 0 else at / MS for at in column.tolist()]

    sent = [request for request in range(world.n) if world.sent[request] >= 0]
    counted = [r for r in sent if r not in world.timed_out]  # nothing is promised of the others
    records = run.records
    for name, ours, theirs in (
        ("arrival", world.sent, times(records.arrival_ps)),
        ("start", world.start, times(records.first_scheduled_ps)),
        ("first token", world.first, times(records.first_token_ps)),
        ("end", world.end, times(records.finish_ps)),
        ("replica", world.replica_of, run.replica_of.tolist()),
    ):
        asked = sent if name == "arrival" else counted
        same(name, [(r, ours[r]) for r in asked], [(r, theirs[r]) for r in asked])
    same(
        "counts",
        [len(world.timed_out), len(world.lost), len(world.rejected), world.restarted],
        [run.timed_out, run.lost, run.rejected, run.restarted],
    )
    same("status", [len(world.done) == world.n], [run.status == "complete"])
    last = max(world.end)
    ours = [
        (r.number, r.since, r.until if 0 <= r.until < last else None)
        for r in world.replicas
        if r.since < last
    ]
    members = [
        (r.number, round(r.from_s * 1000), None if r.until_s is None else round(r.until_s * 1000))
        for r in run.replicas
    ]
    same(
        "replicas",
        ours,
        [(n, a, b if b is not None and b < last else None) for n, a, b in members if a < last],
    )
    return found


@pytest.mark.parametrize("first", mostly_slow(range(0, LONG, PART), (*range(0, FAST, PART), LEAVES_AT_ONCE)))
def test_the_deployment_equals_the_model(first: int) -> None:
    found = [line for seed in range(first, first + PART) for line in differences(seed)]
    assert not found, "\n".join(found[:3])


@pytest.mark.parametrize("loop", ["core", "events"])
def test_the_last_request_of_a_failed_replica_waits_for_its_replacement(loop: str) -> None:
    fleet = Fleet(
        arrival=[0],
        prompt=[10],
        output=[5],
        pools=[0],
        base=[10],
        token=[0],
        lifetimes=[25, 1000],
        recovery=20,
    )
    assert World(fleet).run().end == [25 + 20 + 5 * 10]
    run = run_product(fleet, {}, loop)
    assert run.records.finish_ps.tolist() == [95 * MS]


def test_autoscaling_needs_a_replica() -> None:
    with pytest.raises(InvalidInput, match="max_replicas must be at least 1, not 0"):
        Autoscaling(max_replicas=0, target_requests=1, startup_s=0)
