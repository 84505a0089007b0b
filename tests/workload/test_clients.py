"""Many clients at once: the skew, the bursts and the day that were asked for, and a run whose memory is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capacity.answers.engine_setup import make_workload
from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic, build
from capacity.workload import (
    Clients,
    FixedLengths,
    GammaLengths,
    SteadyArrivals,
    Workload,
    client_mix,
    diurnal,
)

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "simulation_speed.py"


def mix(count: int = 40_000, **more: Any) -> Workload:
    options: dict[str, Any] = {
        "clients": Clients(500, burstiness=0.4),
        "pace": diurnal(count / 1000, period_s=1000, peak_at_s=500, peak_to_mean=1.6),
        "prompt": GammaLengths(600, 1.0),
        "output": GammaLengths(200, 1.0),
    }
    return client_mix(num_requests=count, **(options | more))


def test_a_few_clients_send_most() -> None:
    workload = mix()
    assert workload.session is not None
    sent = np.sort(np.bincount(workload.session, minlength=500))[::-1]
    weights = np.arange(1, 501) ** -1.5
    assert sent[:15].sum() / sent.sum() == pytest.approx(weights[:15].sum() / weights.sum(), abs=0.02)
    assert len(workload) == 40_000


def test_the_day_is_that_of_the_pace() -> None:
    """Requests per tenth of a day, of clients that burst, stand around the sinusoid."""
    workload = mix(clients=Clients(5000, zipf=0.3, burstiness=0.4))
    found = np.histogram(workload.arrival_s, bins=10, range=(0, 1000))[0]
    edges = np.linspace(0, 1000, 11)
    cosine = np.diff(np.sin(2 * np.pi * (edges - 500) / 1000)) * 1000 / (2 * np.pi)
    np.testing.assert_allclose(found, 40 * (100 + 0.6 * cosine), rtol=0.06)
    assert workload.arrival_s[-1] <= 1000


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_a_client_has_the_gaps_that_were_asked_for(burstiness: float) -> None:
    workload = mix(clients=Clients(2, zipf=0.0, burstiness=burstiness), pace=SteadyArrivals(40.0))
    assert workload.session is not None
    gaps_s = np.diff(workload.arrival_s[workload.session == 0])
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    assert workload.request_rate_per_s == pytest.approx(40.0, rel=0.01)


def test_lengths_differ_between_clients_and_keep_their_means() -> None:
    workload = mix(clients=Clients(100, zipf=0.0, length_cv=0.8), prompt=FixedLengths(600))
    assert workload.session is not None
    assert workload.prompt_tokens.mean() == pytest.approx(600, rel=0.01)
    assert workload.output_tokens.mean() == pytest.approx(200, rel=0.05)
    own = [set(workload.prompt_tokens[workload.session == client].tolist()) for client in range(100)]
    assert {len(lengths) for lengths in own} == {1}
    means = np.array([next(iter(lengths)) for lengths in own])
    assert means.std() / means.mean() == pytest.approx(0.8, rel=0.35)


def test_each_client_has_a_system_prompt_of_its_own() -> None:
    workload = mix(client_prompt_tokens=128)
    assert workload.content is not None
    assert workload.session is not None
    first = workload.content.segment_ids[workload.content.offsets[:-1]]
    np.testing.assert_array_equal(first, workload.session)
    plain = mix()
    np.testing.assert_array_equal(workload.prompt_tokens, plain.prompt_tokens + 128)


def test_the_same_day_at_twice_the_rate() -> None:
    words = {
        "input_len": 100,
        "output_len": 20,
        "clients": 300,
        "arrivals": "diurnal",
        "day_length_s": 500.0,
        "burstiness": 0.5,
    }
    once, twice = (
        make_workload(build(Traffic, {**words, "request_rate": 20.0 * k, "num_prompts": 10_000 * k}))
        for k in (1, 2)
    )
    assert (
        once.fingerprint()
        == make_workload(build(Traffic, {**words, "request_rate": 20.0, "num_prompts": 10_000})).fingerprint()
    )
    shares = [np.histogram(w.arrival_s, bins=5, range=(0, 500))[0] / len(w) for w in (once, twice)]
    np.testing.assert_allclose(shares[0], shares[1], atol=0.03)
    assert twice.request_rate_per_s == pytest.approx(2 * once.request_rate_per_s, rel=0.02)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"concurrency": 4}, "concurrency"),
        ({"turns": 3}, "turns"),
        ({"num_prefixes": 3}, "num-prefixes"),
        ({"request_rate": None}, "request-rate"),
    ],
)
def test_what_clients_exclude_is_refused(words: dict[str, Any], said: str) -> None:
    given = {"input_len": 100, "output_len": 20, "clients": 10, "request_rate": 5.0} | words
    with pytest.raises(InvalidInput, match=said):
        make_workload(build(Traffic, {name: value for name, value in given.items() if value is not None}))


def test_clients_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="Zipf"):
        Clients(10, zipf=-1.0)
    with pytest.raises(InvalidInput, match="clients"):
        Clients(0)
    with pytest.raises(InvalidInput, match="burstiness"):
        Clients(10, burstiness=0.0)
