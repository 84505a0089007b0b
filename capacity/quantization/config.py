"""`quantization_config` of a checkpoint (placeholder until every kind is read)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capacity.errors import MalformedFile
from capacity.quantization.formats import find_format
from capacity.quantization.scheme import QuantizationScheme, Stored, uniform_scheme


def parse_quantization_config(config: Mapping[str, Any], *, model: Stored, origin: str) -> QuantizationScheme:
    """The scheme of a checkpoint."""
    base = model.checkpoint.base
    match config.get("quant_method"):
        case "fp8" if config.get("weight_block_size"):
            return uniform_scheme("fp8-block", find_format("fp8-block"), base=base, method="fp8")
        case "mxfp4":
            return uniform_scheme("mxfp4", base, experts=find_format("mxfp4"), base=base, method="mxfp4")
        case other:
            raise MalformedFile(origin, f"{other!r} is not known", where="quant_method")
