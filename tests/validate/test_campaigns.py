"""Campaign files, and the order of their cases under a budget."""

from pathlib import Path

import pytest
from capacity_validate.campaigns import (
    campaign_names,
    load_campaign,
    order_bit_reversed,
    order_cases,
    parse_budget,
)
from capacity_validate.cases import make_case
from capacity_validate.kernels import MODULES
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName

HEADER = {"environment": {"device": "d", "torch": "t"}, "profile": "cpu"}


@pytest.mark.parametrize("name", campaign_names())
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_bundled_campaign_names_kernels_that_exist(name: str, kind: str) -> None:
    campaign = load_campaign(name)
    cases = order_cases(campaign.plan("cpu" if kind == "cpu" else "cuda"))
    assert cases
    assert len({case.id for case in cases}) == len(cases)
    assert {case.operator for case in cases} <= set(MODULES)


def test_campaigns_grow() -> None:
    sizes = [len(order_cases(load_campaign(name).cuda)) for name in ("quick", "standard", "full")]
    assert sizes == sorted(sizes)
    assert load_campaign("quick").budget_s <= 60
    assert load_campaign("standard").budget_s <= 300


def test_every_beginning_of_a_campaign_is_a_balanced_sample() -> None:
    """After a quarter of the cases every valuable group has been seen, at both ends of its range."""
    cases = order_cases(load_campaign("quick").cuda)
    beginning = cases[: len(cases) // 4]
    assert {"gemm", "decode_attention", "prefill_attention", "elementwise"} <= {c.operator for c in beginning}
    rows = [c["m"] for c in beginning if c.operator == "gemm"]
    assert min(rows) == 1
    assert max(rows) >= 4096


@given(st.integers(1, 200))
def test_spreading_out_loses_nothing(count: int) -> None:
    cases = [make_case("gemm", "bf16", m=i) for i in range(1, count + 1)]
    assert sorted(c["m"] for c in order_bit_reversed(cases)) == list(range(1, count + 1))


def test_a_campaign_file_is_held_to_its_schema(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="quick"):
        load_campaign("quik")
    path = tmp_path / "own.toml"
    path.write_text('name = "own"\ndescription = "x"\nextends = "quick"\nbudget_s = 5\n')
    assert load_campaign(str(path)).budget_s == 5
    path.write_text('name = "own"\nextends = "nowhere"\n')
    with pytest.raises(MalformedFile, match="not a bundled campaign"):
        load_campaign(str(path))
    path.write_text('name = "own"\ndescription = "x"\nbudget_s = 5\n[cpu]\n[cuda]\ntypo = 1\n')
    with pytest.raises(MalformedFile, match="typo"):
        load_campaign(str(path))


def test_budgets() -> None:
    assert [parse_budget(text) for text in ("60", "60s", "5m", "1h")] == [60, 60, 300, 3600]
    for text in ("", "m", "-5s", "nan", "inf", "5 parsecs"):
        with pytest.raises(InvalidInput, match="budget"):
            parse_budget(text)


def test_a_campaign_of_ones_own_with_an_unknown_operator_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.toml"
    kernels = '[[cpu.kernels]]\noperator = "gem"\nkernels = ["fp32"]\n'
    path.write_text(f'name = "own"\ndescription = "d"\nbudget_s = 1\n[cpu]\n{kernels}[cuda]\n')
    with pytest.raises(MalformedFile, match=r"no kernel for operator 'gem'; known: gemm"):
        load_campaign(str(path))
