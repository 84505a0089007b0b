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


def test_a_log_without_start_up_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="none of the lines"):
        read_server_log(write(tmp_path / "x.log", "hello"))
