"""The GPUs to choose from and their prices."""

from __future__ import annotations

from dataclasses import dataclass

from capacity.base.errors import InvalidInput
from capacity.deployment import Cost
from capacity.hardware import load_profile, profile_names
from capacity.hardware.pricing import Price, price_of
from capacity.planning.space import Search


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """The GPUs to choose from, each with its price, or with why it has none although one is needed."""

    quotes: dict[str, Price | None]
    unpriced: dict[str, str]
    watts: dict[str, float]  # of one GPU at full use, all in

    @classmethod
    def of(cls, search: Search, cost: Cost, profiles: list[str]) -> Market:
        """Look GPUs and prices up. Raises UnknownName, InvalidInput."""
        needed = search.objective == "cost" or search.budget is not None
        quotes: dict[str, Price | None] = {}
        unpriced: dict[str, str] = {}
        for gpu in gpu_names(search, profiles):
            try:
                quotes[gpu] = price_of(gpu, cost)
            except InvalidInput as error:
                quotes[gpu] = None
                if needed:
                    unpriced[gpu] = str(error)
        if needed:
            unpriced |= _beside_markets(quotes)
            quotes |= dict.fromkeys(unpriced)
        watts = {gpu: load_profile(gpu, profiles).system_watts_per_gpu for gpu in quotes}
        return cls(quotes=quotes, unpriced=unpriced, watts=watts)


def _beside_markets(quotes: dict[str, Price | None]) -> dict[str, str]:
    """The GPUs whose price is no market price, and why, where others have one: they could win by it alone."""
    if all(quote is None or quote.thin for quote in quotes.values()):
        return {}
    return {
        gpu: quote.caution for gpu, quote in quotes.items() if quote is not None and quote.caution is not None
    }


def gpu_names(search: Search, profiles: list[str]) -> tuple[str, ...]:
    """The GPUs to choose from by their profiles' names. Raises UnknownName."""
    if [name.lower() for name in search.gpus] == ["all"]:
        return tuple(name for name in profile_names(profiles) if "@" not in name)
    return tuple(dict.fromkeys(load_profile(name, profiles).name for name in search.gpus))
