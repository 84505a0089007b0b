"""Measurement cases and checks with their results: one JSON object per case, so that an interrupted run keeps its
results."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from capacity.base.data_files import read_data
from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import parse_json, read_text
from capacity.base.record import WrittenRecord
from capacity_validate.timing import GRAPH_BELOW_S, Timing

ON_HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(WrittenRecord):
    """One check: `value` must be at most `limit` (or equal to it, if `exact`)."""

    LAST: ClassVar[tuple[str, ...]] = ("passed",)

    name: str
    value: float
    limit: float
    detail: str
    exact: bool = False
    device: str = ""  # the checked device: the measured one, or ON_HOST if checked on the CPU only

    @property
    def passed(self) -> bool:
        return self.value == self.limit if self.exact else self.value <= self.limit


SCHEMA = "capacity/measurements/v1"
UNKNOWN_GPU = "an unknown GPU"  # the device of kernel times of other tools that do not name it
OPERATORS = read_data(Path(__file__).with_name("operators.toml"))
FORMATS = read_data(Path(__file__).with_name("formats.toml"))
# timed as issued, never inside a graph of the stopwatch
HOST_BOUND = ("launch", "transfer", "collective")
PROCESS_DIED = "the process ended while it measured this case"
MAX_ATTEMPTS = 2  # for a case that ran out of memory or failed, over all runs of a file
Status = Literal["ok", "wrong", "implausible", "unsupported", "out of memory", "failed"]
RETRIED_STATUSES: tuple[Status, ...] = ("out of memory", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation to time, with its sizes: `operator` selects the step model's formula, `kernel` the constants in the
    formula, `variant` a backend or mode."""

    operator: str
    kernel: str
    variant: str = ""
    sizes: tuple[tuple[str, int], ...]

    @property
    def id(self) -> str:
        sizes = ",".join(f"{name}={value}" for name, value in self.sizes)
        return "/".join(part for part in (self.operator, self.kernel, self.variant, sizes) if part)

    @property
    def family(self) -> str:
        """Return "operator/kernel/variant", the name of the group of cases that are fitted and evaluated together."""
        return "/".join(part for part in (self.operator, self.kernel, self.variant) if part)

    @property
    def engine(self) -> str:
        """Return `engine@version` if the case runs an operator of an installed engine, else an empty string."""
        return self.variant if "@" in self.variant else ""

    @property
    def is_step(self) -> bool:
        """Return whether this is a step of a whole model (the campaign's model or the held-out one), not a kernel."""
        return self.operator.startswith(("model ", "unseen "))

    def of_format(self, name: str, default: Any = None) -> Any:
        """Return a property of the kernel's number format, from formats.toml; `default` if the format lacks it."""
        return FORMATS.get(self.kernel, {}).get(name, default)

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]

    def get(self, name: str, default: int) -> int:
        return dict(self.sizes).get(name, default)


