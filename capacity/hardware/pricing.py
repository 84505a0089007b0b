"""What it costs: a dated, sourced price table, and the arithmetic from $ per GPU-hour to $ per token.

There is no default price: a tier, or a price of one's own, must be given. Prices of one chip differ 4 to 5 times
between providers, so a price says of how many offers it is the median, from where to where they go and when they were
read; that of a tier with too few providers says so. Input and output tokens share the bill by the GPU time that
prefill and decode take, not by their number.
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
from capacity.base.foreign import printable
from capacity.base.outside import read_text
from capacity.deployment.cost import Cost, PriceTier
from capacity.hardware import load_profile

Row = Mapping[str, str | None]
Priced = TypeVar("Priced")


def read_price_rows(
    path: str | Path, columns: Sequence[str], price: Callable[[Row, str], Priced]
) -> tuple[Priced, ...]:
    """Every row of a list that has these columns, read by `price(row, "line N")`. Raises MalformedFile."""
    text = read_text(path, "a list of prices")
    try:
        lines = csv.DictReader([printable(line) for line in text.splitlines()], strict=True)
        missing = [column for column in columns if column not in (lines.fieldnames or ())]
        if missing:
            raise MalformedFile(path, f"column {missing[0]} is missing; needed are {','.join(columns)}")
        prices = tuple(price(row, f"line {lines.line_num}") for row in lines)
    except csv.Error as error:
        raise MalformedFile(path, f"cannot be read: {error}") from None
    if not prices:
        raise MalformedFile(path, "holds no price")
    return prices


TIERS: tuple[PriceTier, ...] = get_args(PriceTier)
ENOUGH_PROVIDERS = 3  # below, the median of a tier is no market price
HOURS_PER_MONTH = 730
SECONDS_PER_HOUR = 3600
TABLE = Path(__file__).with_name("prices.csv")
COLUMNS = ("gpu", "provider", "product", "tier", "usd_per_gpu_hour", "gpus_per_instance", "date", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """$ per GPU-hour of one product, or of a tier. `gpus_per_instance` is the least that can be rented of it.

    `tier` is "given" for the user's own price. `market` says what a tier's price is the median of; None: one product's.
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
    def described(self) -> str:
        """Provider, product, size of an instance, date and source in one line; of a tier, what it is the median of."""
        if self.tier == "given":
            return self.source
        if self.market is not None:
            return self.market.described
        sold = "" if self.gpus_per_instance == 1 else f", sold by {self.gpus_per_instance} GPUs"
        return f"{self.provider} {self.product}{sold}, {self.date} ({self.source})"

    @property
    def quoted(self) -> str:
        """The price in one line, with what must be known of it."""
        quote = f"{self.gpu}: ${self.usd_per_gpu_hour:g} per GPU-hour, {self.tier}, {self.described}"
        return quote if self.caution is None else f"{quote}; {self.caution}"

    @property
    def thin(self) -> bool:
        """Whether it stands for a tier of which too few providers are known."""
        market = self.market
        return market is not None and not market.picked and len(market.providers) < ENOUGH_PROVIDERS

    @property
    def caution(self) -> str | None:
        """What a reader must know before relying on it; None: nothing."""
        if not self.thin or self.market is None:
            return None
        of = " and ".join(self.market.providers)
        return (
            f"the {self.tier} price of {self.gpu} is known of {of} alone: no market price "
            "(--price gives your own, --price-provider picks one)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """What the price of a tier is the median of: `offers` of `providers`, from the lowest to the highest.

    `picked`: by the user, who named a provider or brought a list.
    """

    offers: int
    providers: tuple[str, ...]
    low: Price
    high: Price
    first_date: str
    last_date: str
    picked: bool

    @property
    def described(self) -> str:
        """The offers, their spread and their dates in one line."""
        if self.offers == 1:
            return f"the only offer known: {self.low.described}"
        middle = "mean of two offers" if self.offers == 2 else f"median of {self.offers} offers"
        firms = len(self.providers)
        read = " to ".join(dict.fromkeys((self.first_date, self.last_date)))
        low, high = (f"${offer.usd_per_gpu_hour:.2f} ({offer.provider})" for offer in (self.low, self.high))
        return f"{middle} by {firms} provider{'s' * (firms > 1)}, {low} to {high}, read {read}"


@lru_cache(maxsize=1)
def price_table() -> tuple[Price, ...]:
    """All dated prices that come with the package."""
    return read_prices(TABLE)


def read_prices(path: str | Path) -> tuple[Price, ...]:
    """A price table in the form of `capacity/hardware/prices.csv`. Raises MalformedFile with the line."""
    return read_price_rows(path, COLUMNS, lambda row, where: _price(row, path, where))


def _price(row: Mapping[str, str | None], path: str | Path, where: str) -> Price:
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


def price_of(gpu: str, cost: Cost) -> Price | None:
    """The price that `cost` asks for, of a GPU-hour of `gpu`; None where it asks for none. Raises as `find_price`."""
    table = None
    if cost.price_file is not None:  # whose GPUs may be named by aliases
        prices = read_prices(cost.price_file)
        names = {named: _profile_name(named) for named in {price.gpu for price in prices}}
        table = tuple(replace(price, gpu=names[price.gpu]) for price in prices)
    return find_price(
        gpu,
        tier=cost.price_tier,
        provider=cost.price_provider,
        instance=cost.price_instance,
        override=cost.price,
        table=table,
    )


def cautions_of(price: Price | None) -> tuple[str, ...]:
    """What a reader must know before relying on a price; nothing of none."""
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
    """The price of a GPU-hour of `gpu` (a profile's name or alias); None where nobody asked for one.

    `override` is the user's own ("2.50", "h100=2.50", "h100=2.50,b200=6"). Otherwise `tier` picks from the table:
    the median of the tier's products (`reserved` is of any term), or of those of `provider` or `instance`. `table`
    replaces the bundled one, and needs no tier where it has a single one. Raises UnknownName or InvalidInput where
    the table has none.
    """
    name = _profile_name(gpu.partition("@")[0])
    if override is not None:
        prices = parse_prices(override, gpu=name)
        usd = prices.get(name, prices.get(None))
        if usd is None:
            given = ", ".join(str(key) for key in prices)
            raise InvalidInput(f"--price {override!r} is for {given}; the deployment uses {name}")
        return Price(
            gpu=name,
            provider="user",
            product="given",
            tier="given",
            usd_per_gpu_hour=usd,
            gpus_per_instance=1,
            date="",
            source="given with --price",
        )
    if tier is None and table is not None:
        tier = _only_tier(name, table)
    if tier is None:
        for what in (provider, instance):
            if what is not None:
                raise InvalidInput(f"a price of {what!r} needs a tier: --price-tier {' or '.join(TIERS)}")
        return None
    known = next((each for each in TIERS if each == tier), None)
    if known is None:
        raise UnknownName("price tier", tier, TIERS)
    if table is None:
        return _from_table(name, known, provider, instance, price_table(), picked=provider is not None)
    return _from_table(name, known, provider, instance, table, picked=True)


def _only_tier(name: str, table: tuple[Price, ...]) -> str:
    tiers = sorted({price.tier for price in table if price.gpu == name})
    if len(tiers) > 1:
        raise InvalidInput(
            f"the price file has {name} in several tiers ({', '.join(tiers)}): give --price-tier"
        )
    if not tiers:
        known = ", ".join(sorted({price.gpu for price in table}))
        raise InvalidInput(f"the price file has no price of {name}; it has {known}")
    return tiers[0]


def _from_table(
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
        have = f"it has {', '.join(known)}" if known else "it has no price of that GPU"
        raise InvalidInput(
            f"no {tier} price of {name} in the price table ({have}); give your own: --price {name}=USD_PER_HOUR"
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
    return _median(name, tier, of_tier, picked=picked)


def _median(gpu: str, tier: PriceTier, offers: list[Price], *, picked: bool) -> Price:
    """The middle of the offers, of two their mean; the least that can be rented is that of any of them."""
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


def _profile_name(gpu: str) -> str:
    """The name behind an alias; a name that no profile on the usual path has is the user's own GPU."""
    try:
        return load_profile(gpu).name
    except UnknownName:
        return gpu


def parse_prices(text: str, *, gpu: str | None = None) -> dict[str | None, float]:
    """`--price`: "2.50" for any GPU (key None), or "h100=2.50,b200=6" by profile name.

    `gpu` is accepted as a name beside those of profiles. Raises InvalidInput for anything else, and UnknownName
    for an unknown GPU.
    """
    prices: dict[str | None, float] = {}
    for item in text.split(","):
        name, equals, amount = item.rpartition("=")
        if equals and not name.strip():
            raise InvalidInput(f"--price {text!r} names no GPU before '='; write 2.50, or h100=2.50")
        named = name.strip()
        key = named if named == gpu or not equals else load_profile(named).name
        prices[key if equals else None] = _usd(amount, text)
    return prices


def _usd(amount: str, text: str) -> float:
    try:
        usd = float(amount.strip().removeprefix("$"))
    except ValueError:
        raise InvalidInput(f"--price {text!r} is not $ per GPU-hour; write 2.50, or h100=2.50") from None
    if not math.isfinite(usd) or usd < 0:
        raise InvalidInput(f"--price {text!r} must be a finite price of at least 0")
    return usd


def billed_gpus(price: Price, num_gpus: int) -> int:
    """GPUs of the fewest whole instances that hold `num_gpus`."""
    return math.ceil(num_gpus / price.gpus_per_instance) * price.gpus_per_instance


def usd_per_hour(price: Price, num_gpus: int) -> float:
    """$ per hour of `num_gpus` GPUs."""
    return price.usd_per_gpu_hour * num_gpus
