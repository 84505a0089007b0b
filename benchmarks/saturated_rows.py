"""Published saturated throughput beside predicted: `python benchmarks/saturated_rows.py [--rows]`.

TensorRT-LLM 0.14 at an infinite request rate (its performance overview): 7B to 70B, Mixtral, on A100 SXM and PCIe,
L40S, H100 and H200. A closed formula stands for the engine: a batch as large as the KV cache holds, at most 2,048, and
per request one prompt's share of a full prefill step, and its output's share of decode steps. It is rough in level
(scheduling is left out), so what counts is the bias of one GPU, and of one number of ranks, against another.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import pandas as pd
from fit_profiles import default_measured
from step_evidence import step_model

from capacity.base.errors import CapacityError
from capacity.deployment import Pool, build
from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.pool.resolve import with_defaults
from capacity.step import decode_shape, prefill_shape

GPUS = {
    "A100-PCIE-80GB": "a100-pcie-80gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "L40S": "l40s-48gb",
    "H100 80GB HBM3": "h100-sxm-80gb",
    "H200 141GB HBM3": "h200-sxm-141gb",
}
MODELS = {
    "LLaMA v3 70B": "llama-3-70b",
    "LLaMA v3.1 70B": "llama-3.1-70b",
    "LLaMA v3.1 8B": "llama-3.1-8b",
    "Mistral 7B": "mistral-7b-v0.3",
    "Mixtral 8x7B": "mixtral-8x7b",
}
LARGEST_BATCH = 2048
STEP_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturatedRow:
    """Output tokens/s of one deployment, of all its GPUs."""

    gpu: str
    model: str
    tensor_parallel_size: int
    precision: str
    prompt_tokens: int
    output_tokens: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative: above 0, more is predicted than was measured."""
        return self.predicted / self.measured - 1


def rows(measured: Path) -> Iterator[SaturatedRow]:
    """Every row of the table whose model has a preset and fits."""
    for r in pd.read_csv(measured / "trtllm_perf_overview.csv.gz").itertuples():
        if r.model not in MODELS or r.gpu not in GPUS or r.metric != "output_tok_s":
            continue
        try:
            predicted = _output_tokens_per_s(
                GPUS[r.gpu],
                MODELS[r.model],
                int(r.tp),
                r.weight_precision,
                int(r.input_len),
                int(r.output_len),
            )
        except CapacityError as error:
            print(f"left out: {r.gpu} {r.model} tp{r.tp:.0f}: {error}", file=sys.stderr)
            continue
        yield SaturatedRow(
            gpu=GPUS[r.gpu],
            model=MODELS[r.model],
            tensor_parallel_size=int(r.tp),
            precision=r.weight_precision,
            prompt_tokens=int(r.input_len),
            output_tokens=int(r.output_len),
            measured=float(r.value),
            predicted=predicted,
        )


def _output_tokens_per_s(gpu: str, model: str, tp: int, precision: str, prompt: int, output: int) -> float:
    quantization = "fp8" if precision == "fp8" else None
    kv_cache_dtype = "fp8" if precision == "fp8" else "auto"
    spec = load_model(model)
    pool = build(
        Pool,
        {
            "gpu": gpu,
            "tensor_parallel_size": tp,
            "kv_cache_dtype": kv_cache_dtype,
            "max_num_seqs": LARGEST_BATCH,
        },
        flags=True,
    )
    scheme = scheme_for(spec, quantization) if quantization else spec.checkpoint
    resolved = with_defaults(
        pool, spec, profile=load_profile(gpu), engine=find_engine("tensorrt-llm"), scheme=scheme
    )
    held = resolved.memory.kv_capacity_tokens // (prompt + output)
    batch = max(1, min(LARGEST_BATCH, held))
    steps = step_model(
        gpu,
        model,
        engine="tensorrt-llm",
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tp,
    )
    together = max(1, STEP_TOKENS // prompt)
    prefill_s = steps.step_seconds(prefill_shape(together, prompt)) / together
    decode_s = steps.step_seconds(decode_shape(batch, prompt + output // 2)) / batch
    return output / (prefill_s + output * decode_s)


def main() -> None:
    """Print every row, where asked to, and the errors by GPU, ranks and precision."""
    scored = list(rows(default_measured()))
    groups = defaultdict(list)
    for row in scored:
        groups[row.gpu, row.tensor_parallel_size, row.precision].append(row.error)
        if "--rows" in sys.argv:
            place = f"{row.gpu:16} tp{row.tensor_parallel_size} {row.precision:4} {row.model:16}"
            load = f"{row.prompt_tokens:6} {row.output_tokens:5}"
            print(f"{place} {load} {row.measured:9.0f} {row.predicted:9.0f} {row.error:+6.1%}")
    print(f"{'GPU':16} {'TP':>3} {'':4} {'n':>4}  median |error|  p90  bias of output tokens/s")
    for (gpu, tp, precision), errors in sorted(groups.items()):
        absolute = [abs(error) for error in errors]
        ninth = quantiles(absolute, n=10, method="inclusive")[-1] if len(absolute) > 1 else absolute[0]
        place = f"{gpu:16} {tp:3d} {precision:4} {len(errors):4d}"
        print(f"{place}  {median(absolute):6.1%} {ninth:6.1%} {median(errors):+6.1%}")


if __name__ == "__main__":
    main()
