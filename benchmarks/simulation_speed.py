"""How many requests a CPU second simulates, by engine, deployment, context length, load and size of the run.

    python benchmarks/simulation_speed.py                  # the whole: some minutes
    python benchmarks/simulation_speed.py --quick          # fewer requests, once each
    python benchmarks/simulation_speed.py --only V1 EAGLE  # rows whose section or name has one of these words
    python benchmarks/simulation_speed.py --write-docs     # the whole, written into docs/simulation.md

Each rate is the median of three runs, in CPU seconds, without start-up, drawing the requests and reading traces. The
step model is the real one, lengths are lognormal, and a load is a fraction of the capacity that a backlog shows. CPUs
differ: compare ratios, and the calibration line. `--traces DIR` runs the public traces too, `--day` a day of clients.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import simpy
from simulation_cases import GPU, MODEL, V1, Case, cases

from capacity.answers.deployment_run import forget_capacities, run_service, verdict_on
from capacity.deployment import Service
from capacity.workload import Clients, GammaLengths, Workload, client_mix, diurnal, read_trace
from capacity.workload.export import write_csv

# Peers on the same kind of workload (Poisson arrivals, lognormal lengths, mean 1012 prompt and 255 output tokens),
# per CPU second on a 2-core 2.8 GHz Xeon, Python 3.11; each was run for this comparison. Ranges over loads.
PEERS = {
    "Vidur (Python)": "203-291",
    "splitwise-sim (Python)": "196-238",
    "BLIS (Go)": "204-227",
    "DistServe (SimPy)": "222-375",
}
PAGE = Path(__file__).parents[1] / "docs" / "simulation.md"
START, END = "<!-- made by benchmarks/simulation_speed.py -->", "<!-- end of what is measured -->"
REPEATS = 3
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
QUICK_SIZES = (1_000, 10_000)
TRACE_REQUESTS, QUICK_TRACE_REQUESTS = 100_000, 5_000
DAY_REQUESTS = 1_400_000
DAY_REPLICAS = 4
ALONE = Case(section=V1, name="middle", count=100_000)
GROWING = replace(ALONE, pool={"gpu": "h100"})  # ten million of its requests come within 13 days


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a row showed; `verdict_ratio` is the CPU time of a run with its verdict over that of the run."""

    case: Case
    count: int
    steps_per_request: float
    mean_batch: float
    requests_per_s: float
    verdict_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """One run in a process of its own: CPU seconds, and its peak of memory with all that Python has loaded."""

    count: int
    cpu_s: float
    peak_mb: float


# measuring


def cpu_seconds(act: Callable[[], object]) -> float:
    begin = time.process_time()
    act()
    return time.process_time() - begin


def median_cpu_s(act: Callable[[], object], repeats: int) -> float:
    return statistics.median(cpu_seconds(act) for _ in range(repeats))


