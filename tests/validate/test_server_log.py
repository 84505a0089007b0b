"""What engines print at start-up."""

from pathlib import Path

import pytest
from benchmark_files import write
from capacity_validate.server_log import read_server_log

from capacity.base.errors import MalformedFile


def test_what_vllm_prints_at_start_up(tmp_path: Path) -> None:
    lines = """
INFO 11-06 10:51:48 [gpu_model_runner.py:4879] Model loading took 14.99 GiB memory and 31.6 seconds
INFO 11-06 10:51:48 [gpu_worker.py:349] Available KV cache memory: 51.53 GiB
(EngineCore_DP0 pid=1) INFO 11-06 10:51:48 [kv_cache_utils.py:1229] GPU KV cache size: 422,112 tokens
INFO 11-06 10:51:48 [kv_cache_utils.py:1234] Maximum concurrency for 131,072 tokens per request: 3.22x
INFO 11-06 10:52:10 [gpu_model_runner.py:5100] Graph capturing finished in 21 secs, took 0.53 GiB
INFO Chunked prefill is enabled with max_num_batched_tokens=8192.
"""
    log = read_server_log(write(tmp_path / "server.log", lines))
    assert log.kv_tokens == 422_112
    assert log.weights_bytes == int(14.99 * 2**30)
    assert log.settings == {"max_num_batched_tokens": 8192, "max_model_len": 131_072}
    assert log.kv_fields(16) == {"num_gpu_blocks_override": 26_382}


def test_older_and_other_engines_logs(tmp_path: Path) -> None:
    v0 = read_server_log(write(tmp_path / "v0.log", "INFO # cuda blocks: 7191, # CPU blocks: 512"))
    assert v0.kv_fields(16) == {"num_gpu_blocks_override": 7191}
    sglang = read_server_log(
        write(
            tmp_path / "sglang.log",
            "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB",
        )
    )
    assert sglang.kv_tokens == 367_404


TENSORRT_LLM = """[TensorRT-LLM] TensorRT-LLM version: 1.1.0rc3
[12/20/2025-04:20:04] [TRT-LLM] [I] Using LLM with PyTorch backend
/models/hub/models--openai--gpt-oss-120b/snapshots/b5c9
[12/20/2025-04:20:19] [TRT-LLM] [I] PyTorchConfig(extra_resource_managers={}, use_cuda_graph=True, \
cuda_graph_batch_sizes=[1, 2, 4, 8, 16], disable_overlap_scheduler=True, moe_max_num_tokens=None, \
attn_backend='TRTLLM', moe_backend='CUTLASS', kv_cache_dtype='fp8', load_format=<LoadFormat.AUTO: 0>)
[12/20/2025-04:20:19] [TRT-LLM] [I] ATTENTION RUNTIME FEATURES:  AttentionRuntimeFeatures(chunked_prefill=False, \
cache_reuse=True, has_speculative_draft_tokens=False, chunk_size=8192)
[12/20/2025-04:20:21] [TRT-LLM] [I] Use 63.32 GB for model weights.
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
[12/20/2025-04:21:10] [TRT-LLM] [I] max_seq_len=8224, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).
[12/20/2025-04:21:52] [TRT-LLM] [I] max_seq_len=86720, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
"""


def test_start_up_log_of_tensorrt_llm_gives_the_values_after_its_trial_run(tmp_path: Path) -> None:
    log = read_server_log(write(tmp_path / "t.log", TENSORRT_LLM.replace("\\\n", "")))
    assert log.launch.models == ("openai/gpt-oss-120b",)
    assert (log.kv_tokens, log.kv_cache_bytes) == (86_720, int(5.95 * 2**30))
    assert log.weights_bytes == int(63.32 * 2**30)
    assert (log.attention_backend, log.moe_backend) == ("TRTLLM", "CUTLASS")
    assert log.settings == {
        "engine": "tensorrt-llm@1.1",
        "kv_cache_dtype": "fp8",
        "enforce_eager": False,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 64,
        "max_model_len": 86_720,
        "block_size": 32,
    }


@pytest.mark.parametrize(
    ("line", "attention", "moe", "hits"),
    [
        ("[cuda.py:317] Using FLASHINFER attention backend out of potential backends: ['FLASHINFER']",
         "FLASHINFER", None, None),
        ("[cuda.py:318] Using AttentionBackendEnum.TRITON_ATTN backend.", "TRITON_ATTN", None, None),
        ("[cuda.py:284] Using Flash Attention backend on V1 engine.", "Flash Attention", None, None),
        ("[fp8.py:419] Using MARLIN Fp8 MoE backend out of potential backends: ['MARLIN']", None, "MARLIN", None),
        ("[nvfp4.py:203] Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: []",
         None, "FLASHINFER_CUTLASS", None),
        ("Engine 000: Avg prompt throughput: 1.0 tokens/s, Prefix cache hit rate: 31.4%", None, None, 0.314),
        ("Prefill batch. #new-seq: 1, #new-token: 300, #cached-token: 100, #queue-req: 0", None, None, 0.25),
    ],
)  # fmt: skip
def test_backends_and_hit_rate_are_read(
    tmp_path: Path, line: str, attention: str | None, moe: str | None, hits: float | None
) -> None:
    log = read_server_log(write(tmp_path / "s.log", f"INFO GPU KV cache size: 8,000 tokens\nINFO {line}\n"))
    assert (log.attention_backend, log.moe_backend, log.prefix_hit_rate) == (attention, moe, hits)
    assert log.settings.get("moe_backend") == {
        "MARLIN": "marlin",
        "FLASHINFER_CUTLASS": "flashinfer_cutlass",
    }.get(str(moe))


def test_a_log_without_start_up_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="none of the lines"):
        read_server_log(write(tmp_path / "x.log", "hello"))
