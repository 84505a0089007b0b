"""Published served measurements, in the project's names and SI units."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GPUS = {"h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm-141gb", "b200_sxm": "b200-sxm-180gb"}
MODELS = {
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",  # same architecture
    "zhipuai/GLM-5": "glm-5.2",  # same architecture
}
FORMATS = {"fp4": "nvfp4", "fp8": "fp8", "int4": None, "bf16": "bf16", "": "bf16"}
# "gap-analysis" rows of these models repeat InferenceX rows to the digit: as those they were measured
INFERENCEX_ALL_THE_SAME = ("moonshotai/Kimi-K2.5", "Qwen/Qwen3.5-397B-A17B")
INFERENCEX_LENGTH_SCALE = 0.9  # uniform from 0.8 to 1.0 of the label
SAME = 1e-3  # two rows of equal settings whose times differ by less are one measurement
BLOCK_FP8 = ("deepseek", "qwen3", "minimax", "glm-5")  # checkpoints whose FP8 is 128 x 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """One measurement, in the project's names and SI units. `concurrency` is one replica's, over its ranks."""

    campaign: str
    source: str
    gpu: str
    backend: str
    version: str
    model: str
    quantization: str | None
    dense: bool
    input_len: int
    output_len: int
    length_scale: float
    concurrency: int
    tensor_parallel: int
    data_parallel: int
    expert_parallel: bool
    ttft_s: float
    tpot_s: float

    @property
    def group(self) -> tuple[str, ...]:
        return (self.campaign, self.gpu, self.backend, self.model, self.quantization or "checkpoint")


def shared_folder() -> Path | None:
    """The folder of reference data, if it is at hand."""
    named = os.environ.get("CAPACITY_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    return folder if (folder / "reference" / "measured").is_dir() else None


def read_rows(folder: Path, *, dense: bool = True, moe: bool = True) -> list[ServedRow]:
    """Usable rows of the served tables: those with a concurrency, of models and GPUs that are known here."""
    import pandas as pd

    rows: list[ServedRow] = []
    for name, wanted in (("silicon_e2e_dense", dense), ("silicon_e2e_moe", moe)):
        if wanted:
            table = pd.read_csv(folder / "reference" / "measured" / f"{name}.csv.gz", low_memory=False)
            rows += [row for record in table.to_dict("records") if (row := _row(record, name))]
    return rows


def distinct(rows: Iterable[ServedRow]) -> list[ServedRow]:
    """Each measurement once: dumps of one database repeat it, and lists of other campaigns copy it, rounded.

    Of several the first InferenceX row stays, for a copy says nothing of how lengths were drawn.
    """
    kept: dict[tuple[object, ...], list[ServedRow]] = {}
    for row in sorted(rows, key=lambda row: row.campaign != "InferenceX"):
        known = kept.setdefault(_settings(row), [])
        if not any(_equal(row, other) for other in known):
            known.append(row)
    return [row for alike in kept.values() for row in alike]


def _settings(row: ServedRow) -> tuple[object, ...]:
    lengths = (row.input_len, row.output_len, row.concurrency)
    ranks = (row.tensor_parallel, row.data_parallel, row.expert_parallel)
    return (row.gpu, row.backend, row.model, row.quantization, *lengths, *ranks)


def _equal(row: ServedRow, other: ServedRow) -> bool:
    return all(
        math.isclose(getattr(row, name), getattr(other, name), rel_tol=SAME) for name in ("ttft_s", "tpot_s")
    )


def _row(record: Mapping[str, Any], source: str) -> ServedRow | None:
    def number(name: str, default: float) -> float:
        value = record[name]
        return default if value is None or math.isnan(value) else float(value)

    def text(name: str) -> str:
        value = record[name]
        return value if isinstance(value, str) else ""

    concurrency = number("concurrency", 0)
    if concurrency < 1 or record["system"] not in GPUS:
        return None
    path = record["model_path"]
    model = _model(MODELS.get(path, path))
    dense = source.endswith("dense")
    expert_ranks = int(number("moe_tp_size", 1) * number("moe_ep_size", 1))
    tensor, data = ranks_of(
        record["backend"], int(number("tp_size", 1)), int(number("attention_dp_size", 1)), expert_ranks
    )
    per_replica = number("batch_size", concurrency) * data  # the label counts the requests of all replicas
    inferencex = path in INFERENCEX_ALL_THE_SAME
    return ServedRow(
        campaign="InferenceX" if inferencex else record["campaign"],
        source=source,
        gpu=GPUS[record["system"]],
        backend=record["backend"],
        version=text("backend_version"),
        model=model,
        quantization=_quantization(model, text("precision")),
        dense=dense,
        input_len=int(record["isl"]),
        output_len=int(record["osl"]),
        length_scale=INFERENCEX_LENGTH_SCALE if inferencex else number("length_scale", 1.0),
        concurrency=round(min(concurrency, per_replica)),
        tensor_parallel=tensor,
        data_parallel=data,
        expert_parallel=number("moe_ep_size", 1) > 1,
        ttft_s=number("silicon_ttft_ms", math.nan) / 1e3,
        tpot_s=number("silicon_tpot_ms", math.nan) / 1e3,
    )


def ranks_of(backend: str, tensor: int, data: int, expert_ranks: int) -> tuple[int, int]:
    """Tensor-parallel and data-parallel ranks of attention, from a row's labels.

    vLLM's label of tensor parallelism counts the GPUs of all data-parallel ranks. Experts are spread over all GPUs:
    more of their ranks than `tensor` says are GPUs whose attention is data-parallel, whatever `data` says; fewer than
    `tensor` times `data` are a label of tensor parallelism that counts all of them.
    """
    if backend == "vllm" and data > 1 and tensor >= data:
        return tensor // data, data
    if data > 1 and expert_ranks < tensor * data:
        return max(1, expert_ranks // data), data
    return tensor, max(data, expert_ranks // tensor)


@lru_cache(maxsize=64)
def _model(path: str) -> str:
    from capacity.model import load_model

    return load_model(path).name


def _quantization(model: str, precision: str) -> str | None:
    if model.startswith("gpt-oss"):
        return None
    if precision == "fp8" and model.startswith(BLOCK_FP8):
        return "fp8-block"
    return FORMATS[precision]
