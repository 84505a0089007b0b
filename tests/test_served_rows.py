"""Served rows: how their servers are described, the statistics of a replay, and a few rows replayed."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capacity.deployment.client_latency import USUAL_S

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def served() -> Any:
    """benchmarks/served_rows.py, and the data and errors that it rests on, as one namespace."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import served_data
        import served_errors
        import served_rows

        return SimpleNamespace(**{**vars(served_data), **vars(served_errors), **vars(served_rows)})
    finally:
        sys.path.pop(0)


def row(served: Any, **changes: Any) -> Any:
    """A row of Llama-3.1-70B FP8 on two H200, TensorRT-LLM, as InferenceX would have served it."""
    fields = {
        "campaign": "InferenceX",
        "source": "test",
        "gpu": "h200-sxm-141gb",
        "backend": "trtllm",
        "version": "",
        "model": "llama-3.1-70b",
        "quantization": "fp8",
        "dense": True,
        "input_len": 1024,
        "output_len": 1024,
        "length_scale": 0.9,
        "concurrency": 4,
        "tensor_parallel": 2,
        "data_parallel": 1,
        "expert_parallel": False,
        "ttft_s": 0.1,
        "tpot_s": 0.01,
    }
    return served.ServedRow(**{**fields, **changes})


def test_launch_settings_are_the_campaigns(served: Any) -> None:
    short = served.launch_settings(row(served))
    assert (short["batch_wait_steps"], short["max_num_batched_tokens"]) == (20, 8192)
    assert "batch_wait_steps" not in served.launch_settings(row(served, tensor_parallel=8))
    long = served.launch_settings(row(served, input_len=8192))
    assert long["max_num_batched_tokens"] == 16384
    assert long["kv_cache_dtype"] == "fp8"
    small = row(
        served, campaign="gap-analysis", version="1.0.0rc3", model="llama-3.1-8b", quantization="bf16"
    )
    assert served.launch_settings(small)["max_num_seqs"] == "concurrency - 1"
    assert served.server_of(small).resolved.max_num_seqs == 3


def test_a_server_is_the_users_own_engine(served: Any) -> None:
    server = served.server_of(row(served))
    assert server.resolved.engine.name == "tensorrt-llm"
    assert server.resolved.kv_cache_dtype == "fp8"
    assert server.frontend.request_latency_s == server.resolved.engine.request_latency_s > 0


def test_shortened_runs_weigh_their_middle(served: Any) -> None:
    """Four rounds of 2: first 8 s, middle 1 s, last 3 s; ten rounds would have eight in the middle."""

    class Records:
        arrival_ps = np.zeros(8, dtype=np.int64)
        first_token_ps = np.array([8, 8, 1, 1, 1, 1, 3, 3]) * 10**12
        finish_ps = first_token_ps + 10**12
        output_tokens = np.full(8, 11)

    ttft, tpot = served._means(Records(), 2, 4)
    assert ttft == pytest.approx((8 + 8 * 1 + 3) / 10)
    assert tpot == pytest.approx(0.1)


def test_bands_cover_by_groups_left_out(served: Any) -> None:
    """Twenty groups whose residuals are uniform in ±0.2: the band is 0.9 of that, and holds for nine in ten."""
    rng = np.random.default_rng(1)
    predictions = [
        served.Prediction(
            row=row(served, model=f"m{group}", tpot_s=0.01 * (1 + rng.uniform(-0.2, 0.2))),
            ttft_s=0.1,
            tpot_s=0.01,
        )
        for group in range(20)
        for _ in range(50)
    ]
    band = served.held_out_band(predictions, "tpot_s")
    assert band.rows == 1000
    assert band.low == pytest.approx(-0.18, abs=0.02)
    assert band.high == pytest.approx(0.18, abs=0.02)
    assert band.coverage == pytest.approx(0.9, abs=0.03)


def test_accuracy_is_median_p90_and_bias(served: Any) -> None:
    predictions = [
        served.Prediction(row=row(served), ttft_s=0.1, tpot_s=0.01 * (1 + e)) for e in (-0.1, 0.2, 0.3)
    ]
    found = next(iter(served.accuracy(predictions, "tpot_s", lambda r: r.group)))
    assert (found.rows, found.median, found.bias) == (3, pytest.approx(0.2), pytest.approx(0.2))
    assert found.p90 == pytest.approx(0.28)


