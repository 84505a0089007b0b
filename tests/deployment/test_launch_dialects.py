"""The lines of SGLang and TensorRT-LLM, flag by flag: parallelism as each counts it, drafts, and options in a file."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment.launch_command import read_launch


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "python -m sglang.launch_server --model m --tp 8 --dp 8 --enable-dp-attention --ep 8",
            {"tensor_parallel_size": 1, "data_parallel_size": 8, "enable_expert_parallel": True},
        ),
        (
            "python -m sglang.launch_server --model m --tp=4 --mem-fraction-static 0.85 --chunked-prefill-size -1",
            {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.85, "enable_chunked_prefill": False},
        ),
        (
            "python -m sglang.launch_server --model m --speculative-algorithm NEXTN --speculative-num-steps 1 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 2",
            {"speculator": "mtp", "num_speculative_tokens": 1},
        ),
        (
            "python -m sglang.launch_server --model m --speculative-algorithm EAGLE --speculative-num-steps 5 "
            "--speculative-eagle-topk 4 --speculative-num-draft-tokens 8",
            {"speculator": "eagle-tree", "num_speculative_tokens": 5},
        ),
        (
            "trtllm-build --checkpoint_dir m --max_batch_size 64 --max_num_tokens 8192 --max_seq_len 4096 "
            "--tokens_per_block 128",
            {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "max_model_len": 4096, "block_size": 128},
        ),
    ],
)
def test_flags_are_read_in_a_pools_words(line: str, fields: dict[str, Any]) -> None:
    pool = read_launch(line).pool("h100")
    assert {name: getattr(pool, name) for name in fields} == fields


def test_options_of_trtllm_serve_are_read_beside_the_line(tmp_path: Any) -> None:
    (tmp_path / "trtllm.yaml").write_text(
        "kv_cache_config:\n  dtype: fp8  # as planned\n  tokens_per_block: 64\nenable_attention_dp: true\n"
        "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 2\n"
    )
    script = tmp_path / "launch.sh"
    script.write_text("trtllm-serve m --tp_size 8 --ep_size 8 --extra_llm_api_options trtllm.yaml\n")
    pool = read_launch(str(script)).pool("h200")
    assert (pool.tensor_parallel_size, pool.data_parallel_size, pool.enable_expert_parallel) == (1, 8, True)
    assert (pool.kv_cache_dtype, pool.block_size, pool.speculator, pool.num_speculative_tokens) == (
        "fp8",
        64,
        "mtp",
        2,
    )
    with pytest.raises(InvalidInput, match="it must be next to the launch file"):
        read_launch(script.read_text())


def test_options_of_trtllm_serve_that_are_not_read_are_reported(tmp_path: Any) -> None:
    options = "print_iter_log: true\nscheduler_config:\n  capacity_scheduler_policy: MAX_UTILIZATION\n"
    options += "moe_config:\n  backend: TRTLLM\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n"
    (tmp_path / "o.yaml").write_text(options)
    (tmp_path / "l.sh").write_text("trtllm-serve m --extra_llm_api_options o.yaml\n")
    read = read_launch(str(tmp_path / "l.sh"))
    assert read.pool("h100").gpu_memory_utilization == 0.8
    assert read.not_modelled[0].startswith(
        "scheduler_config.capacity_scheduler_policy=MAX_UTILIZATION (GUARANTEED_NO_EVICT, the default, is simulated"
    )
    assert read.unknown == ("moe_config.backend",)
    assert read.ignored == ("print_iter_log",)


def test_adapters_of_sglang_are_eight_unless_said() -> None:
    line = "python -m sglang.launch_server --model m --enable-lora"
    assert read_launch(line).pool("h100").max_loras == 8
    assert read_launch(f"{line} --max-loras-per-batch 2").pool("h100").max_loras == 2
    assert read_launch(line.removesuffix(" --enable-lora")).pool("h100").max_loras is None


def test_attention_ranks_of_sglang_divide_the_limits_of_a_step() -> None:
    line = "python -m sglang.launch_server --model m --tp 16 --dp 16 --chunked-prefill-size 32768"
    line = f"{line} --max-running-requests 2048"
    apart = read_launch(f"{line} --enable-dp-attention").pool("h200")
    assert (apart.tensor_parallel_size, apart.data_parallel_size) == (1, 16)
    assert (apart.max_num_batched_tokens, apart.max_num_seqs) == (2048, 128)
    plain = read_launch(line).pool("h200")
    assert (plain.max_num_batched_tokens, plain.max_num_seqs) == (32768, 2048)


def test_a_step_of_trtllm_may_hold_fewer_tokens_than_a_request(tmp_path: Any) -> None:
    line = (
        "trtllm-serve openai/gpt-oss-120b --max_batch_size 640 --max_num_tokens 8192 --tp_size 4 --ep_size 4"
    )
    read = read_launch(line)
    assert read.fields["enable_chunked_prefill"] is True
    assert "--max_num_tokens 8192 rejects longer prompts" in read.not_modelled[0]
    with pytest.warns(UserWarning, match="max_num_tokens"):
        assert capacity.fit(capacity.from_launch(line, gpu="h200")).fits
    short = read_launch(f"{line} --max_seq_len 8192")
    assert "enable_chunked_prefill" not in short.fields
    assert not short.not_modelled
    (tmp_path / "o.yaml").write_text("enable_chunked_prefill: true\n")
    (tmp_path / "l.sh").write_text(f"{line} --extra_llm_api_options o.yaml\n")
    said = read_launch(str(tmp_path / "l.sh"))
    assert (said.fields["enable_chunked_prefill"], said.not_modelled) == (True, ())


def test_flags_of_wide_expert_parallelism_are_known() -> None:
    read = read_launch(
        "python -m sglang.launch_server --model m --tp 16 --dp 16 --enable-dp-attention --moe-a2a-backend deepep "
        "--enable-dp-lm-head --cuda-graph-bs 1 2 4 8 --moe-dense-tp-size 1"
    )
    assert read.unknown == ()
    assert "--cuda-graph-bs 1 2 4 8" in [text.partition(" (")[0] for text in read.not_modelled]
