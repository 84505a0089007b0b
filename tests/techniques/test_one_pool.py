"""What the questions about one pool share: the price that they count with, and a deployment in place of keywords."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import capacity
from capacity.answers.fit import gpu_summary
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Cost, DeploymentFile, Pool
from capacity.pool.resolve import resolve
from capacity.techniques.one_pool import pool_notes, require_one_rank

PRICED: dict[str, dict[str, Any]] = {
    "quantize": {"methods": ("bf16",)},
    "scale": {"most_gpus": 1},
}  # questions that have a price, kept small
TABLE = """gpu,provider,product,tier,usd_per_gpu_hour,gpus_per_instance,date,source
h100-sxm-80gb,Own,small,on-demand,2.00,1,2026-11-01,contract
h100-sxm-80gb,Own,large,on-demand,6.00,8,2026-11-01,contract
"""


def usd(question: str, **cost: str) -> float:
    """$ per million tokens of the only row."""
    answer = getattr(capacity, question)("llama-3.1-8b", gpu="h100", **PRICED[question], **cost)
    return float(answer.rows[0].usd_per_million_tokens)


@pytest.mark.parametrize("question", PRICED)
def test_the_price_is_of_the_instance_and_file_that_were_named(question: str, tmp_path: Path) -> None:
    """Cost per token is the price times a GPU-hour's share: $6 costs three times $2, whatever names the price, and
    eight times that where one GPU is rented as an instance of eight."""
    file = tmp_path / "prices.csv"
    file.write_text(TABLE)
    small = usd(question, price_file=str(file), price_instance="small")
    assert small == pytest.approx(usd(question, price="2.00"))
    assert usd(question, price_file=str(file), price_instance="large") == pytest.approx(8 * 3 * small)
    assert usd(question, price_tier="on-demand", price_instance="p5.48xlarge") != usd(
        question, price_tier="on-demand"
    )
    with pytest.raises(UnknownName, match="p4d"):
        usd(question, price_tier="on-demand", price_instance="p4d")


def test_a_deployment_says_what_keywords_say() -> None:
    deployment = DeploymentFile(
        schema="capacity/deployment/v1",
        model="llama-3.1-8b",
        pools=(Pool(gpu="h100"),),
        cost=Cost(price="2"),
    )
    asked = capacity.quantize("llama-3.1-8b", gpu="h100", price="2", methods=["fp8-tensor"])
    assert capacity.quantize(deployment, methods=["fp8-tensor"]) == asked
    with pytest.raises(InvalidInput, match="'gpu' cannot be combined with a deployment file"):
        capacity.quantize(deployment, gpu="h200")


def test_data_parallel_ranks_are_refused_by_the_verbs_name() -> None:
    alone = Pool(gpu="h100")
    assert require_one_rank(alone, "quantize") is alone
    with pytest.raises(InvalidInput, match="`quantize` describes one data-parallel rank"):
        require_one_rank(Pool(gpu="h100", data_parallel_size=2), "quantize")


def test_a_pool_is_named_with_all_its_gpus_and_notes() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100", tensor_parallel_size=2, pipeline_parallel_size=2))
    gpus = gpu_summary(resolved)
    assert (gpus.name, gpus.count) == ("h100-sxm-80gb", 4)
    assert set(resolved.step_model.notes) <= set(pool_notes(resolved))