def test_a_handful_of_rows_through_the_simulator(served: Any) -> None:
    """Every 40th dense row of short runs: TPOT within 20 % for nine in ten, TTFT within 50 %."""
    folder = served.shared_folder()
    if folder is None:
        pytest.skip("no reference data at hand")
    rows = [r for r in served.read_rows(folder, moe=False) if r.concurrency * r.output_len <= 20_000][::40]
    predictions = [served.by_simulation(replace(r)) for r in rows]
    assert len(predictions) >= 5
    for metric, limit in (("tpot_s", 0.2), ("ttft_s", 0.5)):
        errors = [abs(p.error(metric)) for p in predictions]
        assert not any(math.isnan(e) for e in errors)
        assert np.quantile(errors, 0.9) < limit


@pytest.mark.parametrize(
    ("backend", "tensor", "data", "expert_ranks", "ranks"),
    [
        ("trtllm", 8, 1, 8, (8, 1)),
        ("trtllm", 1, 8, 8, (1, 8)),
        ("trtllm", 1, 1, 8, (1, 8)),  # 8 GPUs of experts are 8 ranks of attention, whatever the label says
        ("sglang", 2, 1, 8, (2, 4)),
        ("sglang", 8, 8, 8, (1, 8)),  # tensor parallelism counts all GPUs
        ("vllm", 4, 4, 16, (1, 4)),
        ("vllm", 4, 1, 4, (4, 1)),
        ("sglang", 1, 1, 1, (1, 1)),
    ],
)
def test_experts_tell_how_many_ranks_there_are(
    served: Any, backend: str, tensor: int, data: int, expert_ranks: int, ranks: tuple[int, int]
) -> None:
    assert served.ranks_of(backend, tensor, data, expert_ranks) == ranks


def test_labels_that_hide_drafts_are_not_scored(served: Any) -> None:
    plain = row(served, dense=False, model="deepseek-v3", backend="sglang")
    assert served.scored(plain)
    assert not served.scored(replace(plain, model="deepseek-r1"))
    four = replace(plain, model="qwen3.5-397b-a17b", quantization="fp8-block", tensor_parallel=4)
    assert not served.scored(four)
    assert served.scored(replace(four, expert_parallel=True))
    assert served.scored(replace(four, tensor_parallel=8))


def test_a_script_that_ignores_data_parallelism_gives_all_its_gpus_to_tensors(served: Any) -> None:
    labelled = row(
        served,
        backend="vllm",
        gpu="h100-sxm-80gb",
        model="minimax-m2",
        quantization="fp8-block",
        version="0.18.0",
        dense=False,
        concurrency=16,
        tensor_parallel=1,
        data_parallel=4,
        expert_parallel=True,
    )
    server = served.server_of(labelled)
    assert (server.resolved.pool.tensor_parallel_size, server.resolved.pool.data_parallel_size) == (4, 1)
    assert server.concurrency == 16


def test_what_does_not_fit_is_said_so(served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    large = row(
        served,
        dense=False,
        backend="sglang",
        model="qwen3-235b-a22b",
        quantization="fp8-block",
        tensor_parallel=1,
    )
    prediction = served.by_simulation(large)
    assert prediction.tpot_s is None
    served.print_table([prediction])
    assert "qwen3-235b-a22b fp8-block TP 1: " in capsys.readouterr().out


def test_client_latency_of_an_unlisted_campaign_is_the_usual_one(served: Any) -> None:
    assert served.client_seconds(row(served)) == 0.0065
    assert served.client_seconds(row(served, campaign="gap-analysis")) == 0.0165
    assert served.client_seconds(row(served, campaign="gap-analysis", backend="vllm")) == USUAL_S


def test_marlin_is_the_kernel_of_gpt_oss_on_h100_only(served: Any) -> None:
    fields = {"backend": "vllm", "model": "gpt-oss-120b", "quantization": None}
    assert "weight_kernels" in served.launch_settings(row(served, gpu="h100-sxm-80gb", **fields))
    assert "weight_kernels" not in served.launch_settings(row(served, gpu="b200-sxm-180gb", **fields))
