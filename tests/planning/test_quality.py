"""Published losses of quality."""

from __future__ import annotations

import pytest
from quick_plans import quick

from capacity.base.errors import InvalidInput
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.planning.quality import METHODS, published_quality, quality_change


def test_quality_is_a_constraint_with_sources() -> None:
    model = load_model("llama-3.1-8b")
    params = model.total_params
    table = {family: published_quality(family, params) for family in METHODS}
    assert all(
        row.source and 0 <= row.typical_loss_fraction <= row.worst_loss_fraction < 0.15
        for row in table.values()
    )  # type: ignore[operator]
    both = quality_change(scheme_for(model, "fp8"), model.checkpoint, "fp8", params=params)
    assert both.worst_loss_fraction == pytest.approx(
        table["fp8"].worst_loss_fraction + table["kv-fp8"].worst_loss_fraction  # type: ignore[operator]
    )
    assert quality_change(model.checkpoint, model.checkpoint, "auto", params=params).worst_loss_fraction == 0
    unknown = quality_change(scheme_for(model, "nf4"), model.checkpoint, "auto", params=params)
    assert unknown.worst_loss_fraction is None
    assert not unknown.is_within(0.5)
    answer = quick(
        quantizations=(None, "fp8", "int4"), kv_cache_dtypes=("auto", "fp8"), max_quality_loss=0.01
    )
    assert {ranked.candidate.pool.quantization for ranked in answer.ranked} <= {None, "fp8"}
    assert {ranked.candidate.pool.kv_cache_dtype for ranked in answer.ranked} == {"auto"}
    narrow = [r for r in answer.rejected if "fp8" in r.pool.kv_cache_dtype]
    assert {r.kind for r in narrow} <= {"quality", "costlier"}
    only = quick(kv_cache_dtypes=("fp8",), max_quality_loss=0.1)
    assert only.best is not None
    with pytest.raises(InvalidInput, match="quality"):
        quick(kv_cache_dtypes=("fp8",), max_quality_loss=0.01)


def test_what_eviction_loses_is_unknown_and_never_free() -> None:
    model = load_model("llama-3.1-8b")
    lost = quality_change(model.checkpoint, model.checkpoint, "auto", "snapkv", params=model.total_params)
    assert lost.worst_loss_fraction is None
    assert not lost.is_within(0.1)
    assert "snapkv" in lost.what


def test_published_quality_of_int4_is_that_of_models_of_similar_size() -> None:
    """A 7B lost 4.2 % of its scores, a 70B 0.2 %; a summary of several sizes (1 to 3 %) counts for both."""
    small, large = (published_quality("int4", params) for params in (8e9, 70e9))
    assert small is not None
    assert large is not None
    assert small.worst_loss_fraction == pytest.approx(0.042, abs=0.001)
    assert large.worst_loss_fraction == pytest.approx(0.03)
    assert large.typical_loss_fraction < small.typical_loss_fraction  # type: ignore[operator]


def test_published_quality_falls_back_to_all_sizes_where_none_is_similar() -> None:
    fp8 = published_quality("fp8", 1e9)
    assert fp8 == published_quality("fp8", 70e9)
    assert published_quality("nf4", 8e9) is None
