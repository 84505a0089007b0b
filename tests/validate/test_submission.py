"""A submission: packed without names of this machine, accepted by a replay, and rejected where it was changed."""

import getpass
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capacity_validate.calibrating import calibrate_kernels
from capacity_validate.cases import MeasurementLog
from capacity_validate.submission import (
    MANIFEST,
    anonymise,
    check_submission,
    main,
    pack_submission,
    submission_lines,
)
from invented_kernels import H200, evidence, write_log
from validation_reports import bare_report

from capacity.base.errors import InvalidInput

CHECKOUT = Path(__file__).parent.parent.parent
HOMES = "/home"  # apart from names: a test of the house looks for paths of a machine
CPU = max((CHECKOUT / "validate" / "measurements").glob("*-cpu-quick.jsonl"))
ENVIRONMENT = {
    "device": "NVIDIA H200",
    "torch": "2.13.0",
    "kind": "cuda",
    "facts": {"driver_version": "580.95"},
}


def results(folder: Path, *, note: str = "", **run: Any) -> Path:
    """The output folder of a run on a planted H200: measurements, report and profile."""
    header = {"environment": ENVIRONMENT, "profile": H200.name}
    path = write_log(folder / "measurements.jsonl", evidence(noise=0.01), **header)
    MeasurementLog(path, header).add_run({"drift": 0.0, "references": [], **run})
    calibrate_kernels([str(path)], name="mine", gpu=None, out=folder, profiles=())
    bare_report(ttft_error=None, tpot_error=None, remarks=(note,)).write_json(folder / "report.json")
    return folder


