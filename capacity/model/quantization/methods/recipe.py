"""A checkpoint's `quantization_config` in the same form for all methods, and functions that readers share."""

import re
from dataclasses import dataclass, replace

from capacity.base.fields import Fields
from capacity.model.quantization.modules import ModulePatterns
from capacity.model.quantization.weight_format import WeightFormat, find_format


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A parsed quantization config: format of most matrices, formats by module, and unquantized modules."""

    method: str
    default: WeightFormat
    ignored: ModulePatterns
    by_module: tuple[tuple[ModulePatterns, WeightFormat], ...] = ()
    experts_only: bool = False
    only_listed: bool = False  # `by_module` lists all quantized modules; `default` is not used
    lm_head: bool = False
    kv_cache_dtype: str | None = None


def module_names(fields: Fields, *keys: str) -> ModulePatterns:
    """Return the module names that the fields `keys` list; raises MalformedFile for a bad regular expression."""
    listed: list[str] = []
    for key in keys:
        for name in fields.items(key) or []:
            if not isinstance(name, str):
                raise fields.problem(key, f"{name!r} is not a module name")
            listed.append(name)
    return make_patterns(fields, keys[0], listed)


def make_patterns(fields: Fields, key: str, names: list[str], *, lists: int = 1) -> ModulePatterns:
    try:
        return ModulePatterns(names, lists=lists)
    except re.error as error:
        raise fields.problem(key, f"unsupported regular expression ({error})") from None


def read_group_size(fields: Fields, *keys: str, default: int = 128) -> int:
    """Return the group size; -1: one scale per output row. Raises MalformedFile for 0."""
    size = fields.count(*keys, default=default, minimum=-1, maximum=1 << 20)
    if size == 0:
        key = next(key for key in keys if fields.has(key))
        raise fields.problem(key, "0 is not a group size: use at least 1, or -1 for one scale per output")
    return size


def fp8_block_format(fields: Fields, key: str) -> WeightFormat:
    """Return FP8 with a scale per block of the size [rows, columns] in field `key`; if absent, a scale per matrix."""
    block = fields.items(key)
    if block is None:
        return find_format("fp8")
    if len(block) != 2 or not all(
        isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 1 << 16 for n in block
    ):
        raise fields.problem(key, f"{block!r} is not two whole numbers")
    if block == [128, 128]:
        return find_format("fp8-block")
    name = f"fp8-block-{block[0]}x{block[1]}"
    return replace(find_format("fp8-block"), name=name, block_rows=block[0], block_columns=block[1])


def float4_format(fields: Fields, group_size: int) -> WeightFormat:
    if group_size not in (16, 32):
        raise fields.problem("group_size", f"{group_size} is neither 16 (NVFP4) nor 32 (MXFP4)")
    return find_format("nvfp4" if group_size == 16 else "mxfp4")


def make_weight_only(weight_format: WeightFormat) -> WeightFormat:
    """Return a format with the same bytes whose weights are dequantized to 16 bit before the matrix multiplication."""
    kernel = weight_format.fallback_kernel or weight_format.kernel
    return replace(
        weight_format,
        name=f"{weight_format.name}-w{weight_format.value_bits:.0f}a16",
        compute_dtype="bf16",
        kernel=kernel,
        activation="16-bit",
        min_compute_capability=7.5,
        fallback_kernel=None,
    )


def method_suffix(weight_format: WeightFormat) -> str:
    return weight_format.name.split("-")[0]


def kv_cache_scheme(fields: Fields) -> str | None:
    """Return the KV cache format in `kv_cache_scheme`, an object or a name ("FP8"); None if there is none."""
    named = fields.values.get("kv_cache_scheme")
    if isinstance(named, str) and named.lower() in ("fp8", "int8"):
        return named.lower()
    scheme = fields.section("kv_cache_scheme")
    if scheme is None or not scheme.values:
        return None
    bits, kind = scheme.count("num_bits", default=8), scheme.text("type", default="float")
    if (kind, bits) not in (("float", 8), ("int", 8), ("int", 4)):
        raise scheme.problem("num_bits", f"{bits} bits of type {kind!r} are not supported for the KV cache")
    return "fp8" if kind == "float" else f"int{bits}"
