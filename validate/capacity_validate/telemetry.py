"""Clocks, power and temperature of a GPU under load, polled by a thread and matched to each timing sample.

A card below its power limit runs bursts of a few ms at boost clocks, but serves at lower clocks. Slowdowns due to heat
or a power brake must not affect the step model's constants.
"""

import statistics
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

EVERY_S = 0.05
SLOW = 0.9  # fraction of the median clock under load, as in nvbench's throttle check
MIN_READINGS = 20  # minimum number of readings for a median clock
CLOCK_FRACTION = 0.85  # fraction of the maximum clock; under load, boost clocks are slightly below it
POWER_CAP = "power cap"
# reasons to exclude a sample; a power cap is normal in serving and measured by sustained cases
HARMFUL = ("hardware slowdown", "heat (software)", "heat (hardware)", "power brake")


Conditions = dict[str, Any]
"""Readings of a period as a JSON object: median and lowest clock, mean power, highest temperature, throttle reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of the card. `at_s` is a value of `time.monotonic`. A field is None if the driver does not report
    it."""

    at_s: float
    sm_clock_hz: float | None = None
    power_watts: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class Telemetry:
    """Polls `read` every `every_s` seconds in a thread while its `with` block runs. Failed readings are left out."""

    read: Callable[[], Reading | None]
    every_s: float = EVERY_S
    readings: list[Reading] = field(default_factory=list)
    _loaded_hz: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
            self._thread = None

    def _run(self) -> None:
        while not self._stop.is_set():
            reading = self.read()
            if reading is not None:
                self.readings.append(reading)
            self._stop.wait(self.every_s)

    def conditions(self, began_s: float, ended_s: float) -> Conditions | None:
        """Return clocks, power and temperature between two times, else the nearest reading; None without readings."""
        readings = self._readings_since(began_s)
        middle_s = (began_s + ended_s) / 2
        inside = [r for r in readings if began_s <= r.at_s <= ended_s]
        found = inside or sorted(readings, key=lambda r: abs(r.at_s - middle_s))[:1]
        self._loaded_hz += [r.sm_clock_hz for r in found if r.sm_clock_hz is not None]
        return merge_conditions(
            [
                {
                    "clock_hz": reading.sm_clock_hz,
                    "clock_low_hz": reading.sm_clock_hz,
                    "power_watts": reading.power_watts,
                    "temperature_c": reading.temperature_c,
                    "reasons": reading.reasons,
                    "readings": 1,
                }
                for reading in found
            ]
        )

    @property
    def throttled_fraction(self) -> float:
        """Return the fraction of all readings in which heat or a power brake reduced the clocks."""
        throttled = sum(any(reason in HARMFUL for reason in r.reasons) for r in self.readings)
        return throttled / len(self.readings) if self.readings else 0.0

    def _readings_since(self, instant: float) -> list[Reading]:
        """Return the readings since a time, and the last one before it. (The thread may append during the call.)"""
        return self.readings[
            max(0, bisect_left(self.readings, instant, key=lambda reading: reading.at_s) - 1) :
        ]

    def held_down(self, instants: Sequence[float]) -> list[bool]:
        """Return for each sample, given its time, whether heat, a power brake or a low clock makes it unusable."""
        readings = self._readings_since(min(instants, default=0.0))
        if not readings:
            return [False] * len(instants)
        usual = statistics.median(self._loaded_hz) if len(self._loaded_hz) >= MIN_READINGS else None
        nearest = (min(readings, key=lambda r: abs(r.at_s - instant)) for instant in instants)
        return [_is_throttled(reading, usual) for reading in nearest]


def _is_throttled(reading: Reading, usual_hz: float | None) -> bool:
    if any(reason in HARMFUL for reason in reading.reasons):
        return True
    clock = reading.sm_clock_hz
    return (
        clock is not None
        and usual_hz is not None
        and clock < SLOW * usual_hz
        and POWER_CAP not in reading.reasons
    )


def _all_reasons(many: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason for reasons in many for reason in reasons))


def merge_conditions(stretches: Sequence[Conditions]) -> Conditions | None:
    """Combine conditions of several periods, such as all passes of a case; None if empty."""
    if not stretches:
        return None

    def combine(name: str, choose: Callable[[list[float]], float]) -> float | None:
        values = [value for stretch in stretches if (value := stretch[name]) is not None]
        return choose(values) if values else None

    return {
        "clock_hz": combine("clock_hz", statistics.median),
        "clock_low_hz": combine("clock_low_hz", min),
        "power_watts": combine("power_watts", statistics.fmean),
        "temperature_c": combine("temperature_c", max),
        "reasons": _all_reasons(stretch["reasons"] for stretch in stretches),
        "readings": sum(stretch["readings"] for stretch in stretches),
    }


def telemetry_remarks(telemetry: Telemetry | None, *, top_hz: float | None) -> tuple[str, ...]:
    """Return remarks on the whole run: clocks under load far below the maximum, and how often clocks were reduced."""
    loaded = [] if telemetry is None else telemetry._loaded_hz
    if telemetry is None or not loaded:
        return ()
    remarks = []
    median = statistics.median(loaded)
    if top_hz and median < CLOCK_FRACTION * top_hz:
        remarks.append(
            f"under load the SM clock had a median of {median / 1e9:.2f} GHz and a minimum of "
            f"{min(loaded) / 1e9:.2f} GHz; its maximum is {top_hz / 1e9:.2f} GHz"
        )
    for reason in _all_reasons(r.reasons for r in telemetry.readings):
        share = sum(reason in r.reasons for r in telemetry.readings) / len(telemetry.readings)
        if reason in (*HARMFUL, POWER_CAP):
            remarks.append(
                f"the clocks were reduced by {reason} in {share:.0%} of {len(telemetry.readings)} readings"
            )
    return tuple(remarks)
