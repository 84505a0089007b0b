"""What the names of `--quantization` mean for a model."""

from __future__ import annotations

from capacity.base.errors import InvalidInput, UnknownName
from capacity.model.quantization.formats import WeightFormat, find_format
from capacity.model.quantization.gguf import GGUF_MIXES, gguf_scheme
from capacity.model.quantization.scheme import QuantizationScheme, Stored, uniform_scheme

_LINEAR_FORMATS = {
    # name of --quantization: (format of the layers' matrices, methods of checkpoints that it also names)
    "fp32": ("fp32", ()),
    "bf16": ("bf16", ()),
    "fp16": ("fp16", ()),
    "fp8": ("fp8", ("fp8", "fbgemm_fp8", "modelopt-fp8", "compressed-tensors-fp8", "quark-fp8")),
    "fp8-channel": ("fp8-channel", ("compressed-tensors-fp8", "fbgemm_fp8")),
    "fp8-block": ("fp8-block", ("fp8",)),
    "mxfp8": ("mxfp8", ()),
    "int8": ("int8", ("compressed-tensors-int8",)),
    "int8-weight-only": ("int8-channel-w8a16", ()),
    "llm-int8": ("llm-int8", ("bitsandbytes-int8",)),
    "gptq-int8": ("int8-g128", ("gptq",)),
    "gptq-int4": ("int4-g128", ("gptq",)),
    "gptq-int3": ("int3-g128", ("gptq",)),
    "awq-int4": ("int4-g128", ("awq",)),
    "int4-g128": ("int4-g128", ()),
    "int4-g128-sym": ("int4-g128-sym", ()),
    "int4-g32": ("int4-g32", ()),
    "int4-g32-sym": ("int4-g32-sym", ()),
    "nf4": ("nf4-dq", ("bitsandbytes-nf4",)),
    "mxfp4": ("mxfp4", ("mxfp4",)),
    "nvfp4": ("nvfp4", ("modelopt-nvfp4", "compressed-tensors-nvfp4")),
}
_ALIASES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "16bit": "bf16",
    "fp8-e4m3": "fp8",
    "ptpc-fp8": "fp8-channel",
    "fbgemm-fp8": "fp8-channel",
    "w8a8": "int8",
    "w8a8-int8": "int8",
    "int8-w8a8": "int8",
    "smoothquant": "int8",
    "w8a8-fp8": "fp8",
    "w8a16": "int8-weight-only",
    "w4a16": "int4-g128",
    "int4": "int4-g128",
    "awq": "awq-int4",
    "awq-marlin": "awq-int4",
    "gptq": "gptq-int4",
    "gptq-marlin": "gptq-int4",
    "bitsandbytes": "nf4",
    "bnb": "nf4",
    "bitsandbytes-nf4": "nf4",
    "bitsandbytes-int8": "llm-int8",
    "modelopt": "fp8",
    "modelopt-fp8": "fp8",
    "modelopt-fp4": "nvfp4",
    "modelopt-nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "gguf": "gguf-q4_k_m",
    "q4-k-m": "gguf-q4_k_m",
}


def known_quantizations() -> tuple[str, ...]:
    """Names for `--quantization`."""
    return (*_LINEAR_FORMATS, "experts-int8", *GGUF_MIXES)


def scheme_for(model: Stored, name: str | None = None) -> QuantizationScheme:
    """How `model` is stored under `--quantization NAME`; None, `auto` and `none`: as its checkpoint is.

    A name that the checkpoint already answers to (`mxfp4` for gpt-oss, `fp8` for DeepSeek-V3) is the
    checkpoint itself. Otherwise the matrices of the layers take the format; embedding, LM head, routers and
    norms stay at 16 bit, as vLLM and the quantizers leave them by default. Raises UnknownName.
    """
    key = "auto" if name is None else name.strip().lower().replace("_", "-")
    if key in ("auto", "none", "compressed-tensors", "quark"):
        return _own_scheme(model, key)
    if key in ("modelopt", "gguf") and model.checkpoint.method.startswith(key):
        return model.checkpoint
    key = _ALIASES.get(key, key)
    for mix in GGUF_MIXES:
        if mix.replace("_", "-") in (key.replace("_", "-"), f"gguf-{key}"):
            return gguf_scheme(model, mix)
    if key == "experts-int8":
        base = model.checkpoint.base
        return uniform_scheme(key, base, base=base, method=key, experts=find_format("int8-channel-w8a16"))
    if key not in _LINEAR_FORMATS:
        raise UnknownName("quantization", str(name), known_quantizations(), aliases=_ALIASES)
    format_name, methods = _LINEAR_FORMATS[key]
    if model.checkpoint.method in methods:
        return model.checkpoint
    return _renamed(model, key, find_format(format_name))


def _own_scheme(model: Stored, key: str) -> QuantizationScheme:
    if key in ("compressed-tensors", "quark") and not model.checkpoint.method.startswith(key):
        message = (
            f"quantization {key!r} names a checkpoint's own scheme, and this one is {model.checkpoint.name!r}"
        )
        raise InvalidInput(f"{message}: name a format instead (fp8, int4-g128, ...)")
    return model.checkpoint


def _renamed(model: Stored, name: str, weight_format: WeightFormat) -> QuantizationScheme:
    base = model.checkpoint.base if weight_format.value_bits < 16 else weight_format
    return uniform_scheme(name, weight_format, base=base, method="none" if weight_format is base else name)
