"""Clocks, power and heat while cases run: readings in a thread, samples flagged, and what a reader is told."""

import time

import pytest
from capacity_validate.telemetry import (
    MIN_READINGS,
    Reading,
    Telemetry,
    merge_conditions,
    telemetry_remarks,
)


def recorded(*readings: Reading) -> Telemetry:
    telemetry = Telemetry(lambda: None)
    telemetry.readings.extend(readings)
    return telemetry


def at(instant: float, ghz: float = 1.9, watts: float = 500.0, reasons: tuple[str, ...] = ()) -> Reading:
    return Reading(at_s=instant, sm_clock_hz=ghz * 1e9, power_watts=watts, temperature_c=50, reasons=reasons)


def test_a_thread_reads_until_the_end_and_survives_silence() -> None:
    answers = iter([None, *(at(float(i)) for i in range(1000))])
    telemetry = Telemetry(lambda: next(answers), every_s=0.001)
    with telemetry:
        deadline = time.monotonic() + 5
        while len(telemetry.readings) < 5 and time.monotonic() < deadline:
            time.sleep(0.002)
    count = len(telemetry.readings)
    assert count >= 5
    time.sleep(0.01)
    assert len(telemetry.readings) == count


def test_conditions_of_a_stretch_are_its_own_readings() -> None:
    telemetry = recorded(at(0), at(1, 1.5, 690.0, ("power cap",)), at(2, 1.7, 710.0), at(3, 0.3))
    found = telemetry.conditions(0.5, 2.5)
    assert found is not None
    assert (found["clock_hz"], found["clock_low_hz"], found["power_watts"]) == (1.6e9, 1.5e9, 700.0)
    assert (found["reasons"], found["readings"]) == (("power cap",), 2)
    nearest = telemetry.conditions(1.10, 1.12)  # shorter than a reading's interval
    assert nearest is not None
    assert nearest["clock_hz"] == 1.5e9
    assert recorded().conditions(0, 1) is None


def test_each_sample_is_flagged_by_the_reading_nearest_to_it() -> None:
    telemetry = recorded(at(0), at(1, reasons=("heat (hardware)",)), at(2), at(3, reasons=("power cap",)))
    assert telemetry.held_down([0.1, 0.4, 0.9, 1.4, 1.6, 3.0]) == [False, False, True, True, False, False]
    assert recorded().held_down([1.0]) == [False]


@pytest.mark.parametrize(
    ("reading", "flagged"),
    [
        (at(100, 1.60), True),  # 16 % below what the card usually does, and nobody says why
        (at(100, 1.60, reasons=("power cap",)), False),  # heavy work at the power limit: serving runs so too
        (at(100, 1.75), False),
    ],
)
def test_an_odd_clock_is_held_against_the_usual_one(reading: Reading, flagged: bool) -> None:
    telemetry = recorded(*(at(float(i)) for i in range(MIN_READINGS)), reading)
    assert telemetry.held_down([100.0]) == [False]  # nothing is usual yet
    telemetry.conditions(0.0, 50.0)
    assert telemetry.held_down([100.0]) == [flagged]


def test_passes_of_a_case_are_merged() -> None:
    telemetry = recorded(at(0, 1.9), at(10, 1.3, 700.0, ("power cap",)))
    stretches = [c for c in (telemetry.conditions(0, 0), telemetry.conditions(10, 10)) if c is not None]
    found = merge_conditions(stretches)
    assert found is not None
    assert (found["clock_low_hz"], found["power_watts"], found["readings"]) == (1.3e9, 600.0, 2)
    assert merge_conditions([]) is None


def test_remarks_are_of_the_clocks_under_load_and_not_of_an_idle_card() -> None:
    idle = [at(float(i), 0.3) for i in range(50)]
    loaded = [at(100.0 + i, 1.3, reasons=("heat (software)",)) for i in range(50)]
    telemetry = recorded(*idle, *loaded)
    assert telemetry_remarks(telemetry, top_hz=1.98e9) == ()
    telemetry.conditions(100.0, 200.0)
    low, heat = telemetry_remarks(telemetry, top_hz=1.98e9)
    assert "had a median of 1.30 GHz" in low
    assert "its maximum is 1.98 GHz" in low
    assert heat == "the clocks were reduced by heat (software) in 50% of 100 readings"
    assert telemetry_remarks(None, top_hz=1e9) == ()
