"""Latent attention: what a decode reads of it, sparse or dense."""

from __future__ import annotations

import pytest
from step_models import steps

from capacity.step import decode_shape


def test_sparse_attention_reads_no_more_than_its_top_k() -> None:
    shapes = [decode_shape(8, context) for context in (4000, 40_000)]
    dense, sparse = (
        [
            {op.name: op.bytes for op in steps(model).step_cost(s).operators}["attention decode"]
            for s in shapes
        ]
        for model in ("deepseek-v3", "deepseek-v3.2")
    )
    assert dense[1] == pytest.approx(10 * dense[0], rel=0.1)  # and the queries, which do not grow
    assert sparse[1] == sparse[0]


def test_an_indexer_has_products_of_its_own_whole_on_every_rank() -> None:
    shape = decode_shape(8, 4000)
    dense, sparse = (
        {op.name: op for op in steps(model, tp=8).step_cost(shape).operators}
        for model in ("deepseek-v3", "deepseek-v3.2")
    )
    added = {name: op for name, op in sparse.items() if name not in dense}
    assert set(added) == {"indexer q", "indexer k", "indexer norms, rope, quantization", "sparse indexer"}
    assert added["indexer q"].flops == 61 * 2 * 8 * 1536 * 64 * 128  # of all heads, whatever the ranks
    assert added["indexer k"].flops == 61 * 2 * 8 * 7168 * (128 + 64)
