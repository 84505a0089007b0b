"""The core's gaps are Python's, number by number."""

from __future__ import annotations

import numpy as np
import pytest
from core_alone import CoreAlone
from hypothesis import given
from hypothesis import strategies as st

from capacity.simulator import gap_counter
from capacity.simulator.gap_counter import GapCounter

EXACT_GAPS = 1 << 16


@pytest.fixture(scope="module", autouse=True)
def exact_gaps() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_counter, "EXACT_GAPS", EXACT_GAPS)
        yield


def counted(entries: np.ndarray) -> GapCounter:
    gaps = GapCounter()
    for gap_ps, count in entries.tolist():
        gaps.add(gap_ps, count)
    return gaps


def assert_equal(core: GapCounter, python: GapCounter) -> None:
    assert (core.count, core.total_ps) == (python.count, python.total_ps)
    assert core.distribution_ms() == python.distribution_ms()
    assert core.resolution == python.resolution
    if python.count:
        for found, expected in zip(core._multiset(), python._multiset(), strict=True):
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(core.batches().histograms(), python.batches().histograms())
    assert core.batches()._size == python.batches()._size


edges = st.one_of(
    st.integers(0, 10**12),
    st.integers(0, 5000),
    st.integers(0, 62).flatmap(lambda bits: st.sampled_from([2**bits - 1, 2**bits, min(2**bits + 1, 2**62)])),
)


@given(st.lists(st.tuples(edges, st.integers(1, 3000)), max_size=300))
def test_a_few_gaps(core_alone: CoreAlone, entries: list[tuple[int, int]]) -> None:
    """At the edges of bins too, and with entries that are wider than many batches."""
    rows = np.array(entries, dtype=np.int64).reshape(-1, 2)
    assert_equal(core_alone.gaps(rows), counted(rows))


@pytest.mark.parametrize("distinct", [EXACT_GAPS - 1, EXACT_GAPS, EXACT_GAPS + 1, 2 * EXACT_GAPS])
def test_around_the_switch_to_bins(core_alone: CoreAlone, distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    gaps = np.concatenate([np.arange(distinct) * 1_000_003, rng.integers(0, distinct, 20_000) * 1_000_003])
    rows = np.stack([rng.permutation(gaps), rng.integers(1, 300, len(gaps))], axis=1)
    core = core_alone.gaps(rows)
    assert (core.resolution > 0) == (distinct > EXACT_GAPS)
    assert_equal(core, counted(rows))


def test_many_merges_of_a_long_run(core_alone: CoreAlone) -> None:
    rng = np.random.default_rng(7)
    rows = np.stack([rng.lognormal(23, 2, 400_000).astype(np.int64), rng.integers(1, 256, 400_000)], axis=1)
    core = core_alone.gaps(rows)
    assert core.batches()._size > 1 << 20
    assert_equal(core, counted(rows))


def test_a_sum_of_more_than_64_bits(core_alone: CoreAlone) -> None:
    gaps = core_alone.gaps(np.array([[2**62, 2**40], [2**62 - 1, 3]]))
    assert gaps.total_ps == 2**102 + 3 * (2**62 - 1)


@pytest.mark.parametrize("entry", [(-1, 1), (1, 0), (1, -1)])
def test_what_cannot_be_is_refused(core_alone: CoreAlone, entry: tuple[int, int]) -> None:
    with pytest.raises(AssertionError):
        core_alone.gaps(np.array([entry]))
