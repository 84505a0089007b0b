"""Commands in this folder whose n-th write, sync or rename fails, for every n, until one runs to its end.

Run as a program with `faulty_writes.c` preloaded: `write_faults.py LIBRARY NAME...`. After each failure every file is
complete or as it was before, one line says why, and after the last one the command succeeds.
"""

from __future__ import annotations

import ctypes
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from sweep_files import HEAD
from typer.testing import CliRunner

from capacity.base.errors import CapacityError
from capacity.cli.main import app

LOAD = "llama-3.2-1b --gpu h100 --input-len 64 --output-len 8 --request-rate 20 --num-prompts 40"
PLAN = LOAD.replace("--gpu", "--gpus") + (
    " --slo ttft:p95:900ms --objective gpus --max-gpus 1 --workers 1 --tensor-parallel-sizes 1 --serving aggregated"
    " --quantizations default --kv-cache-dtypes auto --speculators none --max-num-batched-tokens default"
    " --no-alternatives --replications 1"
)
COMMANDS = {
    "records": f"simulate {LOAD} --output records=records.csv",
    "series": f"simulate {LOAD} --sample-interval 0.5 --output series=series.csv",
    "timeline": f"simulate {LOAD} --engine-loop events --output timeline=timeline.json",
    "trace": f"simulate {LOAD} --output trace=trace.jsonl.gz",
    "chart": "frontier llama-3.2-1b --gpus h100 --input-len 64 --output-len 8 --output chart=frontier.svg",
    "plan": f"plan {PLAN} --output planned",
    "deployment": "from-launch 'vllm serve meta-llama/Llama-3.2-1B' --gpu h100 --output server.toml",
    "config": "config engine=sglang",
    "sweep": "sweep sweep.toml --store store.sqlite --output sweep.csv --workers 1",
}
LAST_BYTES = (b"</html>", b"\n}")  # of files with the time that their command took
SWEEP = HEAD + (
    'question = "fit"\n[fixed]\nmodel = "llama-3.2-1b"\n[vary]\ngpu = ["h100", "l4"]\nmax_model_len = [1024, 2048]\n'
)


def contents(folder: Path) -> Mapping[str, bytes]:
    """The files of a folder by their path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check(library: ctypes.CDLL, name: str, command: str) -> str:
    """Let each write of a command fail; return a line about it."""
    seen, failing = (ctypes.c_long.in_dll(library, each) for each in ("faults_seen", "failing_fault"))
    limit, folder = 10_000, Path.cwd()
    before = contents(folder)
    complete: list[Mapping[str, bytes]] = []
    for number in range(1, limit):
        seen.value, failing.value = 0, number
        result = CliRunner().invoke(app, shlex.split(command))
        failing.value = 0
        if seen.value < number:
            assert result.exit_code == 0, f"{name}: {result.exception!r} {result.output}"
            break
        complete.append(contents(folder))
        refused = isinstance(result.exception, CapacityError)  # one line and exit code 2
        repaired = result.exit_code == 0 and name == "sweep"  # SQLite has written it in another way
        assert refused or repaired, f"{name}, write {number}: {result.exception!r} {result.output}"
    after = contents(folder)
    for number, found in enumerate(complete, start=1):
        for path, content in found.items():
            known = content in (before.get(path), after.get(path)) or content.rstrip().endswith(LAST_BYTES)
            assert known or ".sqlite" in path, f"{name}, write {number}: {path} is half-written"
    return f"{name}: {len(complete)} writes, {len(after) - len(before)} files"


def main(path: str, *names: str) -> None:
    """Check these commands."""
    library = ctypes.CDLL(path)
    Path("sweep.toml").write_text(SWEEP)
    (ctypes.c_char * 4096).in_dll(library, "fault_folder").value = str(Path.cwd()).encode()
    for name in names:
        print(check(library, name, COMMANDS[name]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