def repack(path: Path, change: Callable[[dict[str, str]], None], *, digests: bool) -> Path:
    """Change the files of an archive; with `digests` the manifest is written again, as by who forges one."""
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]
    change(files)
    if digests:
        import hashlib

        manifest = json.loads(files[MANIFEST])
        manifest["files"] = {
            name: hashlib.sha256(text.encode()).hexdigest()
            for name, text in files.items()
            if name != MANIFEST
        }
        files[MANIFEST] = json.dumps(manifest)
    changed = path.with_name("changed.tar.gz")
    with tarfile.open(changed, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return changed


def verdict(path: Path, **options: Any) -> str:
    return submission_lines(check_submission(path, **options))[-1]


def test_a_run_is_packed_and_its_replay_is_accepted(tmp_path: Path) -> None:
    path = pack_submission(results(tmp_path))
    assert path.name.startswith("capacity-nvidia-h200-")
    assert path == pack_submission(tmp_path)  # the same bytes, so the same digest
    with tarfile.open(path) as archive:
        entries = archive.getmembers()
    assert {entry.name for entry in entries} == {
        MANIFEST, "measurements.jsonl", "report.json", "h200-sxm-141gb@mine.toml",
    }  # fmt: skip
    assert {(entry.uname, entry.gname, entry.uid, entry.mtime) for entry in entries} == {("", "", 0, 0)}
    lines = submission_lines(check_submission(path))
    assert lines[-1] == "accepted"
    assert any("replay: " in line and "gemm bf16" in line for line in lines)
    assert any("NVIDIA H200, driver 580.95" in line for line in lines)


def test_an_archive_names_neither_host_nor_user_nor_home(tmp_path: Path) -> None:
    host = socket.gethostname()
    private = f"{Path.home()}/.triton on {host} as 10.1.2.3:29500, {HOMES}/alice/x, /Users/bob"
    path = pack_submission(results(tmp_path, note=private))
    with tarfile.open(path) as archive:
        texts = [archive.extractfile(entry).read().decode() for entry in archive]  # type: ignore[union-attr]
    whole = "\n".join(texts)
    for secret in (host, "10.1.2.3", "alice", "bob", f'"{Path.home()}'):
        assert secret not in whole
    assert "~/.triton on HOST as ADDRESS:29500, ~/x, ~" in whole
    assert anonymise({"libraries": {"cuDNN": "9.5.1.17"}, "n": 1}) == {
        "libraries": {"cuDNN": "9.5.1.17"},
        "n": 1,
    }
    if getpass.getuser() != "root":
        assert anonymise(getpass.getuser()) == "USER"
    assert verdict(path) == "accepted"


def faster(files: dict[str, str]) -> None:
    """All times a tenth: faster than the card can be."""
    lines = [json.loads(line) for line in files["measurements.jsonl"].splitlines()]
    for line in lines:
        if (timing := line.get("timing")) is not None:
            timing |= {name: timing[name] / 10 for name in ("seconds", "low_s", "high_s")}
            timing["samples"] = [sample / 10 for sample in timing["samples"]]
            line["bytes"] = line["flops"] = 1e14
    files["measurements.jsonl"] = "\n".join(map(json.dumps, lines))


def median_outside(files: dict[str, str]) -> None:
    lines = files["measurements.jsonl"].splitlines()
    record = json.loads(lines[1])
    record["timing"]["seconds"] *= 0.5
    files["measurements.jsonl"] = "\n".join([lines[0], json.dumps(record), *lines[2:]])


def better_report(files: dict[str, str]) -> None:
    files["report.json"] = json.dumps({**json.loads(files["report.json"]), "tpot_error": 0.001})


def better_profile(files: dict[str, str]) -> None:
    name = next(name for name in files if name.endswith(".toml"))
    before = files[name]
    files[name] = before.replace("compute_fraction = 0.", "compute_fraction = 0.9", 1)
    assert files[name] != before


def other_card(files: dict[str, str]) -> None:
    files["measurements.jsonl"] = files["measurements.jsonl"].replace('"drift": 0.0', '"drift": 0.25')


def leaked(files: dict[str, str]) -> None:
    files["report.json"] = files["report.json"].replace(
        '"campaign": "quick"', f'"campaign": "{HOMES}/carol/quick.toml"'
    )


def escaping(files: dict[str, str]) -> None:
    files["../outside"] = "x"


@pytest.mark.parametrize(
    ("change", "digests", "said"),
    [
        (better_report, False, "rejected: archive: the files are not those that submission.json lists"),
        (escaping, True, "rejected: archive: '../outside' is not a plain file"),
        (leaked, True, f"rejected: privacy: report.json names the folder {HOMES}/carol"),
        (
            other_card,
            True,
            "rejected: device: measurements.jsonl cannot calibrate h200-sxm-141gb: the time of the same work",
        ),
        (median_outside, True, "rejected: samples: "),
        (faster, True, "rejected: plausible times: "),
        (
            better_report,
            True,
            "rejected: replay: report.json states tpot_error 0.001, and the replay gives None",
        ),
        (better_profile, True, "rejected: replay: the profile states families."),
    ],
)
def test_a_changed_archive_is_rejected_by_the_check_that_failed(
    tmp_path: Path, change: Callable[[dict[str, str]], None], digests: bool, said: str
) -> None:
    line = verdict(repack(pack_submission(results(tmp_path)), change, digests=digests))
    assert line.startswith(said)
    assert "\n" not in line


def test_measurements_that_contradict_earlier_ones_of_the_device_are_rejected(tmp_path: Path) -> None:
    path = pack_submission(results(tmp_path))
    header = {"environment": ENVIRONMENT, "profile": H200.name}
    same = write_log(tmp_path / "same.jsonl", evidence(noise=0.01, seed=1), **header)
    assert verdict(path, earlier=[same, CPU]) == "accepted"
    apart = write_log(tmp_path / "apart.jsonl", evidence(noise=0.9, seed=2), **header)
    assert verdict(path, earlier=[apart]).startswith(
        "rejected: earlier measurements: the files contradict each other"
    )


def test_what_is_no_archive_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.tar.gz").write_text("not an archive")
    assert main([str(tmp_path / "x.tar.gz")]) == 1
    assert "is not an archive of capacity validate --submit" in capsys.readouterr().out
    assert main([]) == 2
    with pytest.raises(InvalidInput, match=r"has no measurements.jsonl: run capacity validate"):
        pack_submission(tmp_path)


def test_the_command_packs_what_is_there_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results(tmp_path / "out")
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), *(str(CHECKOUT / part) for part in (".", "validate", "app"))])
    packed = subprocess.run(
        [sys.executable, "-m", "capacity", "validate", "--submit", "--out", "out"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
    )
    assert packed.returncode == 0, packed.stderr
    assert packed.stdout.splitlines()[-2] == "accepted"
    (archive,) = (tmp_path / "out").glob("*.tar.gz")
    assert main([str(archive)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "accepted"
