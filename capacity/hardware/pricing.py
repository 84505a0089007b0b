"""GPU prices: a dated table with sources, and the selection of a price per GPU-hour.

There is no default price: the user gives a tier or a price. Prices of one chip differ by a factor of 4 to 5 between
providers, so a price states the number of offers in its median, their range and the dates on which they were read. A
price of a tier with too few providers has a warning. Input and output tokens share the bill in proportion to the GPU
time of prefill and decode, not to the numbers of tokens.
"""

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar, get_args

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.external_files import read_text
from capacity.base.money import usd_text
from capacity.base.untrusted_text import printable
from capacity.deployment.cost import Cost, PriceTier
from capacity.hardware import load_profile
from capacity.hardware.owned_cost import parse_owned_cost
from capacity.hardware.price_texts import parse_price_mix, parse_prices, price_currencies

Row = Mapping[str, str | None]
Priced = TypeVar("Priced")


def read_price_rows(
    path: str | Path, columns: Sequence[str], price: Callable[[Row, str], Priced]
) -> tuple[Priced, ...]:
    """Return `price(row, "line N")` for each row of a CSV file. Raises MalformedFile if one of `columns` is missing."""
    text = read_text(path, "a list of prices")
    try:
        lines = csv.DictReader([printable(line) for line in text.splitlines()], strict=True)
        missing = [column for column in columns if column not in (lines.fieldnames or ())]
        if missing:
            raise MalformedFile(
                path, f"column {missing[0]} is missing; required columns: {','.join(columns)}"
            )
        prices = tuple(price(row, f"line {lines.line_num}") for row in lines)
    except csv.Error as error:
        raise MalformedFile(path, f"cannot be read: {error}") from None
    if not prices:
        raise MalformedFile(path, "contains no price")
    return prices


TIERS: tuple[PriceTier, ...] = get_args(PriceTier)
MIN_PROVIDERS = 3  # with fewer, the median of a tier is not a market price
HOURS_PER_MONTH = 730
SECONDS_PER_HOUR = 3600
TABLE = Path(__file__).with_name("prices.csv")
USER = "user"  # provider of a price that the user gives
COLUMNS = ("gpu", "provider", "product", "tier", "usd_per_gpu_hour", "gpus_per_instance", "date", "source")


def price_text(usd: float) -> str:
    """Return a price with two decimals, or more if it has more: "$3.90", "$0.085"."""
    return usd_text(usd, ",.2f" if round(usd, 2) == usd else ",.6g")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one product, or median price of a tier, in $ per GPU-hour.

    `gpus_per_instance`: GPUs of the smallest instance that can be rented. `tier`: "given" for the price of `--price`.
    `market`: the offers in a tier's median; None for one product.
    """

    gpu: str
    provider: str
    product: str
    tier: PriceTier | Literal["given"]
    usd_per_gpu_hour: float
    gpus_per_instance: int
    date: str
    source: str
    market: "Market | None" = None

    @property
    def is_given(self) -> bool:
        """Return whether the user gave the price (`--price`)."""
        return self.provider == USER

    @property
    def description(self) -> str:
        """Describe the price: provider, product, instance size, date and source, or the offers in the median."""
        if self.is_given:
            return self.source
        if self.market is not None:
            return self.market.description
        sold = "" if self.gpus_per_instance == 1 else f", in instances of {self.gpus_per_instance} GPUs"
        return f"{self.provider} {self.product}{sold}, {self.date} ({self.source})"

    @property
    def quote(self) -> str:
        """Return the price, its description and its warning, if any, in one line."""
        quote = (
            f"{self.gpu}: {price_text(self.usd_per_gpu_hour)} per GPU-hour, {self.tier}, {self.description}"
        )
        return quote if self.caution is None else f"{quote}; {self.caution}"

    @property
    def has_few_providers(self) -> bool:
        """Return whether this is the median price of a tier with fewer than `MIN_PROVIDERS` providers."""
        market = self.market
        return market is not None and not market.picked and len(market.providers) < MIN_PROVIDERS

    @property
    def caution(self) -> str | None:
        """Return the warning that the price comes from too few providers, or None."""
        if not self.has_few_providers or self.market is None:
            return None
        return (
            f"no market price of {self.gpu} ({self.tier}): offers are known only from "
            f"{' and '.join(self.market.providers)}. Set --price, or choose a provider with --price-provider."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Offers in a tier's median price; `picked`: whether the user chose the offers by provider or price file."""

    offers: int
    providers: tuple[str, ...]
    low: Price
    high: Price
    first_date: str
    last_date: str
    picked: bool

    @property
    def description(self) -> str:
        """Describe the offers, their range and their dates in one line."""
        if self.offers == 1:
            return f"the only known offer: {self.low.description}"
        middle = "mean of two offers" if self.offers == 2 else f"median of {self.offers} offers"
        firms = len(self.providers)
        read = " to ".join(dict.fromkeys((self.first_date, self.last_date)))
        low, high = (
            f"{usd_text(offer.usd_per_gpu_hour, '.2f')} ({offer.provider})" for offer in (self.low, self.high)
        )
        return f"{middle} from {firms} provider{'s' * (firms > 1)}, {low} to {high}, read {read}"


