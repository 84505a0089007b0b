"""The catalogue of ways to quantize: what the field uses, with sources, and a published checkpoint's size."""

from __future__ import annotations

from functools import lru_cache

import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.model.quantization import scheme_for, weight_bytes
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.techniques.quantization_methods import find_method, quantization_methods


@lru_cache(maxsize=8)
def pool(model: str = "llama-3.1-8b", gpu: str = "h100") -> ResolvedPool:
    return resolve(model, Pool(gpu=gpu))


def test_the_catalogue_has_what_the_field_uses() -> None:
    names = set(quantization_methods())
    assert {
        "rtn-int4",
        "absmax-int8",
        "zeropoint-int8",
        "smoothquant",
        "awq-int4",
        "nf4-dq",
        "llm-int8",
    } <= names
    assert {"gptq-int3", "gptq-int4", "gptq-int8", "squeezellm-4", "quip-sharp-2", "quip-sharp-4"} <= names
    assert {
        "fp8-tensor",
        "fp8-channel",
        "fp8-block",
        "mxfp4",
        "nvfp4",
        "kv-fp8",
        "kv-int8",
        "kv-int4",
    } <= names
    assert {f"gguf-{q}" for q in ("q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "q8_0")} <= names


def test_every_published_figure_names_model_source_and_date() -> None:
    figures = [q for method in quantization_methods().values() for q in method.quality]
    assert len(figures) > 25
    for quality in figures:
        assert quality.source
        assert quality.date
        assert quality.model
        assert (quality.baseline is None) == (quality.quantized is None)
        assert quality.text


def test_awq_of_llama_2_7b_is_as_large_as_its_published_checkpoint() -> None:
    """TheBloke/Llama-2-7B-AWQ: 3.89 GB. 6.48 B matrix weights at 4.156 bits, 2 x 131 M at 16, norms."""
    resolved = pool("llama-2-7b", "a100")
    stored = weight_bytes(resolved.model, find_method("awq-int4").scheme(resolved))
    matrices, vocabulary = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 2 * 32000 * 4096
    assert stored == pytest.approx(matrices * 4.15625 / 8 + vocabulary * 2 + 65 * 4096 * 2, rel=1e-6)
    assert stored == pytest.approx(3.89e9, rel=0.005)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(UnknownName, match="quantization method"):
        find_method("awq5")


def test_every_name_of_the_catalogue_is_one_of_quantization() -> None:
    """What `quantize` prints is what `-q` takes, and they mean the same bytes; KV formats say what they are called."""
    resolved = pool()
    for name, method in quantization_methods().items():
        if method.kind == "kv-cache":
            with pytest.raises(InvalidInput, match="use --kv-cache-dtype"):
                resolve("llama-3.1-8b", Pool(gpu="h100", quantization=name))
            continue
        own = scheme_for(resolved.model, name)
        assert weight_bytes(resolved.model, own) == weight_bytes(resolved.model, method.scheme(resolved)), (
            name
        )
