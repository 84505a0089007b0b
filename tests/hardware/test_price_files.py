"""Price files: one's own in place of the bundled table, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from capacity import plan
from capacity.base.errors import InvalidInput, MalformedFile
from capacity.deployment import Cost
from capacity.hardware.pricing import find_price_for_cost as price_of_cost
from capacity.hardware.pricing import read_prices


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("h100-sxm-80gb,P,X,hourly,1,1,2026,s", "tier"),
        ("h100-sxm-80gb,P,X,spot,cheap,1,2026,s", "line 2"),
        ("h100-sxm-80gb,P,X,spot,-1,1,2026,s", "out of range"),
        ("h100-sxm-80gb,P,X,spot,1,0,2026,s", "out of range"),
        ("h100-sxm-80gb,P,X,spot,1,1,,s", "date is missing"),
    ],
)
def test_a_bad_table_is_refused(row: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("gpu,provider,product,tier,usd_per_gpu_hour,gpus_per_instance,date,source\n" + row + "\n")
    with pytest.raises(MalformedFile, match=problem):
        read_prices(file)


OWN = (
    "gpu,provider,product,tier,usd_per_gpu_hour,gpus_per_instance,date,source\n"
    "H100,Acme,node-8,reserved,1.95,8,2026-11-01,contract 17\n"
    "h200,Acme,node-8,reserved,2.95,8,2026-11-01,contract 17\n"
    "h200,Acme,spare,spot,0.95,1,2026-11-01,contract 17\n"
    "toy-1gb,Acme,toy,on-demand,0.10,1,2026-11-01,contract 17\n"
)


def test_a_price_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(OWN)
    only = price_of_cost("h100", Cost(price_file=str(file)))
    assert only is not None
    assert (only.tier, only.usd_per_gpu_hour, only.gpus_per_instance) == ("reserved", 1.95, 8)
    assert "Acme node-8, in instances of 8 GPUs, 2026-11-01 (contract 17)" in only.description
    with pytest.raises(InvalidInput, match=r"several tiers \(reserved, spot\); choose one with --price-tier"):
        price_of_cost("h200", Cost(price_file=str(file)))
    spot = price_of_cost("h200", Cost(price_file=str(file), price_tier="spot"))
    assert spot is not None
    assert spot.product == "spare"
    with pytest.raises(InvalidInput, match="no price of b200"):
        price_of_cost("b200", Cost(price_file=str(file)))
    with pytest.raises(InvalidInput, match="no spot price of h100"):
        price_of_cost("h100", Cost(price_file=str(file), price_tier="spot"))
    toy = price_of_cost("toy-1gb", Cost(price_file=str(file)))
    assert toy is not None
    assert toy.usd_per_gpu_hour == 0.10


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "column gpu is missing"), ("gpu,provider\n", "column product"), (OWN[:73], "contains no price")],
)
def test_a_price_file_that_is_none(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(text)
    with pytest.raises(MalformedFile, match=problem):
        read_prices(file)
    with pytest.raises(MalformedFile, match="cannot be read"):
        read_prices(tmp_path / "none.csv")


def test_a_plan_takes_the_price_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(OWN)
    found = plan(
        "llama-3.1-8b", gpus="h100", quantizations="default", kv_cache_dtypes="auto", tensor_parallel_sizes="1",
        max_num_batched_tokens="default", replications=1, price_file=str(file), input_len=200, output_len=20,
        num_prompts=60, request_rate=5.0, slo="ttft:p95:500ms",
    )  # fmt: skip
    assert found.best is not None
    assert found.best.cost is not None
    assert found.best.billed_gpus == 8
    assert found.best.cost.usd_per_hour == pytest.approx(8 * 1.95)
    assert "Acme node-8" in found.prices[0]
