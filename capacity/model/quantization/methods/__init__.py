"""Readers of quantization configs, one per `quant_method`; each returns a `Recipe`.

Sources of the keys of each method: transformers 5.23 `utils/quantization_config.py`, compressed-tensors 0.12
`quant_args.py`, vLLM 0.33 `model_executor/layers/quantization/`, read 2026-11.
"""

from collections.abc import Callable

from capacity.base.fields import Fields
from capacity.model.quantization.methods.by_module import compressed_tensors, modelopt, quark
from capacity.model.quantization.methods.plain import awq, bitsandbytes, fbgemm_fp8, fp8, gptq, mxfp4
from capacity.model.quantization.methods.recipe import Recipe

METHODS: dict[str, Callable[[Fields], Recipe]] = {
    "awq": awq,
    "gptq": gptq,
    "auto-round": gptq,
    "fp8": fp8,
    "fbgemm-fp8": fbgemm_fp8,
    "compressed-tensors": compressed_tensors,
    "mxfp4": mxfp4,
    "modelopt": modelopt,
    "modelopt-fp4": modelopt,
    "modelopt-mixed": modelopt,
    "quark": quark,
    "bitsandbytes": bitsandbytes,
}