def timeouts_per_s() -> float:
    """Calibration: SimPy timeouts per CPU second on this machine (0.7-1.0 M where the peers were measured)."""

    def process(env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(100_000):
            yield env.timeout(5)

    env = simpy.Environment()
    env.process(process(env))
    return 100_000 / cpu_seconds(env.run)


def measured(case: Case, *, quick: bool = False, repeats: int = REPEATS) -> Speed:
    """The median over runs of the same requests, after a short one that makes the tables of step times."""
    drawn = case.workload(case.quick_count if quick else case.count)
    case.run(drawn.select(range(100)))
    run = case.run(drawn)
    seconds = median_cpu_s(lambda: case.run(drawn), repeats)
    ratio = None
    if case.verdict:
        pools, service = [case.resolved], Service()
        plain_s = median_cpu_s(lambda: run_service(pools, service, drawn, keep_work=True).summary, repeats)

        def judged() -> None:
            forget_capacities()  # else the first one's probe serves all
            verdict_on(run, pools, service, drawn)

        ratio = 1 + median_cpu_s(judged, repeats) / plain_s
    return Speed(
        case=case,
        count=len(drawn),
        steps_per_request=run.steps / len(drawn),
        mean_batch=run.mean_batch_size,
        requests_per_s=len(drawn) / seconds,
        verdict_ratio=ratio,
    )


def peak_memory_kib() -> int:
    """Of this program; getrusage's figure would include the process that started it (Linux keeps it over exec)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def alone(count: int) -> None:
    drawn = GROWING.workload(count)
    GROWING.run(drawn.select(range(100)))
    seconds = cpu_seconds(lambda: GROWING.run(drawn))
    print(json.dumps({"count": count, "cpu_s": seconds, "peak_mb": peak_memory_kib() / 1024}))


def day(count: int) -> None:
    """A day of 1,000 clients on four replicas: seconds, and memory by what it is made of."""
    before_mb = peak_memory_kib() / 1024
    drawn = client_mix(
        num_requests=count,
        clients=Clients(1000, burstiness=0.3),
        pace=diurnal(count / 86_400.0, peak_to_mean=1.6),
        prompt=GammaLengths(800, 1.2),
        output=GammaLengths(255, 1.0),
        client_prompt_tokens=256,
    )
    drawn_mb = peak_memory_kib() / 1024
    service = Case(
        section="", name="", count=count, replicas=DAY_REPLICAS, keywords={"router": "prefix-aware"}
    )
    begin = time.process_time()
    run = service.run(drawn)
    answer = {"cpu_s": time.process_time() - begin, "before_mb": before_mb, "drawn_mb": drawn_mb}
    completed = int(run.records.completed.sum())
    print(json.dumps({**answer, "peak_mb": peak_memory_kib() / 1024, "completed": completed}))


def in_a_process(count: int, what: str = "--alone") -> dict[str, float]:
    command = [sys.executable, __file__, what, str(count)]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found: dict[str, float] = json.loads(answer)
    return found


def grown(count: int, repeats: int) -> Alone:
    runs = [in_a_process(count) for _ in range(repeats)]
    cpu_s = statistics.median(run["cpu_s"] for run in runs)
    return Alone(count=count, cpu_s=cpu_s, peak_mb=max(run["peak_mb"] for run in runs))


def whole_command(count: int, repeats: int) -> Alone:
    """`capacity simulate --trace` from its start to its last line: reading, simulating, verdict, tables."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        write_csv(ALONE.workload(count), trace)
        command = [
            sys.executable, "-m", "capacity", "simulate", MODEL, "--gpu", GPU, "--trace", str(trace)
        ]  # fmt: skip
        compiled = {
            **os.environ,
            "PYTHONPYCACHEPREFIX": folder,
        }  # Python's own bytecode, as an installation has it
        compiled.pop("PYTHONDONTWRITEBYTECODE", None)
        _used_by(command, compiled)
        used = [_used_by(command, compiled) for _ in range(repeats)]
    return Alone(
        count=count,
        cpu_s=statistics.median(run.ru_utime + run.ru_stime for run in used),
        peak_mb=max(run.ru_maxrss for run in used) / 1024,
    )


def _used_by(command: Sequence[str], environment: Mapping[str, str]) -> resource.struct_rusage:
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, command
    return used


# showing

COLUMNS = "load", "requests", "steps a request", "mean batch", "requests per CPU s", "with verdict"


def row(speed: Speed) -> str:
    verdict = f"{speed.verdict_ratio:.2f} x" if speed.verdict_ratio else ""
    cells = (
        speed.case.name,
        f"{speed.case.load:.0%}",
        f"{speed.count:,}",
        f"{speed.steps_per_request:.1f}",
        f"{speed.mean_batch:.0f}",
        f"{rounded(speed.requests_per_s):,}",
        verdict,
    )
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def rounded(value: float) -> int:
    """To three digits: more would be noise."""
    return int(float(f"{value:.3g}"))


def growth_rows(runs: Sequence[Alone]) -> list[str]:
    base = next((run for run in runs if run.count == 100_000), runs[-1])
    per_request = base.cpu_s / base.count
    return [
        _line(
            (
                f"{run.count:,}",
                f"{run.cpu_s:.2f}",
                f"{rounded(run.count / run.cpu_s):,}",
                f"{run.cpu_s / run.count / per_request:.2f}",
                f"{run.peak_mb:,.0f}",
            )
        )
        for run in runs
    ]


def machine(calibrations: Sequence[float]) -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    processor = names[0] if names else platform.processor()
    return (
        f"Measured {datetime.date.today().isoformat()} on {processor}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}; calibration: "
        f"{statistics.median(calibrations) / 1e6:.2f} M SimPy timeouts per CPU s."
    )


class Report:
    """The lines of the block, shown as they come."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, *lines: str) -> None:
        for line in lines:
            print(line, flush=True)
        self.lines += lines

    def table(self, *columns: str, left: int = 1) -> None:
        rules = [" --- "] * left + [" ---: "] * (len(columns) - left)
        self.say("", _line(columns), f"|{'|'.join(rules)}|")


def report(chosen: Sequence[Case], *, quick: bool, whole: bool) -> str:
    """Measure, show, and return the text for the handbook."""
    shown, repeats, calibrations, section = Report(), 1 if quick else REPEATS, [timeouts_per_s()], ""
    shown.table("", *COLUMNS)
    for case in chosen:
        if case.section != section:
            section = case.section
            shown.say(_line((f"**{section}**", *[""] * len(COLUMNS))))
            calibrations.append(timeouts_per_s())
        shown.say(row(measured(case, quick=quick, repeats=repeats)))
    if whole:
        shown.table("vLLM V1 on H100", "CPU s", "requests per CPU s", "a request's cost", "peak MB", left=0)
        for line in growth_rows([grown(count, repeats) for count in (QUICK_SIZES if quick else SIZES)]):
            shown.say(line)
        shown.table("the whole command", "CPU s", "requests per CPU s", "peak MB")
        for count in (5, QUICK_TRACE_REQUESTS if quick else TRACE_REQUESTS):
            run = whole_command(count, repeats)
            rate = f"{rounded(run.count / run.cpu_s):,}" if count > 5 else ""
            name = f"`capacity simulate --trace`, {count:,} requests"
            shown.say(_line((name, f"{run.cpu_s:.2f}", rate, f"{run.peak_mb:,.0f}")))
    shown.say("", machine(calibrations))
    shown.say("", "Peers, requests per CPU s, each run for this comparison on a 2-core 2.8 GHz Xeon:")
    shown.say(", ".join(f"{peer} {rate}" for peer, rate in PEERS.items()) + ".")
    return "\n".join(shown.lines).strip("\n")


# the handbook's page


def written(page: str, block: str) -> str:
    """The page with this block in the place of its last."""
    head, _, rest = page.partition(START)
    return f"{head}{START}\n\n{block}\n\n{END}{rest.partition(END)[2]}"


def block_of(page: str) -> str:
    return page.partition(START)[2].partition(END)[0]


def rows_of(block: str) -> dict[tuple[str, str], float]:
    """Requests per CPU s that a block shows, by section and name."""
    found, section = {}, ""
    for line in block.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 1 + len(COLUMNS) or cells[0] in ("", "---"):
            continue
        if cells[0].startswith("**"):
            section = cells[0].strip("*")
        else:
            found[section, cells[0]] = float(cells[5].replace(",", ""))
    return found


def calibration_of(block: str) -> float:
    """SimPy timeouts per CPU s that a block was measured at."""
    found = re.search(r"calibration: ([\d.]+) M", block)
    assert found is not None
    return float(found[1]) * 1e6


# more, on request


def traces(folder: Path) -> None:
    for name in ("AzureLLMInferenceTrace_conv.csv.gz", "mooncake_conversation_trace.jsonl.gz"):
        path = folder / name
        if path.exists():
            requests: Workload = read_trace(str(path))
            seconds = cpu_seconds(lambda: ALONE.run(requests))  # noqa: B023
            print(f"{name}: {len(requests):,} requests, {rounded(len(requests) / seconds):,} per CPU s")


def two_days() -> None:
    small, large = (in_a_process(count, "--day-alone") for count in (DAY_REQUESTS // 10, DAY_REQUESTS))
    per_request = (large["peak_mb"] - small["peak_mb"]) * 2**20 / (DAY_REQUESTS * 0.9)
    print(
        f"a day of {DAY_REQUESTS:,} requests: {large['cpu_s']:.0f} s, "
        f"{DAY_REQUESTS / large['cpu_s']:,.0f} requests per CPU s, peak {large['peak_mb']:.0f} MB "
        f"({large['before_mb']:.0f} before, {large['drawn_mb']:.0f} with the workload), "
        f"{per_request:.0f} bytes a request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer requests, once each")
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="rows whose section or name has one of these"
    )
    parser.add_argument("--write-docs", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--traces", type=Path, help="a folder with the public traces")
    parser.add_argument(
        "--day", action="store_true", help=f"a day of {DAY_REQUESTS:,} requests on {DAY_REPLICAS} replicas"
    )
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--day-alone", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write_docs and (asked.quick or asked.only):
        parser.error("--write-docs writes the whole: leave out --quick and --only")
    if asked.alone:
        alone(asked.alone)
    elif asked.day_alone:
        day(asked.day_alone)
    elif asked.traces or asked.day:
        if asked.traces:
            traces(asked.traces)
        if asked.day:
            two_days()
    else:
        words = asked.only or [""]
        chosen = [case for case in cases() if any(word in f"{case.section} {case.name}" for word in words)]
        block = report(chosen, quick=asked.quick, whole=asked.only is None)
        if asked.write_docs:
            PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), block), encoding="utf-8")


if __name__ == "__main__":
    main()
