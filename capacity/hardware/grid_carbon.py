"""Carbon intensity of electricity by country (`grid_carbon.toml`)."""

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import make_row, read_data
from capacity.base.errors import UnknownName
from capacity.hardware.profile import Provenance

TABLE = Path(__file__).with_name("grid_carbon.toml")


class GridCarbon(Provenance):
    """Carbon intensity in g CO2 equivalents per kWh by country, all from one source."""

    g_per_kwh: dict[str, Annotated[float, Field(gt=0)]]


@cache
def grid_carbon() -> GridCarbon:
    """Return the package's table. Raises MalformedFile."""
    return make_row(TABLE, "", GridCarbon, read_data(TABLE))


def co2_g_per_kwh(region: str) -> float:
    """Return the carbon intensity of a country's electricity in g CO2 per kWh. Raises UnknownName."""
    known = grid_carbon().g_per_kwh
    name = region.strip().lower().replace("_", "-").replace(" ", "-")
    if name not in known:
        raise UnknownName("grid region", region, known)
    return known[name]