@lru_cache(maxsize=1)
def price_table() -> tuple[Price, ...]:
    """Return all bundled prices."""
    return read_prices(TABLE)


def read_prices(path: str | Path) -> tuple[Price, ...]:
    """Read a price table in the format of `capacity/hardware/prices.csv`. Raises MalformedFile with the line."""
    return read_price_rows(path, COLUMNS, lambda row, where: _parse_price_row(row, path, where))


def _parse_price_row(row: Mapping[str, str | None], path: str | Path, where: str) -> Price:
    tier = next((known for known in TIERS if known == row.get("tier")), None)
    if tier is None:
        raise MalformedFile(
            path, f"tier is {row.get('tier')!r}, must be one of {', '.join(TIERS)}", where=where
        )
    texts = {key: row.get(key) or "" for key in ("gpu", "provider", "product", "date", "source")}
    missing = next((key for key, value in texts.items() if not value), None)
    if missing is not None:
        raise MalformedFile(path, f"{missing} is missing", where=where)
    try:
        usd = float(row.get("usd_per_gpu_hour") or "")
        gpus = int(row.get("gpus_per_instance") or "1")
    except ValueError as error:
        raise MalformedFile(path, str(error), where=where) from None
    if not (math.isfinite(usd) and usd >= 0 and gpus >= 1):
        raise MalformedFile(path, f"price {usd} or instance size {gpus} is out of range", where=where)
    return Price(tier=tier, usd_per_gpu_hour=usd, gpus_per_instance=gpus, market=None, **texts)


def find_price_for_cost(gpu: str, cost: Cost) -> Price | None:
    """Return the price per GPU-hour of `gpu` that the options `cost` set, or None. Raises like `find_price`."""
    table = None
    if cost.owned_cost is not None:
        return _owned_price(gpu, cost)
    if cost.price_file is not None:  # it may name GPUs by aliases
        prices = read_prices(cost.price_file)
        names = {named: _resolve_alias(named) for named in {price.gpu for price in prices}}
        table = tuple(replace(price, gpu=names[price.gpu]) for price in prices)
    if cost.price_mix is not None:
        return _mixed_price(gpu, cost, table)
    return find_price(
        gpu,
        tier=cost.price_tier,
        provider=cost.price_provider,
        instance=cost.price_instance,
        override=cost.price,
        table=table,
    )


def _mixed_price(gpu: str, cost: Cost, table: tuple[Price, ...] | None) -> Price:
    """Return the price of `--price-mix`: the mean over tiers, weighted by share. Raises InvalidInput or UnknownName."""
    if cost.price_tier is not None or cost.price is not None:
        raise InvalidInput(
            "--price-mix already sets the price: remove --price-tier and --price, or remove --price-mix"
        )
    shares = parse_price_mix(cost.price_mix or "")
    parts = {
        tier: find_price(
            gpu, tier=tier, provider=cost.price_provider, instance=cost.price_instance, table=table
        )
        for tier in shares
    }
    priced = {tier: price for tier, price in parts.items() if price is not None}
    first = next(iter(priced.values()))
    quotes = (
        f"{shares[tier]:.0%} {tier} at {price_text(price.usd_per_gpu_hour)} ({price.description})"
        + (", not a market price" if price.has_few_providers else "")
        for tier, price in priced.items()
    )
    mean = sum(shares[tier] * price.usd_per_gpu_hour for tier, price in priced.items())
    mixed = _user_price(first.gpu, mean, f"mix of {'; '.join(quotes)}", tier="given")
    return replace(mixed, gpus_per_instance=max(price.gpus_per_instance for price in priced.values()))


def _owned_price(gpu: str, cost: Cost) -> Price:
    """Return the price of `--owned-cost`. Raises InvalidInput if another price option is given."""
    others = (cost.price, cost.price_mix, cost.price_file, cost.price_provider, cost.price_instance)
    if cost.price_tier not in (None, "owned") or any(other is not None for other in others):
        raise InvalidInput(
            "--owned-cost already sets the price: remove the other --price options, or remove --owned-cost"
        )
    name = _resolve_alias(gpu.partition("@")[0])
    owned = parse_owned_cost(cost.owned_cost or "", name)
    return _user_price(name, sum(owned.parts(name).values()), owned.description(name), tier="owned")


def _user_price(gpu: str, usd: float, source: str, *, tier: PriceTier | Literal["given"]) -> Price:
    return Price(
        gpu=gpu,
        provider=USER,
        product="given",
        tier=tier,
        usd_per_gpu_hour=usd,
        gpus_per_instance=1,
        date="",
        source=source,
    )


def price_cautions(price: Price | None) -> tuple[str, ...]:
    """Return the warning about a price as a tuple of one text; empty without a price or a warning."""
    return () if price is None or price.caution is None else (price.caution,)


