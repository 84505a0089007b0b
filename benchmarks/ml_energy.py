"""ML.ENERGY's leaderboard v3, chat task: measured throughput of 328 servers against `capacity.estimate`.

The launch is public (vLLM 0.11.1, ml-energy/benchmark, configs/vllm/lm-arena-chat), so are the sampling parameters that
its client sends (temperature 0.8, top_p 0.95, repetition_penalty 1.1). Lengths of prompts are not. One in three
configurations (model, GPU, number of GPUs, format) is held out: nothing was fitted to its rows. Of experts, only
Qwen3-235B-FP8 on four and eight H100 was fitted (12 token times, `fit_padded_experts.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from reference_tables.form import read
from served_data import shared_folder

import capacity
from capacity.base.errors import CapacityError
from capacity.deployment import Pool
from capacity.model import load_model

CHAT_PROMPT = 200  # tokens; the chats are of 100 to 300
SAMPLING = {"top_p": 0.95, "repetition_penalty": 1.1}
FITTED_EXPERTS = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One server: output tokens per second as measured, and as predicted with the 90 % interval.

    `held_out`: nothing was fitted to its configuration.
    """

    model: str
    gpu: str
    num_gpus: int
    concurrency: int
    is_moe: bool
    held_out: bool
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Return predicted over measured, minus 1."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Return whether the interval contains the measurement."""
        return self.low <= self.measured <= self.high


def published_pool(row: Any, *, said: bool = True) -> Pool:
    """Return the launch of one row of the leaderboard; `said`: with the sampling parameters of its requests."""
    split = row.tensor_parallel * row.data_parallel == row.num_gpus
    return Pool(
        gpu=row.gpu_model.lower(),
        engine="vllm@0.11.1",
        tensor_parallel_size=row.tensor_parallel if split else row.num_gpus,
        data_parallel_size=row.data_parallel if split else 1,
        enable_expert_parallel=row.expert_parallel > 1,
        max_num_batched_tokens=8192,
        max_model_len=20480,
        max_num_seqs=row.max_num_seqs,
        async_scheduling=True,
        api_server_count=3,
        **(SAMPLING if said else {}),
    )


def model_name(row: Any) -> str:
    """Return the checkpoint with its owner, on whom the kind of FP8 depends."""
    return str(row.model_id.lower())


def held_out(table: pd.DataFrame) -> pd.Series:
    """Return for each row whether its configuration is held out: every third in alphabetical order."""
    names = table.model_id + table.gpu_model + table.num_gpus.astype(str) + table.weight_precision
    return names.rank(method="dense").astype(int) % 3 == 0


def is_fitted(row: Any) -> bool:
    """Return whether a constant was fitted to the row's configuration, given `held_out` in it."""
    return not row.held_out and (row.model_id == FITTED_EXPERTS or not load_model(model_name(row)).is_moe)


def compare(
    measured: Path, every: int = 1, only: Sequence[str] = (), *, said: bool = True
) -> Iterator[Compared]:
    """Compare every `every`-th row, of the models `only` if given; rows of models without a preset are left out.

    `said`: with the sampling parameters of the requests.
    """
    table = read(measured, "ml_energy_v3_lm_arena")
    table = table.assign(held_out=held_out(table))
    table = table[table.model_id.isin(only)] if only else table
    for row in table.iloc[::every].itertuples():
        pool = published_pool(row, said=said)
        try:
            answer = capacity.estimate(
                model_name(row),
                **pool.model_dump(exclude_unset=True, exclude_none=True),
                input_len=CHAT_PROMPT,
                output_len=round(row.avg_output_len),
                concurrency=row.max_num_seqs,
            )
        except CapacityError as error:
            print(f"{model_name(row)}: {error}", file=sys.stderr)
            continue
        rate = answer.output_tokens_per_s
        yield Compared(
            model=model_name(row),
            gpu=row.gpu_model,
            num_gpus=row.num_gpus,
            concurrency=row.max_num_seqs,
            is_moe=load_model(model_name(row)).is_moe,
            held_out=not is_fitted(row),
            measured=row.output_throughput_tokens_per_sec,
            predicted=rate.value,
            low=rate.low,
            high=rate.high,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print errors and coverage by kind of model and hold-out, without and with the sampling parameters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    rows = pd.DataFrame(
        [
            {
                "kind": "experts" if each.is_moe else "dense",
                "rows": "held out" if each.held_out else "fitted",
                "sampling": "with" if said else "without",
                "error": each.error,
                "inside": each.inside,
            }
            for said in (False, True)
            for each in compare(folder / "reference" / "measured", options.every, said=said)
        ]
    )
    table = rows.groupby(["kind", "rows", "sampling"]).agg(
        n=("error", "size"),
        signed=("error", "median"),
        median=("error", lambda errors: errors.abs().median()),
        p90=("error", lambda errors: errors.abs().quantile(0.9)),
        inside=("inside", "mean"),
    )
    print("errors of output tokens/s, as fractions\n" + table.round(3).to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
