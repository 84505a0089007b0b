"""Fit a constant of DeepGEMM's experts on a buffer of whole tiles (`fp8_block_deepgemm` in universal.toml).

    python benchmarks/fit_padded_experts.py

No kernel table measures this layout. Its rate of routed bytes is fitted to median inter-token latencies of ML.ENERGY's
servers (vLLM 0.11.1) of Qwen3-235B-A22B-FP8 on four and eight H100 with at most 128 requests. Not fitted, with errors
printed: its held-out configuration, and DeepSeek-V3.1, whose latent attention adds errors of its own.

These steps do not determine the rate of tensor cores. It is that of DeepGEMM on full tiles: aiconfigurator-core 0.12.0,
wideep_context_moe of SGLang 0.5.10, DeepSeek-V3's experts from 65,536 rows on, takes 84, 82 and 52 ns a row on H100,
H200 and B200, of which 0.57, 0.57 and 0.40 of the peak remain after routing: 0.5. The other constants are assumed as in
H100's table of FP8 blocks.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
from fit_inputs import listed_inputs
from ml_energy import CHAT_PROMPT, FITTED_EXPERTS, held_out, model_name, published_pool
from reference_tables.form import read
from scipy.optimize import least_squares
from served_data import shared_folder

from capacity.hardware import kernel_lookup
from capacity.hardware.coefficients import KernelFamily, universal_family
from capacity.pool.resolve import resolve
from capacity.step import decode_shape

TABLE, KERNEL = "ml_energy_v3_lm_arena", "fp8_block_deepgemm"
FITTED = ("routed_fraction",)
CHECKED = "deepseek-ai/DeepSeek-V3.1"
MOST_IN_FLIGHT = 128  # beyond, most steps have prompts too


def with_constants(values: np.ndarray) -> KernelFamily:
    """Return the universal family with other values of the kernel."""
    family = universal_family()
    kernel = family.moe[KERNEL].model_copy(update=dict(zip(FITTED, values, strict=True)))
    return family.model_copy(update={"moe": {**family.moe, KERNEL: kernel}})


def log_error(row: Any) -> float:
    """Return ln(predicted / measured) of one decode step."""
    shape = decode_shape(row.max_num_seqs, round(CHAT_PROMPT + row.avg_output_len / 2))
    predicted = resolve(model_name(row), published_pool(row)).step_model.step_seconds(shape)
    return float(np.log(predicted / (row.median_itl_ms / 1e3)))


def log_errors(rows: pd.DataFrame, values: np.ndarray) -> np.ndarray:
    """Return `log_error` of each row with these constants."""
    changed = with_constants(values)
    original, kernel_lookup.universal_family = kernel_lookup.universal_family, lambda: changed
    try:
        return np.array([log_error(row) for row in rows.itertuples()])
    finally:
        kernel_lookup.universal_family = original


def main() -> int:
    """Fit, and print the constants with the errors of both parts."""
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    every = read(folder / "reference" / "measured", TABLE)
    every = every.assign(held_out=held_out(every))
    rows = every[every.model_id.isin((FITTED_EXPERTS, CHECKED)) & (every.max_num_seqs <= MOST_IN_FLIGHT)]
    rows = rows.assign(held_out=rows.held_out | (rows.model_id == CHECKED))
    fitted = rows[~rows.held_out]
    fit = least_squares(
        lambda values: log_errors(fitted, values),
        x0=(0.15,),
        bounds=(0.02, 1.0),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=0.02,
    )
    print("  ".join(f"{name} {value:.3g}" for name, value in zip(FITTED, fit.x, strict=True)))
    for (part, model, gpu, count), some in rows.groupby(["held_out", "model_id", "gpu_model", "num_gpus"]):
        errors = np.expm1(log_errors(some, fit.x))
        print(
            f"{'held out' if part else 'fitted'}: {model} on {count} {gpu}, {len(some)} rows of {TABLE}.csv.gz: "
            f"{np.median(np.abs(errors)):.1%}, bias {np.median(errors):+.1%}"
        )
    return 0


if __name__ == "__main__":
    with listed_inputs():
        sys.exit(main())
