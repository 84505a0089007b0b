"""KV caches by model and context: bytes by hand, what each GPU holds, and refusals in one line."""

from __future__ import annotations

from functools import lru_cache

import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.model import load_model
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.techniques.kv import kv
from capacity.techniques.kv_bytes import limited_attention, request_kv_bytes
from capacity.techniques.long_context import (
    context_parallel_prefill,
    decode_point,
)

KIB, GIB = 2**10, 2**30


@lru_cache(maxsize=4)
def pool(model: str = "llama-3.1-8b", gpu: str = "h100", tp: int = 1) -> ResolvedPool:
    return resolve(model, Pool(gpu=gpu, tensor_parallel_size=tp))


def test_one_model_needs_no_list() -> None:
    assert kv("llama-3.1-8b", gpus="h100") == kv(["llama-3.1-8b"], gpus=["h100"])


def test_bytes_per_token_by_hand() -> None:
    """Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 B = 128 KiB; DeepSeek-V3: 61 x (512 + 64) x 2 B = 70,272."""
    rows = {row.model: row for row in kv(["llama-3.1-8b", "llama-2-7b", "deepseek-v3"]).rows}
    assert rows["llama-3.1-8b"].bytes_per_token == 128 * KIB
    assert rows["llama-2-7b"].bytes_per_token == 512 * KIB
    assert rows["deepseek-v3"].bytes_per_token == 61 * 576 * 2
    assert rows["llama-3.1-8b"].request_bytes == {
        4096: GIB / 2, 32768: 4 * GIB, 131072: 16 * GIB, 1048576: 128 * GIB
    }  # fmt: skip


def test_what_each_gpu_holds() -> None:
    (row,) = kv(["llama-3.1-8b"], gpus=["h100", "l4"], contexts=[4096]).rows
    assert row.gpu_context_tokens["h100"] == 131072
    assert 0 < row.gpu_context_tokens["l4"] < 131072
    assert kv(["llama-3.3-70b"], gpus=["h100"]).rows[0].gpu_context_tokens == {"h100": 0}


def test_a_kv_format_changes_the_cache_only() -> None:
    smaller = resolve("llama-3.1-8b", Pool(gpu="h100", kv_cache_dtype="fp8"))
    assert smaller.memory.kv_capacity_tokens == pytest.approx(2 * pool().memory.kv_capacity_tokens, rel=0.01)
    with pytest.raises(UnknownName):
        resolve("llama-3.1-8b", Pool(gpu="h100", kv_cache_dtype="fp7"))


def test_bad_questions_are_refused_in_one_line() -> None:
    model = load_model("llama-3.1-8b")
    for tokens in (0, -5, 1 << 41):
        with pytest.raises(InvalidInput):
            request_kv_bytes(model, tokens)
    with pytest.raises(InvalidInput):
        limited_attention(model, 10, window_tokens=0)
    with pytest.raises(InvalidInput):
        limited_attention(model, 0, window_tokens=8)
    with pytest.raises(InvalidInput):
        decode_point(pool(), 0, 4096)
    with pytest.raises(InvalidInput):
        context_parallel_prefill(pool(), 4, (8,))
    with pytest.raises(UnknownName):
        kv(["llama-99"])
