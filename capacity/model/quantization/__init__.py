"""Storage and arithmetic of numbers: weight formats, KV cache formats, and quantization schemes of checkpoints.

A `WeightFormat` is the layout of one matrix in memory; `weight_format` has all formats and their names. A
`QuantizationScheme` maps each kind of parameters (attention, experts, embedding, ...) to a format, and lists single
matrices in other formats. `scheme_for`
resolves the names of `--quantization`; `parse_quantization_config` reads Hugging Face's configs (`methods` has one
reader per method).
"""

from capacity.model.parameter_part import PartKind
from capacity.model.quantization.config import parse_quantization_config
from capacity.model.quantization.kv_cache import KvCacheFormat, find_kv_cache_format, kv_cache_format_names
from capacity.model.quantization.names import (
    known_quantizations,
    quantization_spellings,
    scheme_for,
    vllm_checkpoint,
)
from capacity.model.quantization.scheme import (
    FormatException,
    QuantizationScheme,
    bits_per_weight,
    uniform_scheme,
    weight_bytes,
)
from capacity.model.quantization.weight_format import (
    ComputeDtype,
    Execution,
    FormatFamily,
    Kernel,
    QuantizationName,
    WeightFormat,
    find_format,
    grouped_int_format,
    weight_formats,
)