def make_case(operator: str, kernel: str, *, variant: str = "", **sizes: int) -> Case:
    return Case(operator=operator, kernel=kernel, variant=variant, sizes=tuple(sorted(sizes.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCase:
    """A case with its time, its FLOP and bytes, and its error against a higher-precision reference result."""

    case: Case
    status: Status
    timing: Timing | None = None
    flops: float = 0.0
    bytes: float = 0.0
    reference_error: float | None = None
    extra_bytes: float | None = None  # memory allocated by the kernel, without inputs and output
    burst_s: float | None = None  # median of a sustained case's first calls
    conditions: Mapping[str, Any] | None = None  # clocks, power and heat while it was timed
    attempts: int = 1
    passes: int = 0  # passes in its samples; 0: unknown
    note: str = ""

    @property
    def seconds(self) -> float:
        if self.timing is None:
            raise ValueError(f"{self.case.id} was not timed: {self.status}")
        return self.timing.seconds

    @property
    def slowed(self) -> bool:
        """Return whether heat or a power brake reduced the clocks in nearly all samples."""
        return self.timing is not None and self.timing.slowed

    @property
    def has_launch_gaps(self) -> bool:
        """Return whether a short kernel was timed outside a graph, so that launch overhead distorts its time."""
        timing, operator = self.timing, self.case.operator
        if timing is None or self.case.is_step or operator in HOST_BOUND:
            return False
        return timing.how == "events" and timing.seconds < GRAPH_BELOW_S


_OPTIONAL_FIELDS = ("reference_error", "extra_bytes", "burst_s", "conditions", "note")


def to_record(measured: MeasuredCase) -> dict[str, Any]:
    sizes = dict(measured.case.sizes)
    record: dict[str, Any] = {**asdict(measured.case), "sizes": sizes, "status": measured.status}
    if measured.timing is not None:
        record["timing"] = asdict(measured.timing)
        record |= {"flops": measured.flops, "bytes": measured.bytes}
    for name in _OPTIONAL_FIELDS:
        if value := getattr(measured, name):
            record[name] = value
    if measured.attempts > 1:
        record["attempts"] = measured.attempts
    if measured.passes:
        record["passes"] = measured.passes
    return record


def from_record(record: Mapping[str, Any]) -> MeasuredCase:
    timing = record.get("timing")
    kept = ("flops", "bytes", *_OPTIONAL_FIELDS, "attempts", "passes")
    return MeasuredCase(
        case=make_case(
            str(record["operator"]),
            str(record["kernel"]),
            variant=str(record.get("variant", "")),
            **record["sizes"],
        ),
        status=record["status"],
        timing=None if timing is None else Timing(**{**timing, "samples": tuple(timing.get("samples", ()))}),
        **{name: record[name] for name in kept if name in record},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """A measurement file: device and software, profile, model names, and the last result of each case."""

    path: str
    environment: Mapping[str, Any]
    profile: str
    cases: tuple[MeasuredCase, ...]
    profile_toml: str | None = None  # profile of a device without a bundled one
    model: str | None = None  # the model whose steps are among the cases
    unseen: str | None = None  # a second model, whose steps are held out
    conditions: Mapping[str, Any] = field(default_factory=dict)  # conditions that a continued run must share
    notices: tuple[str, ...] = ()
    runs: tuple[Mapping[str, Any], ...] = ()  # the summary of each run that ended, by plausibility

    @property
    def timed(self) -> tuple[MeasuredCase, ...]:
        return tuple(case for case in self.cases if case.status == "ok" and case.timing is not None)


class MeasurementLog:
    """Appends results to a measurement file. It continues a file of the same device and rejects one of another."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.done: dict[str, MeasuredCase] = {}
        if path.exists() and path.stat().st_size:
            self._resume(header)
        else:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise _unwritable(path.parent, error) from None
            self._write({"schema": SCHEMA, **header})

    def _resume(self, header: Mapping[str, Any]) -> None:
        earlier = read_measurements(self.path)
        environments = (earlier.environment, header["environment"])
        was, now = ({key: each.get(key) for key in ("device", "torch")} for each in environments)
        was, now = was | dict(earlier.conditions), now | dict(header.get("conditions", {}))
        require_same_conditions(self.path, was, now)
        self.done = {measured.case.id: measured for measured in earlier.cases}
        if (died := self._read_marker()) is not None:
            self.add(
                MeasuredCase(
                    case=died,
                    status="failed",
                    note=PROCESS_DIED,
                    attempts=min(MAX_ATTEMPTS, self.attempts(died) + 1),
                )
            )

    def mark_started(self, case: Case) -> None:
        """Record the case that starts now, so that the next run can detect that this case killed the process."""
        try:
            self._marker.write_text(json.dumps(to_record(MeasuredCase(case=case, status="failed"))))
        except OSError as error:
            raise _unwritable(self._marker, error) from None

    def clear_marker(self) -> None:
        """Record that no case is running."""
        self._marker.unlink(missing_ok=True)

    def _read_marker(self) -> Case | None:
        try:
            return from_record(json.loads(self._marker.read_text())).case
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def _marker(self) -> Path:
        return self.path.with_suffix(".underway")

    def attempts(self, case: Case) -> int:
        """Return the number of failed attempts at a case."""
        earlier = self.done.get(case.id)
        return 0 if earlier is None or earlier.status not in RETRIED_STATUSES else earlier.attempts

    def is_settled(self, case: Case, *, passes: int = 1) -> bool:
        """Return whether a case needs no further run. A failed or out-of-memory case gets a second attempt.

        A case that was timed in fewer than `passes` passes runs again too.
        """
        earlier = self.done.get(case.id)
        if earlier is None or (earlier.status == "ok" and 0 < earlier.passes < passes):
            return False
        return not 0 < self.attempts(case) < MAX_ATTEMPTS

    def add(self, measured: MeasuredCase) -> None:
        self.done[measured.case.id] = measured
        self._write(to_record(measured))

    def add_run(self, summary: Mapping[str, Any]) -> None:
        self._write({"run": dict(summary)})

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from None


def _unwritable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be written: {error.strerror}; name another folder with --out")


def read_measurements(path: Path | str) -> Measurements:
    """Read a measurement file. An incomplete last line, left by a killed process, is ignored. Raises MalformedFile."""
    path = Path(path)
    lines = read_text(path, "a measurement file").splitlines()
    if not lines:
        raise MalformedFile(path, "is empty")
    header = _json_object(path, lines[0], 1)
    if header.get("schema") != SCHEMA:
        raise MalformedFile(
            path, f"is not a measurement file: schema is {header.get('schema')!r}, not {SCHEMA!r}"
        )
    cases: dict[str, MeasuredCase] = {}
    runs: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            record = _json_object(path, line, number)
            if isinstance(record.get("run"), dict):
                runs.append(record["run"])
                continue
            measured = from_record(record)
        except (KeyError, TypeError) as error:
            raise MalformedFile(path, f"is not a measured case: {error}", where=f"line {number}") from None
        except MalformedFile:
            if number == len(lines):
                continue
            raise
        cases[measured.case.id] = measured
    return Measurements(
        path=str(path),
        environment=header.get("environment", {}),
        profile=str(header.get("profile", "")),
        profile_toml=header.get("profile_toml"),
        model=header.get("model"),
        unseen=header.get("unseen"),
        conditions=header.get("conditions", {}),
        cases=tuple(cases.values()),
        runs=tuple(runs),
    )


def _json_object(path: Path, line: str, number: int) -> dict[str, Any]:
    try:
        value = parse_json(line, path)
    except MalformedFile as error:
        raise MalformedFile(path, error.problem, where=f"line {number}") from None
    if not isinstance(value, dict):
        raise MalformedFile(path, "is not a JSON object", where=f"line {number}")
    return value


def require_same_conditions(path: object, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise InvalidInput with every difference between the conditions in the file (`was`) and of this run (`now`)."""
    differing = [
        f"{name} {_describe_value(was.get(name))}, now {_describe_value(now.get(name))}"
        for name in dict.fromkeys((*was, *now))
        if was.get(name) != now.get(name)
    ]
    if differing:
        raise InvalidInput(
            f"{path} was measured under other conditions: {'; '.join(differing)}. Choose another --out, because "
            "one file must not mix measurements of different machines or conditions"
        )


def _describe_value(value: Any) -> str:
    return "unknown" if value is None else repr(value)
