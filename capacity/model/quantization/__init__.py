"""How numbers are stored and multiplied: weight formats, KV cache formats, and a checkpoint's scheme.

A `WeightFormat` is how one matrix lies in memory; all of them stand in `weight_format`, each with its names. A
`QuantizationScheme` says which class of parameters is stored in which format, with exceptions by matrix and layer.
`scheme_for` resolves the names of `--quantization`; `parse_quantization_config` reads Hugging Face's (`methods`: one
reader a method).
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
    known_formats,
)
