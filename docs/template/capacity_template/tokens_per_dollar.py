"""The verb `tokens-per-dollar`. Its keywords are those of a pool, the traffic and the price."""

from dataclasses import dataclass
from typing import Any, ClassVar

import capacity
from capacity.base.keywords import document_options
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensPerDollar(AnswerRecord):
    """Output tokens for one dollar of GPU time, and the price of a GPU-hour in $."""

    SCHEMA: ClassVar[str] = "capacity/tokens-per-dollar/v1"

    model: str
    gpu: str
    tokens_per_usd: float
    usd_per_gpu_hour: float


@document_options(Pool, Traffic, Cost)
def tokens_per_dollar(model: str | DeploymentFile, **options: Any) -> TokensPerDollar:
    """Return output tokens per dollar. Raises InvalidInput without a price."""
    answer = capacity.estimate(model, **options)
    if answer.cost is None:
        raise capacity.InvalidInput("there is no price: give --price-tier on-demand, or --price 2.50")
    seconds_per_usd = 3600 / (answer.cost.usd_per_gpu_hour * answer.gpu.count)
    return TokensPerDollar(
        model=str(answer.model.name),
        gpu=answer.gpu.name,
        tokens_per_usd=answer.output_tokens_per_s.value * seconds_per_usd,
        usd_per_gpu_hour=answer.cost.usd_per_gpu_hour,
    )
