"""Write the sample of measured tables that ships with the tests: `python benchmarks/transcribe.py [--check]`.

Needs the reference library. Only sources whose licence allows it (`docs/evidence.md`); every row names its source and
what it was used for. Kernels are drawn by class, sorted by table and time, every so-manieth: no row is chosen by how
well it is predicted. Of each kernel that is drawn, the constants of the fits that leave its group out are written too
(`fold_constants.csv`). `--check` writes nothing and exits 1 where the files would change.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from fit_profiles import default_measured
from reference_tables import Operator, operators
from reference_tables.elsewhere import elsewhere
from reference_tables.form import read
from reference_tables.held_out import FILE, fitted_folds, write_folds
from served_gpustack import RUN, replayable
from step_evidence import LOG_WARM_UP_STEPS, STEP_LOG
from steps_aside import SPLITWISE_MAX_BATCH, SPLITWISE_MIN_TOKENS, TRTLLM_MODELS, TRTLLM_VERSIONS

SAMPLE = Path(__file__).parent.parent / "tests" / "data" / "measured"
KERNELS = "aiconfigurator-core"
DRAWN = {  # rows of a class: of an operator, and its format, engine and format, or regime where there are several
    "gemm bf16": 200,
    "gemm trtllm fp8": 60,
    "gemm vllm fp8": 60,
    "gemm fp8_block": 80,
    "gemm nvfp4": 80,
    "gemm": 40,
    "decode_attention HBM": 60,
    "decode_attention L2": 70,
    "prefill_attention": 90,
    "mla_prefill": 80,
    "mla_decode": 80,
    "moe": 120,
    "all_reduce": 80,
    "nccl": 60,
}
CORE = ("a100", "h100", "h200", "b200", "l40s")
EVERYWHERE = ("moe", "gemm")  # classes that pool what other GPUs have too
DRAWN_ELSEWHERE = 60
EVERY_STEP = 10
Line = tuple[str, int]  # file and row


def kernel_class(operator: Operator, key: tuple[str, str, str], regime: str) -> str:
    """Which of `DRAWN` a row counts for."""
    names = (f"{operator.name} {key[1]} {key[2]}", f"{operator.name} {regime or key[2]}")
    return next((name for name in names if name in DRAWN), operator.name)


def drawn(families: Iterable[Operator]) -> list[Line]:
    """The rows that are drawn, by class."""
    classes: dict[str, list[tuple[Any, ...]]] = {}
    for operator in families:
        for key, rows in operator.tables.items():
            if key[0] not in CORE and operator.name not in EVERYWHERE:
                continue
            for m, line in zip(rows, operator.lines[key], strict=True):
                order = (m.regime, key, m.seconds, line)
                classes.setdefault(kernel_class(operator, key, m.regime), []).append(order)
    return [row[-1] for name, rows in classes.items() for row in spread(sorted(rows), DRAWN[name])]


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """`count` of the rows, evenly spread over their order."""
    count = min(count, len(rows))
    return [rows[int((i + 0.5) * len(rows) / count)] for i in range(count)]


def tables(measured: Path) -> dict[str, pd.DataFrame]:
    """Every table of the sample by name."""
    found = kernels(measured)
    log = read(measured, STEP_LOG)
    log = log[(log.iteration >= LOG_WARM_UP_STEPS) & (log.elapsed_ms >= 0.5)].iloc[
        EVERY_STEP // 2 :: EVERY_STEP
    ]
    found[STEP_LOG] = told(
        log,
        [
            "iteration",
            "context_requests",
            "context_tokens",
            "generation_requests",
            "generation_tokens",
            "elapsed_ms",
        ],
        "profilemate",
        "chosen by",
    )
    found["splitwise"] = told(
        _splitwise(measured), [c for c in STATIC if c != "engine"], "splitwise-sim", "judged"
    )
    found["trtllm_perf_v05_v09"] = told(_tensorrt_llm(measured), STATIC, "TensorRT-LLM", "judged")
    served = replayable(read(measured, "gpustack"))
    served = served[served.metric.isin(["ttft_mean_ms", "tpot_mean_ms"])]
    served = served.assign(notes=served.notes.str.replace(r"section=.*?script=", "script=", regex=True))
    pages = "gpustack " + served.url.str.extract("(docs/.*)")[0]
    found["gpustack"] = told(served, [*RUN, "date_or_version", "metric", "value"], pages, "judged")
    return found


STATIC = [
    "gpu",
    "engine",
    "model",
    "tp",
    "weight_precision",
    "input_len",
    "batch_or_concurrency",
    "metric",
    "value",
]


def kernels(measured: Path) -> dict[str, pd.DataFrame]:
    """Kernels that constants were fitted to, and those of other sources."""
    found = {}
    for name, numbers in _by_file(drawn(operators(measured))).items():
        rows = read(measured, name).loc[numbers]
        found[name] = told(rows, [c for c in rows if c != "file"], KERNELS, "fitted")
    for operator in elsewhere(measured):
        lines = [
            line
            for key, rows in operator.tables.items()
            for *_, line in spread(
                sorted((m.seconds, line) for m, line in zip(rows, operator.lines[key], strict=True)),
                DRAWN_ELSEWHERE // len(operator.tables),
            )
        ]
        for name, numbers in _by_file(lines).items():
            rows = read(measured, name).loc[numbers].dropna(axis=1, how="all")
            nodes = rows.notes.str.extract(r"(devices_per_node=\d+;)")[0]
            rows = rows.assign(notes=nodes).dropna(axis=1, how="all")
            wanted = ["gpu", "op", "model", "tp", "m", "n", "k", "num_gpus", "size_bytes", "time_us", "notes"]
            found[name] = told(rows, wanted, "vidur", "judged")
    return found


def told(rows: pd.DataFrame, columns: Sequence[str], source: Any, used_for: str) -> pd.DataFrame:
    """The wanted columns, with source and use."""
    return rows[[c for c in columns if c in rows]].assign(source=source, used_for=used_for)


def _by_file(lines: Iterable[Line]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, number in sorted(set(lines)):
        found.setdefault(name, []).append(number)
    return found


def _splitwise(measured: Path) -> pd.DataFrame:
    table = read(measured, "splitwise")
    batch = table.batch_or_concurrency
    usable = (table.input_len * batch >= SPLITWISE_MIN_TOKENS) & (batch <= SPLITWISE_MAX_BATCH)
    return table[usable & (table.metric == "ttft_ms")]


def _tensorrt_llm(measured: Path) -> pd.DataFrame:
    table = read(measured, "trtllm_perf_v05_v09")
    usable = table.engine.isin(TRTLLM_VERSIONS) & table.model.isin(TRTLLM_MODELS)
    return table[usable & (table.metric == "ttft_ms")]


def write(measured: Path, folder: Path) -> None:
    """The whole sample."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables(measured).items():
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    kept = {(o.name, key) for o in operators(folder) for key in o.tables}
    folds = fitted_folds(operators(measured))
    write_folds(folder / FILE, {table: sets for table, sets in folds.items() if table in kept})


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, default=default_measured())
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if not arguments.measured.is_dir():
        print(f"no measured tables in {arguments.measured}; set CAPACITY_SHARED", file=sys.stderr)
        return 2
    if not arguments.check:
        write(arguments.measured, SAMPLE)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        write(arguments.measured, Path(scratch))
        names = sorted({path.name for folder in (Path(scratch), SAMPLE) for path in folder.iterdir()})
        _, changed, missing = filecmp.cmpfiles(scratch, SAMPLE, names, shallow=False)
    print(f"{len(changed + missing)} files differ: {', '.join(changed + missing) or 'none'}")
    return 1 if changed or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
