"""Prices of hosted APIs by model, with prompt-cache discounts, from the package's dated list or from a custom list.

An empty `cached_multiple` means that the provider publishes no cache discount: cached input costs the full price.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.spec import Spec
from capacity.deployment import build
from capacity.hardware.pricing import read_price_rows

TABLE = Path(__file__).with_name("hosted_prices.csv")
REQUIRED_COLUMNS = ("provider", "model", "usd_per_million_input", "usd_per_million_output", "date", "source")
Amount = Annotated[float, Field(ge=0)]


class ApiPrice(Spec):
    """API price in $ per 1M tokens.

    A prompt token read from the API's prompt cache costs `cached_multiple` times the regular price. If part of the
    input is cached, each other input token costs `cache_write_multiple` times the regular price.
    """

    provider: str = "user"
    model: str
    usd_per_million_input: Amount
    usd_per_million_output: Amount
    cached_multiple: Amount = 1.0
    cache_write_multiple: Amount = 1.0
    date: str = ""
    source: str

    @property
    def described(self) -> str:
        """Return provider, model, date and source in one line."""
        return f"{self.provider} {self.model}, {self.date} ({self.source})" if self.date else self.source

    def usd_per_request(self, input_tokens: float, output_tokens: float, cached_fraction: float) -> float:
        """Return the cost of one request in $; `cached_fraction` of its input is read from the prompt cache."""
        write = self.cache_write_multiple if cached_fraction > 0 else 1.0
        plain = (1 - cached_fraction) * write + cached_fraction * self.cached_multiple
        usd = input_tokens * plain * self.usd_per_million_input + output_tokens * self.usd_per_million_output
        return usd / 1e6


@lru_cache(maxsize=1)
def api_price_list() -> tuple[ApiPrice, ...]:
    """Return all API prices in the package's price list; each has a date."""
    return read_api_prices(TABLE)


def read_api_prices(path: str | Path) -> tuple[ApiPrice, ...]:
    """Read API prices from a CSV file with the columns of the package's `hosted_prices.csv`. Raises MalformedFile."""
    return read_price_rows(path, REQUIRED_COLUMNS, lambda row, where: _price(row, path, where))


def _price(row: Mapping[str, str | None], path: str | Path, where: str) -> ApiPrice:
    fields = {name: text for name in ApiPrice.model_fields if (text := (row.get(name) or "").strip())}
    if empty := next((name for name in REQUIRED_COLUMNS if name not in fields), None):
        raise MalformedFile(path, f"{empty} is missing", where=where)
    try:
        return build(ApiPrice, fields)
    except InvalidInput as error:
        raise MalformedFile(path, str(error), where=where) from None


def find_api_prices(
    model: str, providers: str, *, table: tuple[ApiPrice, ...] | None = None
) -> tuple[ApiPrice, ...]:
    """Return the prices of `model` from comma-separated providers ("DeepInfra,SambaNova"); `all` means every provider
    that has a price of the model, possibly none.

    Raises InvalidInput if providers are named but the list has no price of the model, and UnknownName if a named
    provider has none but other providers do.
    """
    listed = api_price_list() if table is None else table
    of_model = [price for price in listed if price.model.lower() == model.lower()]
    if providers.strip().lower() == "all":
        return tuple(of_model)
    if not of_model:
        have = ", ".join(sorted({price.model for price in listed}))
        raise InvalidInput(
            f"the API price list has no price of {model} (known: {have}): give --api-input-price and "
            "--api-output-price, or --api-price-file"
        )
    prices = []
    for name in providers.split(","):
        chosen = [price for price in of_model if price.provider.lower() == name.strip().lower()]
        if not chosen:
            raise UnknownName(f"API price of {model} from", name.strip(), {p.provider for p in of_model})
        prices += chosen
    return tuple(prices)
