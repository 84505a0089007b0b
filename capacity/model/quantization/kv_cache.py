"""How keys and values are stored in the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capacity.base.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheFormat:
    """How keys and values are stored: `scale_bits` come once for each token, head and vector (0: one per tensor).

    Where `scale_block` is given, they come once for each so many values of the vector. `packs_latents`: a latent keeps
    its rotary key at 16 bit and one FP32 scale for each 128 of its other values.
    """

    name: str
    value_bits: int
    scale_bits: int = 0
    scale_block: int | None = None
    packs_latents: bool = False
    source: str

    def vector_bytes(self, length: int) -> float:
        """Bytes of one vector (the key or the value of one head and token) of `length` values."""
        scales = 1 if self.scale_block is None else math.ceil(length / self.scale_block)
        return (length * self.value_bits + scales * self.scale_bits) / 8


_VLLM_CACHE = "vLLM 0.33 vllm/config/cache.py CacheDType, 2026-11; datasheet"
_KV_CACHE_FORMATS = (
    KvCacheFormat(name="fp32", value_bits=32, source=_VLLM_CACHE),
    KvCacheFormat(name="bf16", value_bits=16, source=_VLLM_CACHE),
    KvCacheFormat(name="fp16", value_bits=16, source=_VLLM_CACHE),
    KvCacheFormat(name="fp8", value_bits=8, source=_VLLM_CACHE),
    KvCacheFormat(
        name="fp8_ds_mla",
        value_bits=8,
        packs_latents=True,
        source="vLLM 0.33 v1/attention/backends/mla/flashmla_sparse.py, 2026-11; datasheet",
    ),
    KvCacheFormat(
        name="int8",
        value_bits=8,
        scale_bits=32,
        source="LMDeploy docs quantization/kv_quant: scale and zero point, FP16 each, per head and token; datasheet",
    ),
    KvCacheFormat(
        name="int4",
        value_bits=4,
        scale_bits=32,
        source="LMDeploy docs quantization/kv_quant: scale and zero point, FP16 each, per head and token; datasheet",
    ),
    KvCacheFormat(
        name="kivi2",
        value_bits=2,
        scale_bits=32,
        scale_block=32,
        source="KIVI, arXiv 2402.02750: scale and zero point, FP16 each, for each 32 values; the recent ones at 16 bit "
        "are left out; datasheet",
    ),
    KvCacheFormat(
        name="nvfp4",
        value_bits=4,
        scale_bits=8,
        scale_block=16,
        source="TensorRT-LLM 1.x and vLLM 0.33 NVFP4 KV cache: one E4M3 scale for each 16 values; datasheet",
    ),
)
_KV_CACHE_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8-e4m3": "fp8",
    "fp8-e5m2": "fp8",
    "fp8-inc": "fp8",
    "float8-e4m3fn": "fp8",
}


def kv_cache_format_names() -> tuple[str, ...]:
    """Names for `--kv-cache-dtype`, besides `auto` (the model's own)."""
    return tuple(kv.name for kv in _KV_CACHE_FORMATS)


def find_kv_cache_format(name: str = "auto", *, model_dtype: str = "bf16") -> KvCacheFormat:
    """The KV cache format of vLLM's `--kv-cache-dtype`; `auto` is `model_dtype`. Raises UnknownName."""
    key = name.strip().lower().replace("_", "-")
    key = model_dtype if key == "auto" else _KV_CACHE_ALIASES.get(key, key)
    for kv in _KV_CACHE_FORMATS:
        if kv.name.replace("_", "-") == key:
            return kv
    raise UnknownName("KV cache dtype", name, ("auto", *kv_cache_format_names()), aliases=_KV_CACHE_ALIASES)
