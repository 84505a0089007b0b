"""Input about prices and other items of a bill."""

from typing import Literal

from capacity.deployment.field_flags import FlagSpec

PriceTier = Literal["on-demand", "reserved", "reserved-1y", "reserved-3y", "spot", "owned"]


class Cost(FlagSpec):
    """Settings that determine the price of a GPU-hour. Without a price tier or a price, no cost is computed."""

    price_tier: PriceTier | None = None
    price_mix: str | None = None
    price_provider: str | None = None
    price_instance: str | None = None
    price_file: str | None = None
    price: str | None = None
    owned_cost: str | None = None

    @property
    def is_given(self) -> bool:
        """Return whether the fields specify a price."""
        sources = (self.price_tier, self.price_mix, self.price_file, self.price, self.owned_cost)
        return any(source is not None for source in sources)


class Billing(FlagSpec):
    """Input for optional parts of a bill, such as users, API prices and spot GPUs; parts without input are omitted."""

    replicas: int = 1
    requests_per_user_hour: float | None = None
    co2_g_per_kwh: float | None = None
    api: str | None = None
    api_price_file: str | None = None
    api_input_price: float | None = None
    api_output_price: float | None = None
    api_cached_fraction: float = 0.0
    api_cached_multiple: float = 0.1
    api_cache_write_multiple: float = 1.0
    interruptions_per_hour: float | None = None
    restart_s: float = 600.0
    documents: int | None = None
    deadline_hours: float | None = None
    batch_api: str | None = None
    idle_hours_per_day: float | None = None
    growth: float | None = None
    months: int = 12
