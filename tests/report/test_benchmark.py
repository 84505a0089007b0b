"""The benchmark line of a plan: the arrivals, the limits and the metadata that it names."""

from __future__ import annotations

from capacity.report.benchmark import RandomArrivals, bench_command
from capacity.workload import parse_slos


def test_the_benchmark_line_sends_the_same_traffic() -> None:
    slos = parse_slos("ttft:p95:1s tpot:50")
    words = bench_command(
        "org/model",
        RandomArrivals(requests=500, request_rate_per_s=4.0, input_tokens=1155.4, output_tokens=211.2),
        slos=slos,
        metadata=[("gpu", "h100"), ("tp", 4)],
    ).words
    text = " ".join(words)
    for part in (
        "--random-input-len 1155",
        "--random-output-len 211",
        "--request-rate 4",
        "--goodput ttft:1000 tpot:50",
    ):
        assert part in text
    assert "--metadata gpu=h100 tp=4" in text
    assert "--max-concurrency" not in text
    traced = bench_command("m", "--dataset-name timed_trace --dataset-path a.jsonl", slos=slos)
    assert "timed_trace" in traced.words