def find_price(
    gpu: str,
    *,
    tier: str | None = None,
    provider: str | None = None,
    instance: str | None = None,
    override: str | None = None,
    table: tuple[Price, ...] | None = None,
) -> Price | None:
    """Return the price per GPU-hour of `gpu` (a profile's name or alias); None if neither a price nor a tier is given.

    `override` is the user's own price ("2.50", "h100=2.50", "h100=2.50,b200=6"). Otherwise the price is the median of
    the table's products in `tier` (`reserved` includes every term), or only of the products of `provider` or
    `instance`. `table` replaces the bundled table; if it has one tier only, `tier` may be None. Raises UnknownName or
    InvalidInput if the table has no such price.
    """
    name = _resolve_alias(gpu.partition("@")[0])
    if override is not None:
        prices = parse_prices(override, gpu=name)
        usd = prices.get(name, prices.get(None))
        if usd is None:
            given = ", ".join(str(key) for key in prices)
            raise InvalidInput(
                f"--price {override!r} is for {given}, but the deployment uses {name}; add {name}=USD"
            )
        own: Literal["owned", "given"] = "owned" if tier == "owned" else "given"
        rates = (f"{each.code} at {each.rate:.6g} US dollars" for each in price_currencies(override))
        return _user_price(name, usd, ", ".join(("given with --price", *rates)), tier=own)
    if tier is None and table is not None:
        tier = _single_tier(name, table)
    if tier is None:
        for what in (provider, instance):
            if what is not None:
                raise InvalidInput(f"a price from {what!r} requires --price-tier {' or '.join(TIERS)}")
        return None
    known = next((each for each in TIERS if each == tier), None)
    if known is None:
        raise UnknownName("price tier", tier, TIERS)
    picked = table is not None or provider is not None
    return _price_from_table(name, known, provider, instance, table or price_table(), picked=picked)


def _single_tier(name: str, table: tuple[Price, ...]) -> str:
    tiers = sorted({price.tier for price in table if price.gpu == name})
    if len(tiers) > 1:
        raise InvalidInput(
            f"the price file has {name} in several tiers ({', '.join(tiers)}); choose one with --price-tier"
        )
    if not tiers:
        known = ", ".join(sorted({price.gpu for price in table}))
        raise InvalidInput(f"the price file has no price of {name}, only of {known}")
    return tiers[0]


def _price_from_table(
    name: str,
    tier: PriceTier,
    provider: str | None,
    instance: str | None,
    table: tuple[Price, ...],
    *,
    picked: bool,
) -> Price:
    of_gpu = [price for price in table if price.gpu == name]
    of_tier = [price for price in of_gpu if price.tier == tier or price.tier.startswith(f"{tier}-")]
    if not of_tier:
        known = sorted({price.tier for price in of_gpu})
        have = f"only {', '.join(known)}" if known else "no price of this GPU in any tier"
        raise InvalidInput(
            f"the price table has no {tier} price of {name} ({have}); set your own with --price {name}=USD_PER_HOUR"
        )
    for what, asked, field in (
        (f"{tier} price of {name} from", provider, "provider"),
        (f"{tier} instance of {name}", instance, "product"),
    ):
        if asked is not None:
            named = {getattr(price, field) for price in of_tier}
            of_tier = [each for each in of_tier if getattr(each, field).lower() == asked.strip().lower()]
            if not of_tier:
                raise UnknownName(what, asked, named)
    if len(of_tier) == 1 and (provider is not None or instance is not None):
        return of_tier[0]
    return _median_price(name, tier, of_tier, picked=picked)


def _median_price(gpu: str, tier: PriceTier, offers: list[Price], *, picked: bool) -> Price:
    """Return the median price of the offers, with the smallest instance size of all offers."""
    ordered = sorted(offers, key=lambda offer: offer.usd_per_gpu_hour)
    dates = sorted({offer.date for offer in offers})
    providers = tuple(sorted({offer.provider for offer in offers}))
    only = ordered[0] if len(offers) == 1 else None
    market = Market(
        offers=len(offers),
        providers=providers,
        low=ordered[0],
        high=ordered[-1],
        first_date=dates[0],
        last_date=dates[-1],
        picked=picked,
    )
    return Price(
        gpu=gpu,
        provider=providers[0] if len(providers) == 1 else "market",
        product="median" if only is None else only.product,
        tier=tier,
        usd_per_gpu_hour=statistics.median(offer.usd_per_gpu_hour for offer in offers),
        gpus_per_instance=min(offer.gpus_per_instance for offer in offers),
        date=dates[-1],
        source="the price table" if only is None else only.source,
        market=market,
    )


def _resolve_alias(gpu: str) -> str:
    """Return the name of the profile `gpu` (a name or an alias); an unknown name is returned unchanged."""
    try:
        return load_profile(gpu).name
    except UnknownName:
        return gpu


def billed_gpus(price: Price, num_gpus: int) -> int:
    """Return the number of GPUs in the fewest whole instances with at least `num_gpus` GPUs."""
    return math.ceil(num_gpus / price.gpus_per_instance) * price.gpus_per_instance


def usd_per_hour(price: Price, num_gpus: int) -> float:
    """Return $ per hour of `num_gpus` GPUs."""
    return price.usd_per_gpu_hour * num_gpus
