"""A pool as a user writes it: what cannot be is one line."""

from __future__ import annotations

import pytest
from vllm_pools import pool

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("speculative_config", "{", "--speculative-config is {: it is not JSON"),
        ("speculative_config", "[1]", "must be a JSON object"),
        ("speculative_config", '{"method": "suffix"}', "method 'suffix' is not one of ngram"),
        (
            "speculative_config",
            '{"method": "ngram", "parallel_drafting": true}',
            "is not modelled; use one of",
        ),
        ("kv_transfer_config", '{"kv_role": "both"}', "kv_role 'both' is not one of kv_producer"),
        ("kv_transfer_config", '{"kv_role": ["a"]}', "kv_role ['a'] is not one of kv_producer"),
        ("kv_transfer_config", '{"kv_role": {}}', "kv_role {} is not one of kv_producer"),
        ("kv_transfer_config", "[1]", "must be a JSON object"),
        ("kv_transfer_config", '{"kv_connector": "OffloadingConnector"}', "--kv-offloading-size"),
        ("decode_context_parallel_size", 0, "greater than or equal to 1"),
        ("max_model_len", 0, "--max-model-len is 0: must be greater than or equal to 1"),
        ("max_model_len", "long", "--max-model-len is long"),
        ("kv_cache_memory_bytes", 0, "--kv-cache-memory-bytes is 0"),
        ("dtype", "int8", "--dtype is int8"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(field: str, value: object, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        pool(**{field: value})
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_gpus_of_an_engine_are_those_of_all_its_ranks() -> None:
    assert (
        pool(tensor_parallel_size=4, pipeline_parallel_size=3, data_parallel_size=2, replicas=7).num_gpus
        == 24
    )


@pytest.mark.parametrize("config", ['{"method": ["ngram"]}', '{"method": {}}'])
def test_a_method_that_is_no_text_is_refused_too(config: str) -> None:
    with pytest.raises(InvalidInput, match="is not one of ngram"):
        pool(speculative_config=config)


@pytest.mark.parametrize(
    ("text", "tokens"), [("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1M", 1 << 20), ("4096", 4096)]
)
def test_counts_may_be_written_as_vllm_reads_them(text: str, tokens: int) -> None:
    """vLLM 0.33 `human_readable_int`: small letters are powers of ten, capitals of two."""
    assert Pool(gpu="h100", max_model_len=text).max_model_len == tokens  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["k", "8kk", "1e3k", "-8k", "8 k", "0k", "9999999999999K", "nank"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="max_model_len"):
        capacity.fit("llama-3.1-8b", gpu="h100", max_model_len=text)
