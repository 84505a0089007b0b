"""Submissions: the results of a validation run in one archive without host names, and a check that fits them again.

`capacity validate --submit` packs the archive. `python -m capacity_validate.submission ARCHIVE` prints whether an
archive is accepted, or which check failed; it needs no GPU and no torch.
"""

import contextlib
import getpass
import gzip
import hashlib
import io
import json
import math
import re
import socket
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.external_files import parse_json, read_bytes, read_text
from capacity.base.output_files import write_file
from capacity.hardware import HardwareProfile, load_profile, parse_profile
from capacity_validate.calibrating import base_profile, calibrate_kernels, combine_cases
from capacity_validate.cases import Measurements, read_measurements
from capacity_validate.environment import package_version
from capacity_validate.plausibility import explain_impossible_speed, require_valid
from capacity_validate.profile_match import is_provisional
from capacity_validate.report_data import median_error
from capacity_validate.review import review

SCHEMA = "capacity/submission/v1"
MANIFEST, MEASUREMENTS, REPORT = "submission.json", "measurements.jsonl", "report.json"
VARIANT = "mine"  # of the profile that `capacity validate` writes
SAME_ERROR = 1e-3  # absolute difference of a reported and a replayed error
SAME_CONSTANT = 1e-4  # relative difference of a submitted and a replayed constant
VERSIONS = {"libraries", "torch", "python"}  # of four numbers some, like addresses
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_HOME = re.compile(r"(?:/home|/Users)/[\w.-]+|/root\b")


def pack_submission(folder: Path) -> Path:
    """Pack the results in the output folder of `capacity validate` into one archive in this folder; return its path.

    Host and user names, home folders and network addresses are replaced. Raises InvalidInput if results are missing,
    MalformedFile if they cannot be read.
    """
    for name in (MEASUREMENTS, REPORT):
        if not (folder / name).is_file():
            raise InvalidInput(f"{folder} has no {name}: run capacity validate with this --out first")
    records = []
    for line in read_text(folder / MEASUREMENTS, "a measurement file").splitlines():
        with contextlib.suppress(ValueError):  # a last line cut short by a kill
            records.append(json.loads(line))
    measured = read_measurements(folder / MEASUREMENTS)
    report = parse_json(read_text(folder / REPORT, "a validation report"), folder / REPORT)
    files = {
        MEASUREMENTS: "".join(f"{json.dumps(anonymise(record))}\n" for record in records),
        REPORT: json.dumps(anonymise(report), indent=1) + "\n",
    }
    profile = folder / f"{measured.profile.partition('@')[0]}@{VARIANT}.toml"
    if profile.is_file():
        files[profile.name] = str(anonymise(profile.read_text(encoding="utf-8")))
    manifest = {
        "schema": SCHEMA,
        "package": package_version("llm-capacity") or "checkout",
        "device": measured.environment.get("device"),
        "verdict": anonymise(report.get("verdict")),
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()},
    }
    content = _archive({MANIFEST: json.dumps(manifest, indent=1) + "\n", **files})
    device = re.sub(r"[^a-z0-9]+", "-", str(manifest["device"]).lower()).strip("-")
    path = folder / f"capacity-{device}-{hashlib.sha256(content).hexdigest()[:8]}.tar.gz"
    write_file(path, content, "; name another folder with --out")
    return path


def _archive(files: Mapping[str, str]) -> bytes:
    """Return a gzip-compressed tar archive without owners and times, so equal files give equal bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


def anonymise(value: Any) -> Any:
    """Return a JSON value with names of this host and user, home folders and network addresses replaced."""
    if isinstance(value, Mapping):
        return {key: each if key in VERSIONS else anonymise(each) for key, each in value.items()}
    if isinstance(value, list):
        return [anonymise(each) for each in value]
    if not isinstance(value, str):
        return value
    for name, word in _private_names().items():
        value = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", word, value)
    return _ADDRESS.sub("ADDRESS", _HOME.sub("~", value))


def _private_names() -> dict[str, str]:
    """Return the names of this machine and its user, and the word that replaces each; the longest first."""
    host = socket.gethostname()
    names = {str(Path.home()): "~", socket.getfqdn(): "HOST", host: "HOST", host.partition(".")[0]: "HOST"}
    with contextlib.suppress(OSError, KeyError):
        names[getpass.getuser()] = "USER"
    usual = ("", "/", "localhost", "root", "user", "ubuntu")
    return {name: names[name] for name in sorted(names, key=len, reverse=True) if name not in usual}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a submission. `detail`: what was found, or why it failed."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The files of an unpacked archive."""

    measurements: Measurements
    report: Mapping[str, Any]
    profile: HardwareProfile  # before calibration
    calibrated: HardwareProfile | None


