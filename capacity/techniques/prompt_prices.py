"""Is a provider's prompt cache worth its price for this traffic? Writing costs more than plain input, reading less."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.spec import Spec

if TYPE_CHECKING:
    from capacity.techniques.prefix_cache import ReuseCurve

TABLE = Path(__file__).with_name("prompt_prices.toml")


class PromptCachePlan(Spec):
    """What cached prompt tokens cost, as multiples of the plain input price."""

    name: str
    write: float = Field(ge=0)
    read: float = Field(ge=0)
    ttl_s: float = Field(ge=0)
    minimum_tokens: int = Field(0, ge=0)  # shorter prompts are not cached
    source: str = "given"
    date: str = ""
    basis: Literal["datasheet", "measured", "fitted", "assumed"] = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheBill:
    """Input cost of a trace under a plan, in multiples of the bill without a cache (1.0)."""

    plan: str
    hit_fraction: float  # of prompt tokens, within the time to live
    relative_cost: float
    worth_it: bool
    break_even_hit_fraction: float | None  # None: no hit rate is enough
    break_even_reuses: float | None  # of one written prefix; None: no number is enough


@lru_cache(maxsize=1)
def prompt_cache_plans() -> dict[str, PromptCachePlan]:
    """All dated plans that come with the package. Raises MalformedFile."""
    return read_rows(TABLE, PromptCachePlan)


def find_plan(name: str) -> PromptCachePlan:
    """The plan of this name. Raises UnknownName."""
    plans = prompt_cache_plans()
    if name not in plans:
        raise UnknownName("prompt-cache plan", name, plans)
    return plans[name]


def break_even_reuses(write: float, read: float) -> float:
    """Reads of a written prefix after which caching it was worth it: (write - 1) / (1 - read).

    One write and n reads cost write + n·read, against 1 + n without a cache. By hand for Anthropic's published
    1.25 and 0.1: 0.25/0.9 = 0.28, so the first reuse pays; for its one-hour cache, 1/0.9 = 1.1: the second.
    Raises InvalidInput where reading is no cheaper than sending again.
    """
    if not 0 <= read < 1:
        raise InvalidInput(
            f"a cached read at {read} of the input price can never pay: must be from 0 to below 1"
        )
    return max(0.0, (write - 1) / (1 - read))


def relative_input_cost(hit_fraction: float, write: float, read: float) -> float:
    """Input bill over that without a cache: hits at `read`, all other tokens at `write`.

    Assumes every token that is not a hit is written, as automatic caching does; marking only what will be reused
    is cheaper.
    """
    if not 0 <= hit_fraction <= 1:
        raise InvalidInput(f"hit fraction {hit_fraction}: must be from 0 to 1")
    return hit_fraction * read + (1 - hit_fraction) * write


def break_even_hit_fraction(write: float, read: float) -> float | None:
    """Hit fraction at which the bill equals that without a cache: (write - 1) / (write - read); None: never."""
    if read >= 1 and write >= 1:
        return None
    return max(0.0, (write - 1) / (write - read))


def prompt_cache_bill(curve: ReuseCurve, plan: PromptCachePlan) -> PromptCacheBill:
    """The bill of a trace under `plan`: hits within its time to live, prompts below its minimum left out."""
    long_enough = curve.prompt_tokens >= plan.minimum_tokens
    kept = (curve.depth >= 0) & (curve.gap_s <= plan.ttl_s) & long_enough[curve.request]
    total = float(curve.prompt_tokens.sum())
    hit = float(curve.tokens[kept].sum()) / total
    uncached = float(curve.prompt_tokens[~long_enough].sum()) / total
    cached = 1 - uncached  # the share of tokens that takes part
    cost = uncached + (
        cached * relative_input_cost(hit / cached, plan.write, plan.read) if cached > 0 else 0.0
    )
    return PromptCacheBill(
        plan=plan.name,
        hit_fraction=hit,
        relative_cost=cost,
        worth_it=cost < 1,
        break_even_hit_fraction=break_even_hit_fraction(plan.write, plan.read),
        break_even_reuses=break_even_reuses(plan.write, plan.read) if plan.read < 1 else None,
    )
