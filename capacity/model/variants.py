"""Ids of copies of a known model, read by their names: `nvidia/Llama-3.3-70B-Instruct-FP8` is llama-3.3-70b in FP8.

A name says less than a checkpoint's own config.json (which layers stay at 16 bit, how the KV cache is scaled), so
what is read from it is always said, with the way to read the config instead.
"""

import re
from dataclasses import dataclass

_OWNERS_FP8 = {"qwen": "fp8-block", "deepseek-ai": "fp8-block", "minimaxai": "fp8-block"} | dict.fromkeys(
    ("zai-org", "thudm", "meta-llama", "mistralai"), "fp8-channel"
)
_GGUF_MIX = r"q[2-8](?:-k-[sml]|-k|-[01])"
# what the end of a name says -> weight format; the first that matches counts
_ENDINGS = tuple(
    (re.compile(pattern + "$"), weight_format)
    for pattern, weight_format in (
        (rf"(?:-qat)?(?:-gguf)?[-.:]({_GGUF_MIX})(?:-gguf)?", "gguf-*"),
        (r"(?:-qat)?-gguf", "gguf-q4_k_m"),
        (r"-(?:unsloth-)?bnb-4bit|-nf4", "nf4"),
        (r"-bnb-8bit", "llm-int8"),
        (r"(?:-int4)?-awq(?:-marlin|-int4|-4bit)?", "awq-int4"),
        (r"-gptq-(?:int8|8bit)(?:-\d+g)?|-(?:int8|8bit)-gptq", "gptq-int8"),
        (r"-gptq(?:-marlin|-int4|-4bit)?(?:-\d+g)?|-(?:int4|4bit)-gptq", "gptq-int4"),
        (
            r"-(?:int4-)?autoround(?:-int4)?|-int4(?:-mixed)?-ar|[-.](?:quantized\.)?w4a16(?:-g128)?",
            "int4-g128-sym",
        ),
        (r"[-.](?:quantized\.)?w8a16", "int8-weight-only"),
        (r"[-.](?:quantized\.)?w8a8|-int8", "int8"),
        (r"-int4|-4bit", "int4-g128"),
        (r"-fp8-(?:dynamic|channel|ptpc)|-ptpc", "fp8-channel"),
        (r"-fp8-block", "fp8-block"),
        (r"-fp8-(?:static|tensor|kv)|-fp8", "fp8"),
        (r"-(?:nvfp4|fp4)(?:-v\d)?", "nvfp4"),
        (r"-mxfp8", "mxfp8"),
        (r"-mxfp4", "mxfp4"),
        (r"-bf16", "bf16"),
        (r"-fp16", "fp16"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What an id says of itself: the name of the model that it copies, and the format it is stored in, if it says."""

    base: str
    weight_format: str | None
    kv_cache_dtype: str | None = None


def read_variant(name: str) -> Variant:
    """What `name` (an id with or without its owner) says. Case, `_` and `-` are one."""
    owner, _, bare = name.strip().lower().replace("_", "-").rpartition("/")
    for pattern, weight_format in _ENDINGS:
        ending = pattern.search(bare)
        if ending is None or ending.start() == 0:
            continue
        base = bare[: ending.start()]
        if weight_format == "gguf-*":
            return Variant(base=base, weight_format="gguf-" + ending.group(1).replace("-", "_"))
        if ending.group() == "-fp8":
            return Variant(base=base, weight_format=_OWNERS_FP8.get(owner, weight_format))
        kv_cache_dtype = "fp8" if ending.group() == "-fp8-kv" else None
        return Variant(base=base, weight_format=weight_format, kv_cache_dtype=kv_cache_dtype)
    return Variant(base=bare, weight_format=None)


def checkpoint_method(name: str, weight_format: str) -> str:
    """The `quant_method` under which checkpoints of this owner and format are usually published."""
    family = re.sub(r"-(channel|g128-sym|g128)$", "", weight_format)
    if name.lower().startswith("nvidia/") and family in ("fp8", "nvfp4"):
        return f"modelopt-{family}"
    known = {
        "awq-int4": "awq",
        "gptq-int4": "gptq",
        "gptq-int8": "gptq",
        "fp8-block": "fp8",
        "mxfp4": "mxfp4",
    }
    known |= {"nf4": "bitsandbytes-nf4", "llm-int8": "bitsandbytes-int8"}
    if family.startswith("gguf"):
        return "gguf"
    return known.get(family, f"compressed-tensors-{family}")