def check_submission(path: Path, *, earlier: Sequence[Path] = ()) -> tuple[Check, ...]:
    """Check a submission and return the result of each check, up to the first that fails.

    `earlier`: measurement files of other runs; those of the same device must agree. Raises MalformedFile if the archive
    cannot be read.
    """
    checks: list[Check] = []
    read = cache(_read)
    steps: Mapping[str, Callable[[Path], str]] = {
        "archive": lambda folder: _unpack(path, folder),
        "privacy": _check_privacy,
        "device": lambda folder: _check_device(read(folder)),
        "samples": lambda folder: _check_samples(read(folder)),
        "plausible times": lambda folder: _check_times(read(folder)),
        "replay": lambda folder: _check_replay(read(folder), folder),
        "earlier measurements": lambda folder: _check_earlier(read(folder), earlier),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, step in steps.items():
            try:
                checks.append(Check(name=name, passed=True, detail=step(Path(folder))))
            except CapacityError as error:
                checks.append(Check(name=name, passed=False, detail=str(error).replace(f"{folder}/", "")))
                break
    return tuple(checks)


def _unpack(path: Path, folder: Path) -> str:
    """Unpack the files that the manifest lists and compare their digests. Only plain files are accepted."""
    content = read_bytes(path, "a submission")
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for entry in archive:
                if (
                    not entry.isfile()
                    or "/" in entry.name
                    or "\\" in entry.name
                    or entry.name.startswith(".")
                ):
                    raise InvalidInput(f"{entry.name!r} is not a plain file at the top of the archive")
                packed = archive.extractfile(entry)
                files[entry.name] = b"" if packed is None else packed.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidInput(f"{path} is not an archive of capacity validate --submit: {error}") from None
    manifest = parse_json(files.pop(MANIFEST, b"{}").decode(errors="replace"), MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise InvalidInput(f"{path} has no {MANIFEST} with the schema {SCHEMA}")
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in files.items()}
    if digests != manifest.get("files") or not {MEASUREMENTS, REPORT} <= digests.keys():
        raise InvalidInput(f"the files are not those that {MANIFEST} lists, or were changed after packing")
    for name, text in files.items():
        (folder / name).write_bytes(text)
    _read(folder)
    return f"{len(files)} files, packed by {manifest.get('package')}"


def _read(folder: Path) -> Submission:
    measured = read_measurements(folder / MEASUREMENTS)
    report = parse_json((folder / REPORT).read_text(encoding="utf-8"), REPORT)
    if not isinstance(report, dict):
        raise InvalidInput(f"{REPORT} is not a JSON object")
    profiles = sorted(folder.glob("*.toml"))
    calibrated = parse_profile(profiles[0].read_text(encoding="utf-8")) if profiles else None
    profile = base_profile([measured], gpu=None, directories=())
    return Submission(measurements=measured, report=report, profile=profile, calibrated=calibrated)


def _check_privacy(folder: Path) -> str:
    for path in sorted(folder.iterdir()):
        if (found := _HOME.search(path.read_text(encoding="utf-8"))) is not None:
            raise InvalidInput(f"{path.name} names the folder {found[0]}")
    return "no home folders"


def _check_device(found: Submission) -> str:
    environment = found.measurements.environment
    doubts = require_valid([found.measurements], found.profile)
    driver = (environment.get("facts") or {}).get("driver_version")
    text = f"{environment.get('device')}, driver {driver}, torch {environment.get('torch')}"
    return "; doubtful: ".join([f"{text}, profile {found.profile.name}", *doubts])


def _check_samples(found: Submission) -> str:
    for case in found.measurements.timed:
        timing = case.timing
        assert timing is not None
        times = (timing.low_s, timing.seconds, timing.high_s, *timing.samples)
        if not all(math.isfinite(value) and value > 0 for value in times) or list(times[:3]) != sorted(
            times[:3]
        ):
            raise InvalidInput(
                f"{case.case.id}: all times must be positive, and the median must be between lowest and highest"
            )
        outside = sum(not 0.99 * timing.low_s <= sample <= 1.01 * timing.high_s for sample in timing.samples)
        if timing.samples and outside > 0.5 * len(timing.samples):
            raise InvalidInput(
                f"{case.case.id}: {outside} of {len(timing.samples)} samples are outside their range"
            )
    return f"{len(found.measurements.timed)} timed cases"


def _check_times(found: Submission) -> str:
    if found.measurements.environment.get("kind") == "cpu" or is_provisional(found.profile):
        return "not checked: the profile is not from a datasheet"
    for case in found.measurements.timed:
        if (reason := explain_impossible_speed(case, found.profile)) is not None:
            raise InvalidInput(f"{case.case.id}: {reason}")
    return "no time is shorter than the datasheet allows"


def _check_replay(found: Submission, folder: Path) -> str:
    """Fit and evaluate the measurements again, and compare with the submitted report and profile."""
    rows = review([folder / MEASUREMENTS]).cases
    texts = []
    for name, operator in (("ttft_error", "model prefill"), ("tpot_error", "model decode")):
        stated, own = found.report.get(name), median_error(rows, operator)
        same = stated == own if stated is None or own is None else abs(own - float(stated)) <= SAME_ERROR
        if not same:
            raise InvalidInput(f"{REPORT} states {name} {stated}, and the replay gives {own}")
        texts.append(f"{name} {'unknown' if own is None else f'{own:.1%}'}")
    if found.calibrated is not None:
        answer = calibrate_kernels(
            [str(folder / MEASUREMENTS)], name=VARIANT, gpu=None, out=folder / "replay", profiles=()
        )
        own_numbers = _numbers(load_profile(answer.path))
        for place, value in _numbers(found.calibrated).items():
            if not math.isclose(
                value, own_numbers.get(place, math.nan), rel_tol=SAME_CONSTANT, abs_tol=1e-30
            ):
                raise InvalidInput(
                    f"the profile states {place} = {value:g}, and the replay gives {own_numbers.get(place)}"
                )
        texts += [
            f"{family} {before:.1%} -> {after:.1%}" for family, (before, after) in answer.errors.items()
        ]
    return ", ".join(texts)


def _numbers(profile: HardwareProfile) -> dict[str, float]:
    """Return the numbers in a profile's step-time tables by their path, such as `families.torch.gemm.bf16.fixed_s`."""
    known = profile.step_time

    def leaves(value: Any, place: str) -> Iterator[tuple[str, float]]:
        if isinstance(value, Mapping):
            for key, each in value.items():
                yield from leaves(each, f"{place}.{key}" if place else str(key))
        elif isinstance(value, list | tuple):
            for number, each in enumerate(value):
                yield from leaves(each, f"{place}.{number}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield place, float(value)

    return {} if known is None else dict(leaves(known.model_dump(), ""))


def _check_earlier(found: Submission, earlier: Sequence[Path]) -> str:
    device = found.measurements.environment.get("device")
    others = [each for each in map(read_measurements, earlier) if each.environment.get("device") == device]
    for each in others:
        combine_cases([found.measurements, each])
    return f"agrees with {len(others)} earlier files of this device"


def submission_lines(checks: Sequence[Check]) -> list[str]:
    """Return the checks as lines for a terminal; the last line is the result."""
    shown = [f"{'passed' if check.passed else 'FAILED':<7}{check.name}: {check.detail}" for check in checks]
    last = checks[-1]
    return [*shown, "accepted" if last.passed else f"rejected: {last.name}: {last.detail}"]


def main(arguments: Sequence[str]) -> int:
    """Check the archive named on the command line against the earlier measurement files that follow it."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m capacity_validate.submission ARCHIVE [EARLIER.jsonl ...]", file=sys.stderr)
        return 2
    checks = check_submission(Path(arguments[0]), earlier=[Path(name) for name in arguments[1:]])
    print("\n".join(submission_lines(checks)))
    return 0 if checks[-1].passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
