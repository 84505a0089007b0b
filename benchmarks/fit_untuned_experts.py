"""Fit expert kernels of older or rarer paths of vLLM: `bf16_untuned` and `w4a16_triton` of universal.toml.

    pip download --no-deps aiconfigurator==0.10.0 && python benchmarks/fit_untuned_experts.py aiconfigurator-*.whl

Reads tables of vLLM from the wheel (NVIDIA, Apache-2.0): balanced routing, a sample of 400 rows less those of experts
of two matrices. Errors are of expert shapes that are left out of the fit.

- `bf16_untuned`: 16 bit on Hopper, whole experts on 2 to 8 GPUs (0.14.0; vLLM runs it before 0.17).
- `w4a16_triton`: 4 bit on up to 8 GPUs (0.19.0). The collector calls it `vllm_marlin_int4_moe`, but runs
  `fused_experts`, whose kernels are those of `moe_wna16`; vLLM runs them where Marlin refuses the shape.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from fit_inputs import listed_inputs
from pooled_fits import fit_pool
from reference_tables.experts import TWO_MATRIX_SHAPES, ExpertRow, expert_row, predict_experts
from reference_tables.form import FORMATS, fraction, latency, sharpness

from capacity.hardware.calibration import Constants, Measurement, Parameter

TABLE = "aiconfigurator/systems/data/{}_sxm/vllm/{}/moe_perf.parquet"
ROWS, SEED = 400, 2
PARAMETERS = (
    fraction("compute_fraction", 0.4),
    fraction("bandwidth_fraction", 0.8),
    sharpness(2.0),
    latency("fixed_s", 2e-5),
    fraction("routed_fraction", 0.3, low=0.01),
    Parameter(name="per_k_s", start=5e-9, low=1e-10, high=5e-8),
)


class Fitted(NamedTuple):
    release: str
    gpus: tuple[str, ...]
    dtype: str
    least_expert_parallel: int


HOPPER = ("h100", "h200")
KERNELS = {
    "bf16_untuned": Fitted("0.14.0", HOPPER, "bfloat16", 2),
    "w4a16_triton": Fitted("0.19.0", HOPPER, "int4_wo", 1),
    "w4a16_triton_blackwell": Fitted("0.19.0", ("b200",), "int4_wo", 1),
}


class WalkedRow(NamedTuple):
    kernel: ExpertRow
    matrix_rows: float  # that a thread block walks through, one after another


def predict(constants: Constants, row: WalkedRow) -> float:
    """Return the seconds of one layer's experts."""
    walk_s = constants["per_k_s"] * row.matrix_rows
    without = {name: value for name, value in constants.items() if name != "per_k_s"}
    return predict_experts(without, row.kernel) + walk_s


def measurements(wheel: Path, kernel: Fitted) -> list[Measurement[WalkedRow]]:
    """Return a sample of the kernel's rows."""
    with zipfile.ZipFile(wheel) as files:
        frames = [
            pd.read_parquet(io.BytesIO(files.read(TABLE.format(gpu, kernel.release)))).assign(
                gpu=gpu, engine="vllm"
            )
            for gpu in kernel.gpus
        ]
    every = pd.concat(frames, ignore_index=True)
    kept = every.query(
        "moe_dtype == @kernel.dtype and distribution == 'balanced' and moe_ep_size * moe_tp_size <= 8"
    )
    sample = kept.query("moe_ep_size >= @kernel.least_expert_parallel").sample(ROWS, random_state=SEED)
    return [
        _measurement(row, kernel.dtype)
        for row in sample.itertuples()
        if (row.hidden_size, row.inter_size) not in TWO_MATRIX_SHAPES
    ]


def _measurement(row: Any, dtype: str) -> Measurement[WalkedRow]:
    walked = row.hidden_size + row.inter_size / row.moe_tp_size
    return Measurement(
        row=WalkedRow(expert_row(row, FORMATS[dtype]), walked),
        seconds=row.latency / 1e3,
        group=(row.hidden_size, row.inter_size, row.num_experts),
    )


def main() -> int:
    """Print the constants with their errors."""
    for name, kernel in KERNELS.items():
        fit = fit_pool(predict, {name: measurements(Path(sys.argv[1]), kernel)}, PARAMETERS)[name]
        print(name, "  ".join(f"{constant} {value:.3g}" for constant, value in fit.constants.items()))
        errors = fit.held_out
        print(f"{errors.rows} rows, held out {errors.median:.1%} / {errors.p90:.1%}, bias {errors.bias:+.1%}")
    return 0


if __name__ == "__main__":
    with listed_inputs():
        sys.exit(main())
