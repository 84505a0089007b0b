"""Cost and billing: prices and what else a bill is about, as a user writes them."""

from typing import Literal

from capacity.base.spec import Spec
from capacity.deployment.field_flags import Need, flag

PriceTier = Literal["on-demand", "reserved", "reserved-1y", "reserved-3y", "spot", "owned"]


class Cost(Spec):
    """What a GPU-hour costs. No default: without a tier or a price there is no cost."""

    price_tier: PriceTier | None = flag(
        None,
        "Price tier of the dated table: on-demand, reserved (of any term), reserved-1y, reserved-3y, spot, owned.",
        read_by="price",
    )
    price_provider: str | None = flag(
        None, "Provider in the price table; default: the median of the tier.", read_by="price"
    )
    price_instance: str | None = flag(
        None, "Rentable instance (product) in the price table, such as p5.48xlarge.", read_by="price"
    )
    price_file: str | None = flag(
        None,
        "Price table of your own (CSV in the form of capacity/hardware/prices.csv), in place of the bundled one.",
        read_by="price",
    )
    price: str | None = flag(None, "$ per GPU-hour: 2.50, or h100=2.50.", read_by="price")


class Billing(Spec):
    """What else a bill may ask: replicas, users, an API's prices, spot, a batch job. None: not asked."""

    replicas: int = flag(1, "Engines of this kind.", ge=1, le=1_000_000)
    requests_per_user_hour: float | None = flag(None, "Requests of one user in an hour.", gt=0)
    co2_g_per_kwh: float | None = flag(None, "Carbon intensity of the electricity.", ge=0)
    api: str | None = flag(
        None, "Compare with providers of the dated API price list: DeepInfra,SambaNova, or all."
    )
    api_price_file: str | None = flag(
        None,
        "API price list of your own (CSV in the form of capacity/planning/bills/hosted_prices.csv), "
        "in place of the bundled one.",
        needs=Need("api"),
    )
    api_input_price: float | None = flag(None, "An API's $ per 1M input tokens.", ge=0)
    api_output_price: float | None = flag(None, "An API's $ per 1M output tokens.", ge=0)
    api_cached_fraction: float = flag(
        0.0,
        "Share of input tokens that the API's prompt cache serves.",
        ge=0,
        le=1,
        needs=(Need("api"), Need("api_input_price"), Need("api_output_price")),
    )
    api_cached_multiple: float = flag(
        0.1,
        "Price of a cached input token over that of a plain one, of --api-input-price.",
        ge=0,
        le=1,
        needs=Need("api_cached_fraction"),
    )
    api_cache_write_multiple: float = flag(
        1.0,
        "The same of an input token that is written to the cache; where any are cached.",
        ge=0,
        needs=Need("api_cached_fraction"),
    )
    interruptions_per_hour: float | None = flag(
        None, "Spot: how often an instance is taken away.", ge=0, le=3600
    )
    restart_s: float = flag(
        600.0,
        "Spot: until a replacement serves again, loading included.",
        ge=0,
        needs=Need("interruptions_per_hour"),
    )
    documents: int | None = flag(None, "A batch job: requests in all.", ge=1)
    deadline_hours: float | None = flag(
        None, "A batch job: hours until it must be done.", gt=0, needs=Need("documents")
    )
    batch_api: str | None = flag(
        None,
        "A batch job: also by batch APIs and off-peak prices of the dated discount list, by commas "
        "(openai,anthropic,google, ...), or all; of --api, or of --api-input-price.",
        needs=Need("documents"),
    )
    idle_hours_per_day: float | None = flag(
        None,
        "A batch job: also in hours of each day in which the replicas, paid for in any case, stand idle.",
        gt=0,
        le=24,
        needs=Need("documents"),
    )
