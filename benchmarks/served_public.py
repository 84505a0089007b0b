"""Predict the public served rows of the evaluation set, and print errors and interval coverage by source.

    python benchmarks/served_public.py [--only TEXT] [--every 4] [--rows]

The rows are `reference/measured/evaluation/served_public.csv.gz` in the folder of reference data (CAPACITY_SHARED, or
../shared beside the checkout). They judge predictions; no constant, form or setting may be chosen with them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from served_blind import METRICS, Judged, predictions, summary
from served_data import shared_folder

TABLE = Path("reference/measured/evaluation/served_public.csv.gz")
SETTINGS = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "kv_cache_dtype": "kv_cache_dtype",
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "prefix_caching": "enable_prefix_caching",
}


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows in the columns of `served_blind`: one deployment, its load, and the measured figures."""
    with gzip.open(folder / TABLE, "rt", newline="") as file:
        return [_blind_row(row) for row in csv.DictReader(file)]


def _blind_row(row: Mapping[str, str]) -> dict[str, str]:
    settings = [f"{name}={row[column].lower()}" for column, name in SETTINGS.items() if row[column]]
    roles = dict(part.split("=") for part in row["extra"].split())
    if roles:
        replicas = int(roles["prefill"]) + int(roles["decode"])
        settings += [f"replicas={replicas}", f"prefill_replicas={roles['prefill']}"]
    # TensorRT-LLM's performance overview sets it (llm_options.yml, 0.20 to 1.2). NIM 1.8 (2025-04) is older than 1.0,
    # and our entries pad the graphs of releases before 1.0.
    if row["engine"].startswith("tensorrt-llm"):
        settings.append("cudagraph_padding=true")
    offline = row["load"] == "offline"
    return {
        "source": row["set"],
        "engine": row["engine"],
        "gpu": row["gpu"],
        "model": row["model"],
        "quantization": row["quantization"],
        "settings": " ".join(settings),
        "lengths": f"ratio {row['range_ratio']}" if row["range_ratio"] else "fixed",
        "input_len": row["input_len"],
        "output_len": row["output_len"],
        "prompts": row["num_prompts"],
        "concurrency": "" if offline else row["concurrency"],
        "rate": "inf" if offline else "",
        "counted": "",
        "ttft_ms": row["ttft_mean"],
        "ttft_of": "mean",
        "tpot_ms": row["tpot_mean"],
        "tpot_of": "mean",
        "e2e_ms": row["e2e_mean"],
        "output_tok_s": row["output_tok_s"],
        "not_said": row["flags"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only rows that contain this text")
    parser.add_argument("--every", type=int, default=1, help="every n-th row")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    rows = [row for row in read_rows(folder) if options.only in " ".join(row.values())]
    begin = time.process_time()
    found: list[Judged] = predictions(rows[:: options.every])
    if options.rows:
        for j in found:
            print(
                f"{j.source:18s} {j.gpu:16s} {j.label:70s} {j.metric:10s} {j.measured:10.2f} {j.error:+5.0%}"
            )
    print(f"{'median/p90 error, bias, held':24s} " + "  ".join(f"{metric:>30s}" for metric in METRICS))
    for source in sorted({j.source for j in found}):
        print(summary(source, [j for j in found if j.source == source]))
    print(f"{len(rows[:: options.every])} rows in {time.process_time() - begin:.0f} CPU s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
