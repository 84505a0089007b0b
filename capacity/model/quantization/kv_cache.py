"""Formats of keys and values in the KV cache."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from capacity.base.data_files import read_rows
from capacity.base.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheFormat:
    """Storage format of keys and values in the cache.

    `scale_bits`: bits of each scale (0: one scale per tensor, not counted). There is one scale per vector of a token
    and head, or with `scale_block`, one per block of this many values. `packs_latents`: a latent has its rotary key at
    16 bit and one FP32 scale per 128 other values.
    """

    name: str
    value_bits: int
    scale_bits: int = 0
    scale_block: int | None = None
    packs_latents: bool = False
    aliases: tuple[str, ...] = ()
    source: str

    def vector_bytes(self, length: int) -> float:
        """Return the bytes of one vector of `length` values: the key or the value of one head and token."""
        scales = 1 if self.scale_block is None else math.ceil(length / self.scale_block)
        return (length * self.value_bits + scales * self.scale_bits) / 8


@cache
def _formats() -> dict[str, KvCacheFormat]:
    """Return all KV cache formats by name. Raises MalformedFile."""
    return read_rows(Path(__file__).with_name("kv_cache_formats.json"), KvCacheFormat)


def kv_cache_format_names() -> tuple[str, ...]:
    """Return the values of `--kv-cache-dtype`, except `auto` (the model's own dtype)."""
    return tuple(_formats())


def find_kv_cache_format(name: str = "auto", *, model_dtype: str = "bf16") -> KvCacheFormat:
    """Return the KV cache format for a value of `--kv-cache-dtype`; `auto` means `model_dtype`. Raises UnknownName."""
    key = name.strip().lower().replace("_", "-")
    key = model_dtype if key == "auto" else key
    for kv in _formats().values():
        if key in (kv.name.replace("_", "-"), *kv.aliases):
            return kv
    aliases = [alias for kv in _formats().values() for alias in kv.aliases]
    raise UnknownName("KV cache dtype", name, ("auto", *kv_cache_format_names()), aliases=aliases)
