"""Resolve the names of `--quantization` for a model."""

from capacity.base.errors import InvalidInput, UnknownName
from capacity.model.quantization.gguf import GGUF_MIXES, gguf_scheme
from capacity.model.quantization.scheme import QuantizationScheme, StoredModel, uniform_scheme
from capacity.model.quantization.weight_format import find_format, named_formats

EXPERTS_INT8 = "experts-int8"
_GGUF_ALIASES = {"gguf": "gguf-q4_k_m", "q4-k-m": "gguf-q4_k_m"}


def known_quantizations() -> tuple[str, ...]:
    """Return the values of `--quantization`, without other spellings."""
    return (*dict.fromkeys(name.name for name, _ in named_formats().values()), EXPERTS_INT8, *GGUF_MIXES)


def quantization_spellings() -> dict[str, tuple[str, ...]]:
    """Return the other spellings of every name of `known_quantizations`."""
    others: dict[str, tuple[str, ...]] = dict.fromkeys(known_quantizations(), ())
    for named, _ in named_formats().values():
        others[named.name] = named.spellings[1:]
    for alias, name in _GGUF_ALIASES.items():
        others[name] = (*others[name], alias)
    return others


def vllm_checkpoint(quantization: str | None) -> str | None:
    """Return vLLM's value of `--quantization` for a checkpoint in this format, or None if vLLM detects it."""
    named, _ = named_formats().get(quantization or "", (None, None))
    return None if named is None or quantization in named.unflagged else named.vllm


def scheme_for(model: StoredModel, name: str | None = None) -> QuantizationScheme:
    """Return the scheme of `model` with `--quantization NAME`; None, `auto` and `none`: the scheme of its checkpoint.

    If the checkpoint already has this format (`mxfp4` for gpt-oss, `fp8` for DeepSeek-V3), its own scheme is returned.
    Otherwise the matrices of the layers have the format; embedding, LM head, routers and norms stay at 16 bit, as by
    default in vLLM and in quantization tools. Raises UnknownName.
    """
    key = "auto" if name is None else name.strip().lower().replace("_", "-")
    if key in ("auto", "none", "compressed-tensors", "quark"):
        return _own_scheme(model, key)
    if key in ("modelopt", "gguf") and model.checkpoint.method.startswith(key):
        return model.checkpoint
    mixes = {mix.replace("_", "-"): mix for mix in GGUF_MIXES}
    mix = _GGUF_ALIASES.get(key) or mixes.get(key) or mixes.get(f"gguf-{key}")
    if mix is not None:
        return gguf_scheme(model, mix)
    if key == EXPERTS_INT8:
        base = model.checkpoint.base
        return uniform_scheme(key, base, base=base, method=key, experts=find_format("int8-weight-only"))
    if key.startswith("kv-"):
        raise InvalidInput(f"{name} is a KV cache format: use --kv-cache-dtype {key.removeprefix('kv-')}")
    if key not in named_formats():
        aliases = [alias for alias, (named, _) in named_formats().items() if alias != named.name]
        raise UnknownName(
            "quantization", str(name), known_quantizations(), aliases=(*aliases, *_GGUF_ALIASES)
        )
    named, weight_format = named_formats()[key]
    if model.checkpoint.method in named.methods:
        return model.checkpoint
    base = model.checkpoint.base if weight_format.value_bits < 16 else weight_format
    method = "none" if weight_format is base else named.name
    return uniform_scheme(named.name, weight_format, base=base, method=method)


def _own_scheme(model: StoredModel, key: str) -> QuantizationScheme:
    if key in ("compressed-tensors", "quark") and not model.checkpoint.method.startswith(key):
        raise InvalidInput(
            f"quantization {key!r} means a checkpoint's own scheme, but this checkpoint has {model.checkpoint.name!r}: "
            "use a format instead (fp8, int4-g128, ...)"
        )
    return model.checkpoint
