"""Published losses of quality."""

from __future__ import annotations

import pytest
from quick_plans import quick

from capacity.base.errors import InvalidInput
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.planning.quality import quality_change, quality_table


def test_quality_is_a_constraint_with_sources() -> None:
    table = quality_table()
    assert all(
        row.source and 0 <= row.typical_loss_fraction <= row.worst_loss_fraction < 0.15
        for row in table.values()
    )  # type: ignore[operator]
    model = load_model("llama-3.1-8b")
    both = quality_change(scheme_for(model, "fp8"), model.checkpoint, "fp8")
    assert both.worst_loss_fraction == pytest.approx(
        table["fp8"].worst_loss_fraction + table["kv-fp8"].worst_loss_fraction  # type: ignore[operator]
    )
    assert quality_change(model.checkpoint, model.checkpoint, "auto").worst_loss_fraction == 0
    unknown = quality_change(scheme_for(model, "nf4"), model.checkpoint, "auto")
    assert unknown.worst_loss_fraction is None
    assert not unknown.within(0.5)
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
    lost = quality_change(model.checkpoint, model.checkpoint, "auto", "snapkv")
    assert lost.worst_loss_fraction is None
    assert not lost.within(0.1)
    assert "snapkv" in lost.what
