"""The replay of GPUStack's serving runs: what a launch command says, and which runs are left out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SAMPLE = Path(__file__).parent / "data" / "measured"
sys.path.insert(0, str(BENCHMARKS))
try:
    import served_gpustack
    from reference_tables.form import read
finally:
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        ("vllm serve m --max-model-len 32768 -tp 4", {"max_model_len": "32768", "tensor_parallel_size": "4"}),
        (
            "vllm serve m --async-scheduling --max-num-seqs 64",
            {"async_scheduling": True, "max_num_seqs": "64"},
        ),
        ("python3 -m sglang.launch_server --model-path m --tp-size 2", {"tensor_parallel_size": "2"}),
        ("trtllm-serve Qwen/Qwen3-8B", {}),
        ("python3 -m sglang.launch_server --model m --enable-dp-attention", None),
        ("export VLLM_USE_DEEP_GEMM=0 vllm serve m -tp 8", None),
        ("", None),
    ],
)
def test_a_launch_command_is_read_whole_or_not_at_all(script: str, settings: object) -> None:
    assert served_gpustack.launch(f'100 requests; script="{script}"') == settings


def test_versions_are_those_of_the_label() -> None:
    versions = "- vLLM: v0.11.0 - SGLang: v0.5.4.post2 - TensorRT-LLM: v1.2.0rc1"
    assert served_gpustack.engine_of("vLLM", versions) == "vllm@0.11-flashinfer"
    assert served_gpustack.engine_of("SGLang", versions) == "sglang@0.5.4"
    assert served_gpustack.engine_of("TensorRT-LLM", versions) == "tensorrt-llm@1.2.0"
    assert served_gpustack.engine_of("vLLM 0.9.2", versions) is None
    assert served_gpustack.engine_of("vLLM", "") is None


def test_figures_that_a_page_repeats_from_another_count_once() -> None:
    table = read(SAMPLE, "gpustack")
    first = table[table.load_type == "infinite_rate"].iloc[[0]]
    elsewhere = first.assign(gpu="H100-SXM" if first.gpu.iloc[0] != "H100-SXM" else "A100-SXM")
    assert len(served_gpustack.replayable(pd.concat([first, elsewhere]))) == 1
    assert len(served_gpustack.replayable(pd.concat([first, elsewhere.assign(value=1.0)]))) == 2


def test_lengths_of_sharegpt_have_the_documents_means_and_the_tools_limits() -> None:
    prompts, outputs = served_gpustack.sharegpt_lengths(1000, 217.0, 200.0)
    for lengths, mean, longest in ((prompts, 217.0, 1024), (outputs, 200.0, 1024)):
        assert lengths.mean() == pytest.approx(mean, rel=0.02)
        assert lengths.min() >= 4
        assert lengths.max() <= longest
    assert np.median(prompts) < 120
    assert prompts.std() > prompts.mean()


def test_every_run_that_ships_is_replayed_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    replayed = list(served_gpustack.gpustack_runs(SAMPLE))
    refused = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gpustack")]
    assert 2 * (len(replayed) + len(refused)) == len(read(SAMPLE, "gpustack"))
    assert {run.load for run in replayed} == {"closed loop", "all at once"}
    assert all(measured > 0 for run in replayed for _, measured in (run.ttft_s, run.tpot_s))
